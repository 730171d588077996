//! Shares of sixteen symbols in two NEON registers. Every machine that this module is compiled for has NEON.

use crate::kernels::scalar::shares::{SYMBOLS, Shares};
use core::arch::aarch64::*;

/// As `plain::shares::mix`.
#[inline(always)]
pub(crate) fn mix<const N: usize>(base: &Shares, shares: [&Shares; N], weights: [u16; N]) -> Shares {
    // SAFETY: this module is compiled only where NEON is always present; the same holds for the blocks that
    // follow.
    unsafe { mix_neon(base, shares, weights) }
}

/// As `plain::shares::count_up_to`.
#[inline(always)]
pub(crate) fn count_up_to(shares: &Shares, most: u16) -> usize {
    // SAFETY: as above.
    unsafe { count_up_to_neon(shares, most) }
}

/// As `plain::shares::learn`.
#[inline(always)]
pub(crate) fn learn(shares: &mut Shares, rate: u16, step: u16, symbol: usize) {
    // SAFETY: as above.
    unsafe { learn_neon(shares, rate, step, symbol) }
}

#[inline]
#[target_feature(enable = "neon")]
fn mix_neon<const N: usize>(base: &Shares, shares: [&Shares; N], weights: [u16; N]) -> Shares {
    let mut sums = load(base);
    for (shares, weight) in shares.into_iter().zip(weights) {
        let halves = load(shares);
        sums = [0, 1].map(|i| vaddq_u16(sums[i], part(halves[i], weight)));
    }
    let mut mixed = [0; SYMBOLS];
    store(sums, &mut mixed);
    mixed
}

#[inline]
#[target_feature(enable = "neon")]
fn count_up_to_neon(shares: &Shares, most: u16) -> usize {
    let most = vdupq_n_u16(most);
    let [low, high] = load(shares).map(|half| vshrq_n_u16::<15>(vcleq_u16(half, most)));
    usize::from(vaddvq_u16(vaddq_u16(low, high)))
}

#[inline]
#[target_feature(enable = "neon")]
fn learn_neon(shares: &mut Shares, rate: u16, step: u16, symbol: usize) {
    const NUMBERS: Shares = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let (numbers, halves) = (load(&NUMBERS), load(shares));
    let (step, symbol) = (vdupq_n_u16(step), vdupq_n_u16(symbol as u16));
    let learnt = [0, 1].map(|i| {
        let left = vsubq_u16(halves[i], part(halves[i], rate));
        vaddq_u16(left, vandq_u16(vcgtq_u16(numbers[i], symbol), step))
    });
    store(learnt, shares);
}

/// Each share times the weight, out of 2¹⁶.
#[inline]
#[target_feature(enable = "neon")]
fn part(shares: uint16x8_t, weight: u16) -> uint16x8_t {
    let weight = vdupq_n_u16(weight);
    let low = vmull_u16(vget_low_u16(shares), vget_low_u16(weight));
    vshrn_high_n_u32::<16>(vshrn_n_u32::<16>(low), vmull_high_u16(shares, weight))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(shares: &Shares) -> [uint16x8_t; 2] {
    let at = shares.as_ptr();
    // SAFETY: eight shares each.
    [0, 8].map(|first| unsafe { vld1q_u16(at.add(first)) })
}

#[inline]
#[target_feature(enable = "neon")]
fn store(halves: [uint16x8_t; 2], shares: &mut Shares) {
    for (half, shares) in halves.into_iter().zip(shares.as_chunks_mut::<8>().0) {
        // SAFETY: eight shares.
        unsafe { vst1q_u16(shares.as_mut_ptr(), half) }
    }
}
