//! Working memory of linear and gossip codecs that grows once and is then reused: for callers who have a
//! heap.

use crate::owned::buffers::grow;
use crate::scratch::{LinearScratch, LinearScratchLen};
use alloc::vec::Vec;

/// Working memory of one unit, from its first round to its last. Allocates when it [grows](Self::grow), and
/// later only for larger units.
#[derive(Clone, Debug, Default)]
pub struct RoundBuffers {
    words: Vec<u32>,
    floats: Vec<f32>,
    ints: Vec<i32>,
}

impl RoundBuffers {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for at least this much; the content stays.
    pub fn grow(&mut self, needed: LinearScratchLen) {
        grow(&mut self.words, needed.words);
        grow(&mut self.floats, needed.floats);
        grow(&mut self.ints, needed.ints);
    }

    /// The buffers, lent to a codec.
    pub fn scratch(&mut self) -> LinearScratch<'_> {
        LinearScratch { words: &mut self.words, floats: &mut self.floats, ints: &mut self.ints }
    }
}
