//! A codec, as a spelling describes it.

use crate::method::Method;
use crate::raw::{Object, Placed};
use codecs::Spec;

/// A codec with its memory and its units, as a spelling describes it: "topk:density=0.01,values=q8". See
/// docs/c.md for the codecs and their keys.
///
/// Threads: many may read it at once; none may change it meanwhile.
pub struct gw_codec(#[allow(dead_code, reason = "its place is what counts")] Placed<Chosen>);

/// What a spelling or a constructor chose.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) spec: Spec,
    pub(crate) method: &'static dyn Method,
}

impl Object for gw_codec {
    type Value = Chosen;
    const TAG: u64 = u64::from_le_bytes(*b"gw_codec");
}

/// Bytes of a codec.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_codec_size() -> usize {
    gw_codec::ROOM.bytes().unwrap_or(0)
}
