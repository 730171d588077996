//! Mixtures of three probabilities in NEON registers. Every machine that this module is compiled for has
//! NEON. The fourth lane is not used: its input is 0.

use crate::kernels::scalar::mixing::{COMPLEMENT_WIDTH, P_BITS};
use crate::kernels::scalar::mixing::{
    COUNT_BITS, COUNT_MASK, INPUTS, LEARNING_SHIFT, LEAST, MOST, OF_COUNT, WEIGHT_SHIFT, Weights, Word,
};
use core::arch::aarch64::*;

/// As `plain::mixing::PriorLanes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriorLanes {
    log_odds: int32x4_t,
    unseen: uint32x4_t,
}

impl PriorLanes {
    /// As `plain::mixing::PriorLanes::new`.
    #[inline(always)]
    pub(crate) fn new(log_odds: i32, unseen: Word) -> Self {
        // SAFETY: this module is compiled only where NEON is always present; the same holds for the blocks
        // that follow.
        unsafe { Self { log_odds: vdupq_n_s32(log_odds), unseen: vdupq_n_u32(unseen) } }
    }
}

/// As `plain::mixing::Mixture`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    known: uint32x4_t,
    inputs: int32x4_t,
    rates: uint32x4_t,
}

/// As `plain::mixing::weigh`.
#[inline(always)]
pub(crate) fn weigh(words: [Word; INPUTS], prior: PriorLanes, weights: &Weights) -> (Mixture, i32) {
    // SAFETY: as above.
    unsafe { weigh_neon(words, prior, weights) }
}

/// As `plain::mixing::Change`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change(int32x4_t);

impl Change {
    /// As `plain::mixing::Change::none`.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        // SAFETY: as above.
        Self(unsafe { vdupq_n_s32(0) })
    }

    /// As `plain::mixing::Change::apply`.
    #[inline(always)]
    pub(crate) fn apply(self, weights: &mut Weights) {
        // SAFETY: as above.
        unsafe { apply_neon(self, weights) }
    }
}

impl Mixture {
    /// As `plain::mixing::Mixture::change`.
    #[inline(always)]
    pub(crate) fn change(self, error: i32) -> Change {
        // SAFETY: as above.
        unsafe { change_neon(self, error) }
    }

    /// As `plain::mixing::Mixture::learn`.
    #[inline(always)]
    pub(crate) fn learn(self, bit: bool) -> [Word; INPUTS] {
        // SAFETY: as above.
        unsafe { learn_neon(self, bit) }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn weigh_neon(words: [Word; INPUTS], prior: PriorLanes, weights: &Weights) -> (Mixture, i32) {
    let of_count = lanes(words.map(|word| OF_COUNT[(word & COUNT_MASK) as usize]));
    let words = lanes(words);
    let known = vorrq_u32(words, vandq_u32(vceqzq_u32(words), prior.unseen));
    let p = vshrq_n_u32::<{ COUNT_BITS as i32 }>(known);
    let below = vandq_u32(p, vdupq_n_u32(!(COMPLEMENT_WIDTH - 1)));
    let complement = vsubq_u32(vdupq_n_u32((1 << P_BITS) - COMPLEMENT_WIDTH / 2), below);
    let log_odds = vsubq_s32(biased_log(p), biased_log(complement));
    let confidence = vreinterpretq_s32_u32(vandq_u32(of_count, vdupq_n_u32(0xffff)));
    let inputs = vshrq_n_s32::<8>(vmulq_s32(vsubq_s32(log_odds, prior.log_odds), confidence));
    let narrow = vmovl_s16(vqmovn_s32(vshrq_n_s32::<{ WEIGHT_SHIFT as i32 }>(load(weights))));
    let rates = vshrq_n_u32::<16>(of_count);
    (Mixture { known, inputs, rates }, vaddvq_s32(vmulq_s32(inputs, narrow)))
}

#[inline]
#[target_feature(enable = "neon")]
fn apply_neon(change: Change, weights: &mut Weights) {
    let changed = vaddq_s32(load(weights), change.0);
    // SAFETY: four weights.
    unsafe { vst1q_s32(weights.0.as_mut_ptr(), changed) }
}

#[inline]
#[target_feature(enable = "neon")]
fn change_neon(mixture: Mixture, error: i32) -> Change {
    let change = vmlaq_n_s32(vdupq_n_s32(1 << (LEARNING_SHIFT - 1)), mixture.inputs, error);
    Change(vshrq_n_s32::<{ LEARNING_SHIFT as i32 }>(change))
}

#[inline]
#[target_feature(enable = "neon")]
fn learn_neon(mixture: Mixture, bit: bool) -> [Word; INPUTS] {
    let Mixture { known, rates, .. } = mixture;
    let p = vshrq_n_u32::<{ COUNT_BITS as i32 }>(known);
    let p = if bit {
        vaddq_u32(p, part(vsubq_u32(vdupq_n_u32(MOST), p), rates))
    } else {
        vsubq_u32(p, part(vsubq_u32(p, vdupq_n_u32(LEAST)), rates))
    };
    let most = vdupq_n_u32(COUNT_MASK);
    let count = vandq_u32(known, most);
    // A true comparison is −1, so subtracting it adds one.
    let count = vsubq_u32(count, vcltq_u32(count, most));
    let mut learnt = [0; INPUTS + 1];
    // SAFETY: four words.
    unsafe { vst1q_u32(learnt.as_mut_ptr(), vorrq_u32(vshlq_n_u32::<{ COUNT_BITS as i32 }>(p), count)) };
    let [a, b, c, _] = learnt;
    [a, b, c]
}

/// 128 · log₂ of each value, plus a constant: the exponent and seven mantissa digits of the value as a float.
#[inline]
#[target_feature(enable = "neon")]
fn biased_log(values: uint32x4_t) -> int32x4_t {
    vreinterpretq_s32_u32(vshrq_n_u32::<16>(vreinterpretq_u32_f32(vcvtq_f32_u32(values))))
}

/// Each value times its share, out of 2¹⁶.
#[inline]
#[target_feature(enable = "neon")]
fn part(values: uint32x4_t, shares: uint32x4_t) -> uint32x4_t {
    let low = vmull_u32(vget_low_u32(values), vget_low_u32(shares));
    vshrn_high_n_u64::<16>(vshrn_n_u64::<16>(low), vmull_high_u32(values, shares))
}

#[inline]
#[target_feature(enable = "neon")]
fn lanes([a, b, c]: [u32; INPUTS]) -> uint32x4_t {
    let lanes = [a, b, c, 0];
    // SAFETY: four words.
    unsafe { vld1q_u32(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(weights: &Weights) -> int32x4_t {
    // SAFETY: four weights.
    unsafe { vld1q_s32(weights.0.as_ptr()) }
}
