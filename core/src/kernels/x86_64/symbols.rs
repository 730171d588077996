//! Counts symbols of a small alphabet: compares each symbol of the alphabet with a whole line of symbols.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::symbols as scalar;
use core::arch::x86_64::*;

/// Symbols of the largest alphabet that is counted by comparison.
pub(crate) const FEW: usize = 32;

/// Symbols compared at a time.
const LINE: usize = 64;

/// Adds to `counts` how often each symbol below [`FEW`] occurs, for an `isa` above the baseline that the
/// caller detected.
pub(crate) fn histogram(isa: Isa, symbols: &[u8], counts: &mut [u32]) {
    let (lines, rest) = symbols.as_chunks();
    // SAFETY: `Isa` names an instruction set only where the machine has it.
    unsafe {
        match isa {
            Isa::Avx512 => count_avx512(lines, counts),
            _ => count_avx2(lines, counts),
        }
    }
    scalar::histogram(rest, counts);
}

#[target_feature(enable = "avx512f,avx512bw,popcnt")]
fn count_avx512(lines: &[[u8; LINE]], counts: &mut [u32]) {
    for line in lines {
        // SAFETY: a line has 64 bytes.
        let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        for (symbol, count) in (0i8..).zip(counts.iter_mut()) {
            *count += _mm512_cmpeq_epi8_mask(line, _mm512_set1_epi8(symbol)).count_ones();
        }
    }
}

#[target_feature(enable = "avx2,popcnt")]
fn count_avx2(lines: &[[u8; LINE]], counts: &mut [u32]) {
    for line in lines {
        // SAFETY: a line has 64 bytes.
        let halves = unsafe {
            [_mm256_loadu_si256(line.as_ptr().cast()), _mm256_loadu_si256(line.as_ptr().add(32).cast())]
        };
        for (symbol, count) in (0i8..).zip(counts.iter_mut()) {
            let is_symbol = |half| _mm256_movemask_epi8(_mm256_cmpeq_epi8(half, _mm256_set1_epi8(symbol)));
            *count += is_symbol(halves[0]).count_ones() + is_symbol(halves[1]).count_ones();
        }
    }
}
