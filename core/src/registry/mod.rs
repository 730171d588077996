//! Every codec in one value, and a body of any kind: enums, dispatch, names and numbers, made from the lists
//! of [`codecs`](crate::codecs).

mod bodies;
pub(crate) mod codecs;
mod keys;

pub use crate::codec::{Capabilities, CodecEntry, Law};
pub(crate) use bodies::AnyBody;
pub(crate) use codecs::AsUnitCodec;
#[cfg(feature = "std")]
pub use codecs::codecs;
pub use codecs::{CODECS, GatherCodec, GossipCodec, LinearCodec};
pub(crate) use codecs::{NAMES, kind_of};
pub use keys::{KEYS, KeyEntry};
