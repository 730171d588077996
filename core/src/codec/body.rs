//! The body of one unit as received.

use crate::error::DecodeError;
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;
#[cfg(feature = "alloc")]
use alloc::vec::Vec;

/// The structure of one unit's body. Reading it costs a few bytes for each section. [`check`](Self::check)
/// does the work that grows with the unit; after it nothing can fail.
pub(crate) trait Body<'a>: Copy + Sized {
    /// The number of this kind of body in a frame.
    const KIND: Kind;

    /// Finds the sections of the body, in a frame of `codec` and `step`.
    ///
    /// # Errors
    /// The fault in the structure, by [`DecodeError`].
    fn read(codec: CodecId, unit: &Unit, step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Number of entries that are decoded into scratch memory.
    fn entries(&self) -> usize {
        0
    }

    /// Words of scratch memory that [`check`](Self::check) needs.
    fn scratch_words(&self) -> usize;

    /// Checks every value, and decodes into `scratch`, of [`scratch_words`](Self::scratch_words), what later
    /// calls need.
    ///
    /// # Errors
    /// The fault in the values, by [`DecodeError`].
    fn check(&self, span: Span<'_>, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError>;

    /// Calls `f` with position and value of each coordinate that is sent, ascending.
    fn for_each(&self, scratch: &[u32], f: impl FnMut(usize, f32));

    /// Number of coordinates sent, of a unit of `len`.
    fn held(&self, len: usize) -> usize {
        len
    }

    /// Positions of the entries, if they are known before the values.
    fn positions<'s>(&self, scratch: &'s [u32]) -> &'s [u32] {
        let _ = scratch;
        &[]
    }

    /// Whether [`add_scaled_to`](Self::add_scaled_to) is implemented: for bodies that can do better than
    /// value by value.
    const ADDS: bool = false;

    /// Adds `weight` times every value to the accumulator.
    fn add_scaled_to(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
        let _ = (scratch, weight, acc);
    }

    /// The same content under every other coder that could have written it.
    #[cfg(feature = "alloc")]
    fn alternatives(&self, scratch: &[u32]) -> Vec<Vec<u8>> {
        let _ = scratch;
        Vec::new()
    }

    /// The parts of the body, for people to read.
    fn info(&self) -> BodyInfo;
}

/// Names and bytes of the sections of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyInfo {
    pub(crate) kind: &'static str,
    pub(crate) index: Option<(&'static str, usize)>,
    pub(crate) values: Option<(&'static str, usize)>,
}
