//! Shares of sixteen symbols in two SSE2 registers. Every machine that this module is compiled for has SSE2.

use crate::kernels::scalar::shares::{SYMBOLS, Shares};
use core::arch::x86_64::*;

/// As `plain::shares::mix`.
#[inline(always)]
pub(crate) fn mix<const N: usize>(base: &Shares, shares: [&Shares; N], weights: [u16; N]) -> Shares {
    // SAFETY: this module is compiled only where SSE2 is always present; the same holds for the blocks that
    // follow.
    unsafe { mix_sse2(base, shares, weights) }
}

/// As `plain::shares::count_up_to`.
#[inline(always)]
pub(crate) fn count_up_to(shares: &Shares, most: u16) -> usize {
    // SAFETY: as above.
    unsafe { count_up_to_sse2(shares, most) }
}

/// As `plain::shares::learn`.
#[inline(always)]
pub(crate) fn learn(shares: &mut Shares, rate: u16, step: u16, symbol: usize) {
    // SAFETY: as above.
    unsafe { learn_sse2(shares, rate, step, symbol) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn mix_sse2<const N: usize>(base: &Shares, shares: [&Shares; N], weights: [u16; N]) -> Shares {
    let mut sums = load(base);
    for (shares, weight) in shares.into_iter().zip(weights) {
        let (halves, weight) = (load(shares), _mm_set1_epi16(weight as i16));
        sums = [0, 1].map(|i| _mm_add_epi16(sums[i], _mm_mulhi_epu16(halves[i], weight)));
    }
    let mut mixed = [0; SYMBOLS];
    store(sums, &mut mixed);
    mixed
}

#[inline]
#[target_feature(enable = "sse2")]
fn count_up_to_sse2(shares: &Shares, most: u16) -> usize {
    let most = _mm_set1_epi16(most as i16);
    let up_to = |half| _mm_cmpeq_epi16(_mm_subs_epu16(half, most), _mm_setzero_si128());
    let [low, high] = load(shares).map(up_to);
    (_mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32).trailing_ones() as usize
}

#[inline]
#[target_feature(enable = "sse2")]
fn learn_sse2(shares: &mut Shares, rate: u16, step: u16, symbol: usize) {
    let [rate, step, symbol] = [rate, step, symbol as u16].map(|value| _mm_set1_epi16(value as i16));
    let numbers = [_mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7), _mm_setr_epi16(8, 9, 10, 11, 12, 13, 14, 15)];
    let halves = load(shares);
    let learnt = [0, 1].map(|i| {
        let left = _mm_sub_epi16(halves[i], _mm_mulhi_epu16(halves[i], rate));
        _mm_add_epi16(left, _mm_and_si128(_mm_cmpgt_epi16(numbers[i], symbol), step))
    });
    store(learnt, shares);
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(shares: &Shares) -> [__m128i; 2] {
    let at = shares.as_ptr();
    // SAFETY: eight shares each, which may have any alignment.
    [0, 8].map(|first| unsafe { _mm_loadu_si128(at.add(first).cast()) })
}

#[inline]
#[target_feature(enable = "sse2")]
fn store(halves: [__m128i; 2], shares: &mut Shares) {
    for (half, shares) in halves.into_iter().zip(shares.as_chunks_mut::<8>().0) {
        // SAFETY: eight shares, which may have any alignment.
        unsafe { _mm_storeu_si128(shares.as_mut_ptr().cast(), half) }
    }
}
