//! The plain loops that find the best parameters of Rice codes in blocks of every size at once; they define
//! every result.

/// Number of parameters: 0 … 31.
const PARAMETERS: usize = 32;

/// Entries of the smallest blocks, and the number of sizes, each twice the one before.
pub(crate) const LEAF: usize = 16;
pub(crate) const SIZES: usize = 13;

/// Entries that are tallied at once, and the number of block sizes among them: sixteen leaves, eight blocks
/// of two leaves, four of four, two of eight, and one of all. In this order the blocks are the nodes of a
/// turn.
pub(crate) const TALLIED: usize = 256;
const INNER: usize = 5;
const NODES: usize = 32;
const FIRST_NODE: [usize; INNER + 1] = [0, 16, 24, 28, 30, 31];

/// The leaf of each of the first sixteen nodes: the number of the node with its bits reversed. With this
/// order, the two halves of a block are always half the nodes of their size apart.
pub(in crate::kernels) const LEAVES: [usize; LEAF] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Bits of the low and of the high parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlaneBits {
    pub(crate) lows: u64,
    pub(crate) highs: u64,
}

/// Σ (gap >> r) over a block, for each r; below 2³² like the sum of the gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSums([u32; PARAMETERS]);

impl BlockSums {
    /// Adds the sums of another block.
    #[inline(always)]
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, other)| *sum = sum.wrapping_add(*other));
    }

    /// The smallest of the best parameters r of a block of up to 2¹⁶ entries, and Σ (gap >> r) for it.
    #[inline(always)]
    pub(crate) fn best(&self, entries: usize) -> (u32, u32) {
        // With r = 31 a block takes less than 2²² bits; more than that is never the best.
        const MOST: u32 = 1 << 26;
        let entries = entries as u32;
        let mut least = u32::MAX;
        for (r, sum) in self.0.iter().enumerate() {
            let bits = sum.wrapping_add(entries * r as u32).min(MOST);
            least = least.min(bits << 5 | r as u32);
        }
        let r = least & 31;
        (r, (least >> 5) - entries * r)
    }
}

/// The blocks of a turn, of every size: their entries, their best parameters, and the bits of their high
/// parts under these parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnBlocks {
    entries: [u32; NODES],
    parameters: [u32; NODES],
    highs: [u32; NODES],
    /// The sums of the whole turn.
    pub(crate) sums: BlockSums,
}

impl TurnBlocks {
    /// The best parameter of the block that begins with this leaf and has this many leaves, as a power of
    /// two.
    pub(crate) fn parameter(&self, leaves_log2: u32, leaf: usize) -> u32 {
        self.parameters[FIRST_NODE[leaves_log2 as usize] + LEAVES[leaf]]
    }
}

/// The size of the same gaps in blocks of every size, each block with its best parameter.
///
/// A block of 2·B entries is two blocks of B, and for every r its Σ (gap >> r) is the sum of theirs. So one
/// pass measures all sizes.
#[derive(Clone, Debug)]
pub(crate) struct BlockTally {
    entries: usize,
    /// Bits of blocks of up to [`TALLIED`] entries, by node.
    lows: [u64; NODES],
    highs: [u64; NODES],
    /// The sizes of larger blocks, by size.
    larger: [PlaneBits; SIZES],
    /// Sums of blocks that wait for the other half of the next larger block, by size.
    halves: [BlockSums; SIZES],
}

impl BlockTally {
    pub(crate) fn new() -> Self {
        Self {
            entries: 0,
            lows: [0; NODES],
            highs: [0; NODES],
            larger: [PlaneBits::default(); SIZES],
            halves: [BlockSums::default(); SIZES],
        }
    }

    /// The bits that blocks of each size take.
    pub(crate) fn finish(mut self) -> [PlaneBits; SIZES] {
        let turns = self.entries.div_ceil(TALLIED);
        let mut sums = BlockSums::default();
        for size in INNER..SIZES {
            if turns >> (size - INNER) & 1 == 1 {
                sums.add(&self.halves[size - 1]);
            }
            let whole = turns >> (size + 1 - INNER) << (size + 1 - INNER);
            if whole != turns {
                self.close(size, &sums, self.entries - whole * TALLIED);
            }
        }
        for (size, bits) in self.larger.iter_mut().take(INNER).enumerate() {
            let nodes = FIRST_NODE[size]..FIRST_NODE[size + 1];
            bits.lows = self.lows[nodes.clone()].iter().sum();
            bits.highs = self.highs[nodes].iter().sum();
        }
        self.larger
    }

    /// Adds a block with these sums to those of its size.
    #[inline(always)]
    fn close(&mut self, size: usize, sums: &BlockSums, entries: usize) {
        let (r, sum) = sums.best(entries);
        self.larger[size].lows += entries as u64 * u64::from(r);
        self.larger[size].highs += u64::from(sum) + entries as u64;
    }
}

/// Sums for the leaves, in their order as nodes, and then for the larger blocks.
#[inline(always)]
fn nodes_of(leaves: &[u32; LEAF]) -> [u32; NODES] {
    let mut nodes = [0; NODES];
    nodes[..LEAF].copy_from_slice(leaves);
    for i in 0..8 {
        nodes[16 + i] = nodes[i].wrapping_add(nodes[8 + i]);
    }
    for i in 0..4 {
        nodes[24 + i] = nodes[16 + i].wrapping_add(nodes[20 + i]);
    }
    for i in 0..2 {
        nodes[28 + i] = nodes[24 + i].wrapping_add(nodes[26 + i]);
    }
    nodes[30] = nodes[28].wrapping_add(nodes[29]);
    nodes
}

/// The first gap of each leaf, the second of each, and so on, in the order of the nodes.
pub(in crate::kernels) type Columns = [[u32; LEAF]; LEAF];

#[inline(always)]
pub(in crate::kernels) fn columns(gaps: &[u32; TALLIED]) -> Columns {
    let mut columns = [[0; LEAF]; LEAF];
    for (i, column) in columns.iter_mut().enumerate() {
        column.iter_mut().zip(LEAVES).for_each(|(gap, leaf)| *gap = gaps[LEAF * leaf + i]);
    }
    columns
}

/// See [`best_blocks`](crate::kernels::best_blocks).
#[inline(always)]
pub(in crate::kernels) fn best_blocks(gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    best_blocks_by(gaps, entries, blocks, columns, |columns, r| {
        let mut sums = [0u32; LEAF];
        for column in columns {
            sums.iter_mut().zip(column).for_each(|(sum, gap)| *sum = sum.wrapping_add(gap >> r));
        }
        sums
    });
}

/// See [`best_blocks`](crate::kernels::best_blocks). `sums(columns(gaps), r)` are Σ (gap >> r) of each leaf,
/// in the order of the nodes.
#[inline(always)]
pub(in crate::kernels) fn best_blocks_by<C>(
    gaps: &[u32; TALLIED],
    entries: usize,
    blocks: &mut TurnBlocks,
    columns: impl Fn(&[u32; TALLIED]) -> C,
    sums: impl Fn(&C, u32) -> [u32; LEAF],
) {
    let columns = columns(gaps);
    let entries = nodes_of(&LEAVES.map(|leaf| entries.saturating_sub(LEAF * leaf).min(LEAF) as u32));
    let width = u32::BITS - gaps.iter().fold(0, |all, gap| all | gap).leading_zeros();
    let (mut least, mut best, mut lows) = ([u32::MAX; NODES], [0u32; NODES], [0u32; NODES]);
    blocks.sums = BlockSums::default();
    // With r = width every high part is a single one, and that is no better than r = width − 1.
    for r in 0..width.max(1) {
        let nodes = nodes_of(&sums(&columns, r));
        blocks.sums.0[r as usize] = nodes[30];
        for i in 0..NODES {
            let bits = nodes[i].wrapping_add(lows[i]);
            let is_less = bits < least[i];
            least[i] = if is_less { bits } else { least[i] };
            best[i] = if is_less { r } else { best[i] };
            lows[i] += entries[i];
        }
    }
    for i in 0..NODES {
        blocks.highs[i] = (least[i] - entries[i] * best[i]).wrapping_add(entries[i]);
    }
    (blocks.entries, blocks.parameters) = (entries, best);
}

/// See [`tally_blocks`](crate::kernels::tally_blocks).
#[inline(always)]
pub(in crate::kernels) fn tally_blocks(blocks: &TurnBlocks, tally: &mut BlockTally) {
    for i in 0..NODES {
        tally.lows[i] += u64::from(blocks.entries[i] * blocks.parameters[i]);
        tally.highs[i] += u64::from(blocks.highs[i]);
    }
    let turn = tally.entries / TALLIED;
    let (mut sums, mut entries) = (blocks.sums, blocks.entries[30] as usize);
    tally.entries += entries;
    for size in INNER..SIZES {
        if turn >> (size - INNER) & 1 == 0 {
            tally.halves[size - 1] = sums;
            break;
        }
        sums.add(&tally.halves[size - 1]);
        entries += TALLIED << (size - INNER);
        tally.close(size, &sums, entries);
    }
}
