//! Working memory lent by the caller.

/// Working memory for one call. Any content is allowed before the call; afterwards the content is
/// unspecified.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// At least [`ScratchLen::words`] elements.
    pub words: &'a mut [u32],
    /// At least [`ScratchLen::bytes`] elements.
    pub bytes: &'a mut [u8],
}

/// How much working memory a call needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchLen {
    /// Words of 32 bits.
    pub words: usize,
    /// Bytes.
    pub bytes: usize,
}

impl ScratchLen {
    /// Enough for either of two calls.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { words: self.words.max(other.words), bytes: self.bytes.max(other.bytes) }
    }
}

impl Scratch<'_> {
    /// Whether the memory is enough for `needed`.
    pub(crate) fn holds(&self, needed: ScratchLen) -> bool {
        self.words.len() >= needed.words && self.bytes.len() >= needed.bytes
    }

    /// A shorter borrow of the same memory.
    #[must_use]
    pub fn reborrow(&mut self) -> Scratch<'_> {
        Scratch { words: self.words, bytes: self.bytes }
    }
}

/// Working memory of one unit of a [`Linear`](crate::Linear) or [`Gossip`](crate::rounds::Gossip) codec, from
/// its first round to its last.
#[derive(Debug)]
pub struct LinearScratch<'a> {
    /// At least [`LinearScratchLen::words`] elements.
    pub words: &'a mut [u32],
    /// At least [`LinearScratchLen::floats`] elements.
    pub floats: &'a mut [f32],
    /// At least [`LinearScratchLen::ints`] elements.
    pub ints: &'a mut [i32],
}

impl LinearScratch<'_> {
    /// Whether the memory is enough for `needed`.
    pub(crate) fn holds(&self, needed: LinearScratchLen) -> bool {
        self.words.len() >= needed.words
            && self.floats.len() >= needed.floats
            && self.ints.len() >= needed.ints
    }
}

/// How much working memory a unit of a [`Linear`](crate::Linear) or [`Gossip`](crate::rounds::Gossip) codec
/// needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearScratchLen {
    /// Words of 32 bits.
    pub words: usize,
    /// f32 elements.
    pub floats: usize,
    /// i32 elements.
    pub ints: usize,
}
