//! How a section is cut: into blocks that keep states apart, so that threads can code them on their own, and
//! into lanes.

use crate::coding::entropy::rans::MAX_LANES_LOG2;

/// log2 of the symbols of the smallest block that the `shape` byte can name.
const LEAST_BLOCK_LOG2: u32 = 16;

/// log2 of the symbols of a block, unless a block has so few bits that the cost of the lanes shows.
const BLOCK_LOG2: u32 = 18;

/// log2 of the symbols of the largest block.
const MAX_BLOCK_LOG2: u32 = LEAST_BLOCK_LOG2 + 15;

/// Bits of a stream for each of its lanes: a lane costs 24 bits on average, which is 1/256 of them.
const BITS_PER_LANE: u64 = 24 * 256;

/// Whether a section has classes, in the `shape` byte.
const CLASSES: u8 = 0x80;

/// The `shape` byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) lanes_log2: u32,
    block_log2: u32,
    pub(super) has_classes: bool,
}

impl Shape {
    /// The shape for `n` symbols that cost `bits`. It has the most lanes whose cost over all blocks is at
    /// most 1/256 of the bits, after the blocks have grown until they can bear all lanes.
    pub(super) fn best(n: usize, bits: u64) -> Shape {
        let blocks = |log2: u32| (n as u64).div_ceil(1 << log2).max(1);
        let bears = |block_log2, lanes_log2| (blocks(block_log2) * BITS_PER_LANE) << lanes_log2 <= bits;
        let is_enough = |log2: &u32| blocks(*log2) == 1 || bears(*log2, MAX_LANES_LOG2);
        let block_log2 = (BLOCK_LOG2..MAX_BLOCK_LOG2).find(is_enough).unwrap_or(MAX_BLOCK_LOG2);
        let lanes_log2 = (0..=MAX_LANES_LOG2).rev().find(|log2| bears(block_log2, *log2)).unwrap_or(0);
        Shape { lanes_log2, block_log2, has_classes: false }
    }

    pub(super) fn with_classes(self) -> Shape {
        Shape { has_classes: true, ..self }
    }

    /// Bits 0 … 2: log2 of the lanes; 3 … 6: log2 of the symbols of a block, less 16; 7: classes.
    pub(super) fn byte(self) -> u8 {
        let classes = if self.has_classes { CLASSES } else { 0 };
        (self.lanes_log2 | (self.block_log2 - LEAST_BLOCK_LOG2) << 3) as u8 | classes
    }

    /// `None` for more lanes than there can be.
    pub(super) fn from_byte(byte: u8) -> Option<Shape> {
        let lanes_log2 = u32::from(byte & 7);
        let block_log2 = LEAST_BLOCK_LOG2 + u32::from(byte >> 3 & 15);
        let shape = Shape { lanes_log2, block_log2, has_classes: byte & CLASSES != 0 };
        (lanes_log2 <= MAX_LANES_LOG2).then_some(shape)
    }

    /// Symbols of a block; the last may have fewer.
    pub(super) fn block(self) -> usize {
        1 << self.block_log2
    }

    /// Bytes of the states of a stream.
    pub(super) fn state_bytes(self) -> usize {
        4 << self.lanes_log2
    }

    /// Symbols of each block of `n` symbols.
    pub(super) fn block_lens(self, n: usize) -> impl Iterator<Item = usize> {
        (0..n).step_by(self.block()).map(move |first| self.block().min(n - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_shape_that_writes_it_or_none() {
        for byte in 0..=u8::MAX {
            match Shape::from_byte(byte) {
                Some(shape) => assert_eq!(shape.byte(), byte),
                None => assert!(byte & 7 > 5),
            }
        }
    }

    #[test]
    fn lanes_cost_a_256th_at_most_and_blocks_grow_for_them() {
        let shape = |n, bits| {
            let shape = Shape::best(n, bits);
            (1 << shape.lanes_log2, shape.block_log2)
        };
        assert_eq!(shape(0, 0), (1, 18));
        assert_eq!(shape(100, 200), (1, 18));
        assert_eq!(shape(10_000, 12_287), (1, 18));
        assert_eq!(shape(10_000, 12_288), (2, 18));
        assert_eq!(shape(100_000, 196_607), (16, 18));
        assert_eq!(shape(100_000, 196_608), (32, 18));
        assert_eq!(shape(1 << 20, 4 * 196_608), (32, 18));
        assert_eq!(shape(1 << 20, 4 * 196_608 - 1), (32, 19));
        assert_eq!(shape(1 << 20, 2 * 196_608 - 1), (32, 20));
        assert_eq!(shape(1 << 20, 100_000), (16, 20));
        assert_eq!(shape((1 << 18) + 1, 2 * 196_608), (32, 18));
        assert_eq!(shape((1 << 18) + 1, 2 * 196_608 - 1), (32, 19));
        assert_eq!(shape(u32::MAX as usize, 1 << 30), (32, 20));
        assert_eq!(shape(u32::MAX as usize, 0), (1, 31));
    }
}
