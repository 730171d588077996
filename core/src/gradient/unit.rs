//! Units: the ranges of the layout that one codec call sees.

/// One unit: a range of the flat gradient (a tensor, a group, a shard, or the whole model) with its
/// identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Identifier; ascending within a message, and part of the key of every random draw.
    pub id: u32,
    /// First element in the flat gradient.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// Send this unit as dense f32 whatever the codec: for small tensors that sparsify badly.
    pub dense: bool,
}

impl Unit {
    /// The unit that spans a whole flat gradient of `len` elements.
    #[must_use]
    pub fn whole(len: usize) -> Self {
        Self { id: 0, start: 0, len, dense: false }
    }

    /// The elements as a range of the flat gradient.
    ///
    /// # Panics
    /// When the end does not fit `usize`.
    #[must_use]
    pub fn range(&self) -> core::ops::Range<usize> {
        self.start..self.start + self.len
    }
}
