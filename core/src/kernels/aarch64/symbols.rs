//! Counts symbols of a small alphabet: compares each symbol of the alphabet with a whole vector of symbols.

use crate::kernels::scalar::symbols as scalar;
use core::arch::aarch64::*;

/// Symbols of the largest alphabet that is counted by comparison.
pub(in crate::kernels) const FEW: usize = 16;

/// Symbols compared at a time, by one load.
const LINE: usize = 16;

/// Lines that a byte can count.
const LINES: usize = 255;

/// Symbols of the alphabet that are looked for in one pass.
const TOGETHER: usize = 4;

/// Adds to `counts` how often each symbol below [`FEW`] occurs, for NEON, which the caller has detected.
pub(in crate::kernels) fn histogram(symbols: &[u8], counts: &mut [u32]) {
    let (lines, rest) = symbols.as_chunks();
    for lines in lines.chunks(LINES) {
        for (first, counts) in (0..).step_by(TOGETHER).zip(counts.chunks_mut(TOGETHER)) {
            // SAFETY: `Isa::Neon` is named only where the machine has it.
            let found = unsafe { count(lines, first) };
            counts.iter_mut().zip(found).for_each(|(count, found)| *count += u32::from(found));
        }
    }
    scalar::histogram(rest, counts);
}

/// How often `first` and the symbols after it occur.
#[target_feature(enable = "neon")]
fn count(lines: &[[u8; LINE]], first: u8) -> [u16; TOGETHER] {
    let wanted = [0, 1, 2, 3].map(|i| vdupq_n_u8(first + i));
    let mut sums = [vdupq_n_u8(0); TOGETHER];
    for line in lines {
        // SAFETY: a line is a vector.
        let line = unsafe { vld1q_u8(line.as_ptr()) };
        for (sum, wanted) in sums.iter_mut().zip(wanted) {
            // A lane of all ones is −1, so subtracting it adds one.
            *sum = vsubq_u8(*sum, vceqq_u8(line, wanted));
        }
    }
    sums.map(|sum| vaddlvq_u8(sum))
}
