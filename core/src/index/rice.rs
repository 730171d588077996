//! Gaps between positions in Rice codes, with the exactly best parameter of each block of entries.
//!
//! The section is `block_log2` (one byte), then three planes, each padded to a byte:
//! ```text
//! parameters: for each block of 2^block_log2 entries its parameter r, 5 bits
//! lows:       for each entry the lower r bits of its gap
//! highs:      for each entry gap >> r zeros and a one
//! ```
//! where the gap of an entry is its position less that of the entry before it, less one (the first entry: its
//! position). Planes instead of whole codes, because fixed-width fields and unary runs each have a fast loop of
//! their own, and because a hostile run of zeros can then cost no more than the bytes it is made of.

use crate::bits::{BitReader, BitWriter};
use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa, ONES, TURN};

/// Entries of a block as a power of two: small enough to follow the layers of a model, large enough that five bits
/// a block stay below 1 % of the section.
const BLOCK_LOG2: u32 = 7;

const BLOCK: usize = 1 << BLOCK_LOG2;

/// Block sizes that a reader accepts.
const BLOCK_LOG2_RANGE: core::ops::RangeInclusive<u32> = 4..=16;

const PARAMETER_BITS: u32 = 5;

pub(super) fn max_section_bytes(k: usize, len: usize) -> Option<usize> {
    // With r = the width of a position every high part is a single one; the best parameter does no worse.
    let code_bits = usize::BITS - len.leading_zeros() + 2;
    let bits = k.checked_mul(code_bits as usize)?.checked_add(k.div_ceil(BLOCK) * PARAMETER_BITS as usize)?;
    Some(bits / 8 + 8)
}

/// Calls `f(gaps, r, highs)` for each block, `highs` being the bits of its high plane.
fn for_each_block(indices: &[u32], mut f: impl FnMut(&[u32], u32, u64)) {
    let isa = Isa::best();
    let mut buffer = [0; BLOCK];
    let mut next = 0;
    for block in indices.chunks(BLOCK) {
        let gaps = &mut buffer[..block.len()];
        kernels::gaps(isa, block, next, gaps);
        next = block.last().map_or(next, |last| last.wrapping_add(1));
        let (r, highs) = kernels::rice_parameter(isa, gaps);
        f(gaps, r, highs);
    }
}

/// Bytes of the planes of a section.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planes {
    parameters: usize,
    lows: usize,
    highs: usize,
}

impl Planes {
    pub(super) fn measure(indices: &[u32]) -> Self {
        let (mut lows, mut highs) = (0u64, 0u64);
        for_each_block(indices, |gaps, r, high_bits| {
            lows += gaps.len() as u64 * u64::from(r);
            highs += high_bits;
        });
        let parameters = indices.len().div_ceil(BLOCK) as u64 * u64::from(PARAMETER_BITS);
        let bytes = |bits: u64| usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        Self { parameters: bytes(parameters), lows: bytes(lows), highs: bytes(highs) }
    }

    pub(super) fn section_bytes(&self) -> usize {
        1usize.saturating_add(self.parameters).saturating_add(self.lows).saturating_add(self.highs)
    }
}

/// Fills `section`, which is exactly as long as [`Planes::section_bytes`] says.
pub(super) fn write(indices: &[u32], planes: Planes, section: &mut [u8]) {
    let (block_log2, rest) = section.split_at_mut(1);
    block_log2[0] = BLOCK_LOG2 as u8;
    let (parameters, rest) = rest.split_at_mut(planes.parameters);
    let (lows, highs) = rest.split_at_mut(planes.lows);
    let [mut parameters, mut lows, mut highs] = [parameters, lows, highs].map(BitWriter::new);
    let isa = Isa::best();
    for_each_block(indices, |gaps, r, _| {
        parameters.put(u64::from(r), PARAMETER_BITS);
        kernels::put_gaps(isa, gaps, r, &mut lows, &mut highs);
    });
    let complete = [parameters, lows, highs].map(BitWriter::finish).iter().all(Option::is_some);
    debug_assert!(complete, "the planes were measured before they were written");
}

/// A section taken apart: entries of a block, and the planes. The parameters say how long the low plane is.
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
    // What was read of the planes, in bits, and the first position that is not behind the reader.
    let (mut low_bits, mut high_bits, mut next) = (0u64, 0u64, 0u64);
    let mut ones = [0; ONES];
    for block in indices.chunks_mut(block) {
        let r = reader.take(PARAMETER_BITS) as u32;
        for slots in block.chunks_mut(TURN) {
            let n = slots.len();
            if kernels::ones(isa, highs, high_bits, n, &mut ones) < n {
                return Err(DecodeError::Truncated { needed: 1, actual: 0 });
            }
            let bits = u64::from(ones[n - 1]) + 1;
            let zeros = bits - n as u64;
            if zeros > len as u64 >> r {
                return Err(DecodeError::IndexOutOfRange);
            }
            let sum = kernels::positions(isa, &ones[..n], lows, low_bits, r, next as u32, slots);
            next += (zeros << r) + sum + n as u64;
            low_bits += n as u64 * u64::from(r);
            high_bits += bits;
        }
    }
    // Positions ascend: what was computed modulo 2³² is what it says, if the last is below `len`.
    if next > len as u64 {
        return Err(DecodeError::IndexOutOfRange);
    }
    let wastes = |plane: &[u8], bits: u64| {
        plane.last().is_some_and(|&last| u32::from(last) >> ((bits as u32 + 7) % 8 + 1) != 0)
    };
    let is_longer = highs.len() as u64 != high_bits.div_ceil(8);
    if is_longer
        || wastes(parameters, reader.position())
        || wastes(lows, low_bits)
        || wastes(highs, high_bits)
    {
        return Err(DecodeError::TrailingBytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn cost(gaps: &[u32], r: u32) -> u64 {
        gaps.iter().map(|&gap| u64::from(gap >> r) + u64::from(r) + 1).sum()
    }

    #[test]
    fn the_parameter_is_the_exactly_best_one() {
        let mut state = 1u32;
        // The sum of 128 gaps is below 2³².
        for spread in 7..32 {
            for len in [1, 2, 7, 128] {
                let gaps: Vec<u32> = (0..len)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        state >> spread
                    })
                    .collect();
                let best = (0..32).min_by_key(|&r| cost(&gaps, r)).unwrap();
                for isa in Isa::available() {
                    let high_bits = cost(&gaps, best) - u64::from(best) * gaps.len() as u64;
                    assert_eq!(kernels::rice_parameter(isa, &gaps), (best, high_bits), "{gaps:?}");
                }
            }
        }
    }

    #[test]
    fn parameters_of_memoryless_gaps_are_the_textbook_ones() {
        // Density 10 %, 1 %, 0.1 %: r = 3, 6, 9. Gaps at evenly spaced quantiles of the geometric distribution.
        for (density, r) in [(0.1f64, 3), (0.01, 6), (0.001, 9)] {
            let quantile = |i: usize| ((1.0 - (i as f64 + 0.5) / 128.0).ln() / (1.0 - density).ln()) as u32;
            let gaps: Vec<u32> = (0..128).map(quantile).collect();
            assert_eq!(kernels::rice_parameter(Isa::Baseline, &gaps).0, r);
        }
    }

    /// r = 3 of gap 13 is "10" + "101" in the textbook's unary-of-ones; here a zero and a one in the high plane.
    #[test]
    fn one_gap_has_the_documented_bits() {
        let indices = [13u32];
        let planes = Planes::measure(&indices);
        let mut section = std::vec![0xa5; planes.section_bytes()];
        write(&indices, planes, &mut section);
        let (r, _) = kernels::rice_parameter(Isa::Baseline, &[13]);
        assert_eq!(section, [7, r as u8, 13 & ((1 << r) - 1), 1 << (13 >> r)]);
    }

    #[test]
    fn a_wasted_byte_behind_a_plane_is_refused() {
        let indices = [3u32, 70, 71];
        let planes = Planes::measure(&indices);
        let mut section = std::vec![0; planes.section_bytes() + 1];
        let exact = section.len() - 1;
        write(&indices, planes, &mut section[..exact]);
        let mut decoded = [0; 3];
        assert_eq!(read(&section, 100, &mut decoded), Err(DecodeError::TrailingBytes));
        assert_eq!(read(&section[..exact], 100, &mut decoded), Ok(()));
    }
}
