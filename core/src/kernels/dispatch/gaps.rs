//! Positions and the gaps between them.

use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::gaps as scalar;
use crate::kernels::scalar::gaps::{ONES, TURN};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::gaps as x86_64;

/// Finds the ones of `plane` from bit `start` on, until it has found `wanted` of them, which is at most
/// [`TURN`]. Writes their places, counted from `start`, to the front of `out`. Returns how many it found:
/// more than `wanted` if the last word holds more, and fewer if the plane ends or the next word is 2³² bits
/// away.
pub(crate) fn ones(isa: Isa, plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    debug_assert!(wanted <= TURN, "{wanted} ones at once");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::ones(plane, start, wanted, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::ones_with_avx2(plane, start, wanted, out),
        _ => scalar::ones(plane, start, wanted, out),
    }
}

compile_for_each_isa! {
    /// The gaps before ascending positions; the first gap is counted from `next`.
    pub(crate) fn gaps(isa, positions: &[u32], next: u32, gaps: &mut [u32]) = scalar::gaps;
}

/// The positions of entries, modulo 2³²; the first gap is counted from `next`. The entries are in blocks of
/// equal size, each with its Rice parameter r ≤ 31. The ones give the high parts of the gaps (see [`ones`]),
/// and the fields of r bits from bit `first_bit` of `lows` on give the low parts. Returns the sum of these
/// fields.
pub(crate) fn positions(
    isa: Isa,
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    blocks: (usize, &[u32]),
    next: u32,
    out: &mut [u32],
) -> u64 {
    debug_assert!(ones.len() <= TURN && ones.len() == out.len(), "{} ones at once", ones.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::positions(ones, lows, first_bit, blocks, next, out),
        _ => positions_by_words(isa, ones, lows, first_bit, blocks, next, out),
    }
}

compile_for_each_isa! {
    fn positions_by_words(isa, ones: &[u32], lows: &[u8], first_bit: u64, blocks: (usize, &[u32]), next: u32, out: &mut [u32]) -> u64 = scalar::positions;
}
