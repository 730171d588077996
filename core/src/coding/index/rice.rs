//! Gaps between positions in Rice codes, with the exactly best parameter of each block of entries.
//!
//! The section is `block_log2` (one byte), then three planes, each padded to a byte:
//! ```text
//! parameters: for each block of 2^block_log2 entries its parameter r, 5 bits
//! lows:       for each entry the lower r bits of its gap
//! highs:      for each entry gap >> r zeros and a one
//! ```
//! The gap of an entry is its position less that of the entry before it, less one; the gap of the first entry
//! is its position. The section holds planes instead of whole codes for two reasons: fixed-width fields and
//! unary runs each have a fast loop of their own, and a hostile run of zeros can cost no more than its own
//! bytes.

use crate::bits::{BitReader, BitWriter, check_padding};
use crate::built::Full;
use crate::error::{DecodeError, Field};
use crate::kernels::{
    self, BlockSums, BlockTally, Isa, LEAF, ONES, PlaneBits, SIZES, TALLIED, TURN, TurnBlocks,
};

/// Entries of a block as a power of two, if no other size is much shorter: small enough to follow the layers
/// of a model, large enough that five bits a block stay below 1 % of the section.
const USUAL_LOG2: u32 = 7;

/// Block sizes: a reader accepts all, a writer tries all.
const BLOCK_LOG2_RANGE: core::ops::Range<u32> = 4..17;

const _: () = assert!(LEAF == 1 << 4 && SIZES == 16 - 4 + 1 && TURN == 1 << USUAL_LOG2);

const PARAMETER_BITS: u32 = 5;

pub(super) fn max_section_bytes(k: usize, len: usize) -> Option<usize> {
    // With r = the width of a position every high part is a single one; the best parameter does no worse, and
    // the best size of blocks no worse than the usual one.
    let code_bits = usize::BITS - len.leading_zeros() + 2;
    let parameters = k.div_ceil(1 << USUAL_LOG2) * PARAMETER_BITS as usize;
    let bits = k.checked_mul(code_bits as usize)?.checked_add(parameters)?;
    Some(bits / 8 + 8)
}

/// Calls `f` with the gaps of ascending positions, the first counted from `next`: a turn at a time, or one at
/// a time, which takes less code.
fn for_each_turn(isa: Isa, indices: &[u32], mut next: u32, mut f: impl FnMut(&[u32])) {
    if Full::build().is_none() {
        return for_each_gap(indices, next, |gap| f(&[gap]));
    }
    let mut buffer = [0; TURN];
    for indices in indices.chunks(TURN) {
        let gaps = &mut buffer[..indices.len()];
        kernels::gaps(isa, indices, next, gaps);
        next = kernels::behind(indices, next);
        f(gaps);
    }
}

fn for_each_gap(indices: &[u32], mut next: u32, mut f: impl FnMut(u32)) {
    for &index in indices {
        f(index.wrapping_sub(next));
        next = index.wrapping_add(1);
    }
}

/// The same, with [`TALLIED`] gaps at a time and the best parameters of their blocks.
fn for_each_tallied(isa: Isa, indices: &[u32], mut next: u32, mut f: impl FnMut(&[u32], &TurnBlocks)) {
    let (mut gaps, mut blocks) = ([0; TALLIED], TurnBlocks::default());
    for indices in indices.chunks(TALLIED) {
        let (filled, rest) = gaps.split_at_mut(indices.len());
        kernels::gaps(isa, indices, next, filled);
        rest.fill(0);
        kernels::best_blocks(isa, &gaps, indices.len(), &mut blocks);
        next = kernels::behind(indices, next);
        f(&gaps[..indices.len()], &blocks);
    }
}

/// The smallest of the best parameters of a block, and Σ (gap >> r).
fn best_parameter(isa: Isa, block: &[u32], next: u32) -> (u32, u32) {
    if Full::build().is_none() {
        return best_parameter_step_by_step(block, next);
    }
    let mut sums = BlockSums::default();
    for_each_tallied(isa, block, next, |_, blocks| sums.add(&blocks.sums));
    sums.best(block.len())
}

/// The same in less code. The bits of a block, Σ (gap >> r) + entries·(r + 1), are convex in r: once they
/// stop falling, they never fall again.
fn best_parameter_step_by_step(block: &[u32], next: u32) -> (u32, u32) {
    let entries = block.len() as u32;
    let sum = |r: u32| {
        let mut sum = 0u32;
        for_each_gap(block, next, |gap| sum = sum.wrapping_add(gap.checked_shr(r).unwrap_or(0)));
        sum
    };
    let (mut r, mut highs) = (0, sum(0));
    loop {
        let fewer = sum(r + 1);
        if highs - fewer <= entries {
            return (r, highs);
        }
        (r, highs) = (r + 1, fewer);
    }
}

/// Size of the blocks of a section, and the bytes of its planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Planes {
    block_log2: u32,
    parameters: usize,
    lows: usize,
    highs: usize,
}

impl Planes {
    /// The planes of the section that is written: with 128 entries a block, unless the best of all sizes
    /// saves more than 1/128 of the section, and more than a byte.
    pub(super) fn measure(indices: &[u32]) -> Self {
        let tally = Full::build().map(|_| tally(Isa::best(), indices));
        let (mut best, mut least) = (Self::default(), usize::MAX);
        // The usual size comes first, and again in its turn, because one loop takes the least code.
        for block_log2 in core::iter::once(USUAL_LOG2).chain(BLOCK_LOG2_RANGE) {
            let bits = tally.map_or_else(
                || measure_blocks(indices, block_log2),
                |sizes| sizes[(block_log2 - LEAF.ilog2()) as usize],
            );
            let planes = Self::new(indices.len(), block_log2, bits);
            let bytes = planes.section_bytes();
            if bytes < least {
                let is_usual = least == usize::MAX;
                (best, least) = (planes, if is_usual { bytes - (bytes / 128).max(1) } else { bytes });
            }
        }
        best
    }

    fn new(entries: usize, block_log2: u32, bits: PlaneBits) -> Self {
        // An address space that holds the entries, four bytes each, can count these bits.
        let parameters = (entries.div_ceil(1 << block_log2) * PARAMETER_BITS as usize).div_ceil(8);
        let bytes = |bits: u64| usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        Self { block_log2, parameters, lows: bytes(bits.lows), highs: bytes(bits.highs) }
    }

    pub(super) fn section_bytes(&self) -> usize {
        1usize.saturating_add(self.parameters).saturating_add(self.lows).saturating_add(self.highs)
    }
}

/// The bits that blocks of each size take. A build for small machines measures one size after the other, with
/// the same result.
fn tally(isa: Isa, indices: &[u32]) -> [PlaneBits; SIZES] {
    let mut tally = BlockTally::new();
    for_each_tallied(isa, indices, 0, |_, blocks| kernels::tally_blocks(isa, blocks, &mut tally));
    tally.finish()
}

/// The bits that blocks of one size take.
fn measure_blocks(indices: &[u32], block_log2: u32) -> PlaneBits {
    let (mut lows, mut highs, mut next) = (0, indices.len() as u64, 0);
    for block in indices.chunks(1 << block_log2) {
        let (r, sum) = best_parameter(Isa::best(), block, next);
        lows += u64::from(block.len() as u32 * r);
        highs += u64::from(sum);
        next = kernels::behind(block, next);
    }
    PlaneBits { lows, highs }
}

/// Fills `section`, which is exactly as long as [`Planes::section_bytes`] says.
pub(super) fn write(indices: &[u32], planes: Planes, section: &mut [u8]) {
    let (block_log2, rest) = section.split_at_mut(1);
    block_log2[0] = planes.block_log2 as u8;
    let (parameters, rest) = rest.split_at_mut(planes.parameters);
    let (lows, highs) = rest.split_at_mut(planes.lows);
    let [mut parameters, mut lows, mut highs] = [parameters, lows, highs].map(BitWriter::new);
    let isa = Isa::best();
    let block = 1 << planes.block_log2;
    if Full::build().is_some() && block <= TALLIED {
        for_each_tallied(isa, indices, 0, |gaps, blocks| {
            let mut best = [0; TALLIED / LEAF];
            let best = &mut best[..gaps.len().div_ceil(block)];
            for (i, r) in best.iter_mut().enumerate() {
                *r = blocks.parameter(planes.block_log2 - LEAF.ilog2(), i * block / LEAF);
                parameters.put(u64::from(*r), PARAMETER_BITS);
            }
            kernels::put_gaps(isa, gaps, block, best, &mut lows, &mut highs);
        });
    } else {
        let mut next = 0;
        for positions in indices.chunks(block) {
            let (r, _) = best_parameter(isa, positions, next);
            parameters.put(u64::from(r), PARAMETER_BITS);
            for_each_turn(isa, positions, next, |gaps| {
                kernels::put_gaps(isa, gaps, TURN, &[r], &mut lows, &mut highs);
            });
            next = kernels::behind(positions, next);
        }
    }
    let complete = [parameters, lows, highs].map(BitWriter::finish).iter().all(Option::is_some);
    debug_assert!(complete, "the planes were measured before they were written");
}

/// A section taken apart: entries of a block, and the planes. The parameters determine the length of the low
/// plane.
struct Sections<'a> {
    block: usize,
    parameters: &'a [u8],
    lows: &'a [u8],
    highs: &'a [u8],
}

impl<'a> Sections<'a> {
    fn split(section: &'a [u8], k: usize) -> Result<Self, DecodeError> {
        let truncated = |needed, actual| DecodeError::Truncated { needed, actual };
        let (&block_log2, planes) = section.split_first().ok_or(truncated(1, 0))?;
        if !BLOCK_LOG2_RANGE.contains(&u32::from(block_log2)) {
            return Err(DecodeError::InvalidField(Field::Rice));
        }
        let block = 1usize << block_log2;
        let parameter_bytes = (k.div_ceil(block) as u64 * u64::from(PARAMETER_BITS)).div_ceil(8) as usize;
        let (parameters, planes) =
            planes.split_at_checked(parameter_bytes).ok_or(truncated(parameter_bytes, planes.len()))?;
        let mut reader = BitReader::new(parameters);
        let mut low_bits = 0u64;
        for first in (0..k).step_by(block) {
            low_bits += reader.take(PARAMETER_BITS) * block.min(k - first) as u64;
        }
        let low_bytes = usize::try_from(low_bits.div_ceil(8)).unwrap_or(usize::MAX);
        let (lows, highs) = planes.split_at_checked(low_bytes).ok_or(truncated(low_bytes, planes.len()))?;
        Ok(Self { block, parameters, lows, highs })
    }
}

pub(super) fn read(section: &[u8], len: usize, indices: &mut [u32]) -> Result<(), DecodeError> {
    let (isa, entries) = (Isa::best(), indices.len());
    let Sections { block, parameters, lows, highs } = Sections::split(section, entries)?;
    let mut reader = BitReader::new(parameters);
    // The position in each plane, in bits, and the first position not yet passed.
    let (mut low_bits, mut high_bits, mut next) = (0u64, 0u64, 0u64);
    let (mut ones, mut best) = ([0; ONES], [0; TURN / LEAF]);
    // A turn is several blocks, or a part of one. A small machine has no code for several.
    let is_small_build = Full::build().is_none();
    let mut left_of_block = 0;
    for slots in indices.chunks_mut(if is_small_build { block.min(TURN) } else { TURN }) {
        let n = slots.len();
        if kernels::ones(isa, highs, high_bits, n, &mut ones) < n {
            return Err(DecodeError::Truncated { needed: 1, actual: 0 });
        }
        if left_of_block == 0 {
            left_of_block = block;
            let blocks = if is_small_build { 1 } else { n.div_ceil(block) };
            best[..blocks].iter_mut().for_each(|r| *r = reader.take(PARAMETER_BITS) as u32);
        }
        left_of_block = left_of_block.saturating_sub(n);
        let (first, low_bit, mut start) = (next as u32, low_bits, 0);
        let mut advance = |ones: &[u32], r: u32| {
            let end = u64::from(ones[ones.len() - 1]) + 1;
            let zeros = end - start - ones.len() as u64;
            next += zeros << r;
            low_bits += ones.len() as u64 * u64::from(r);
            start = end;
            zeros <= len as u64 >> r
        };
        let ones = &ones[..n];
        let is_within = if is_small_build {
            advance(ones, best[0])
        } else {
            ones.chunks(block).zip(&best).all(|(ones, &r)| advance(ones, r))
        };
        if !is_within {
            return Err(DecodeError::IndexOutOfRange);
        }
        high_bits += start;
        next += kernels::positions(isa, ones, lows, low_bit, (block, &best), first, slots) + n as u64;
    }
    // Positions ascend: arithmetic modulo 2³² gave the true positions if the last is below `len`.
    if next > len as u64 {
        return Err(DecodeError::IndexOutOfRange);
    }
    let planes = [(parameters, reader.position()), (lows, low_bits), (highs, high_bits)];
    planes.into_iter().try_for_each(|(plane, bits)| check_padding(plane, bits))
}

#[cfg(test)]
mod tests;
