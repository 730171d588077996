//! Mixtures of three probabilities in SSE2 registers. Every machine that this module is compiled for has
//! SSE2. The fourth lane is not used: its input is 0.

use crate::kernels::scalar::mixing::{COMPLEMENT_WIDTH, P_BITS};
use crate::kernels::scalar::mixing::{
    COUNT_BITS, COUNT_MASK, INPUTS, LEARNING_SHIFT, LEAST, MOST, OF_COUNT, WEIGHT_SHIFT, Weights, Word,
};
use core::arch::x86_64::*;

/// As `plain::mixing::PriorLanes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriorLanes {
    log_odds: __m128i,
    unseen: __m128i,
}

impl PriorLanes {
    /// As `plain::mixing::PriorLanes::new`.
    #[inline(always)]
    pub(crate) fn new(log_odds: i32, unseen: Word) -> Self {
        // SAFETY: this module is compiled only where SSE2 is always present; the same holds for the blocks
        // that follow.
        unsafe { Self { log_odds: all(log_odds as u32), unseen: all(unseen) } }
    }
}

/// As `plain::mixing::Mixture`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    known: __m128i,
    inputs: __m128i,
    rates: __m128i,
}

/// As `plain::mixing::weigh`.
#[inline(always)]
pub(crate) fn weigh(words: [Word; INPUTS], prior: PriorLanes, weights: &Weights) -> (Mixture, i32) {
    // SAFETY: this module is compiled only where SSE2 is always present; the same holds for the blocks that
    // follow.
    unsafe { weigh_sse2(words, prior, weights) }
}

/// As `plain::mixing::Change`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change(__m128i);

impl Change {
    /// As `plain::mixing::Change::none`.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        // SAFETY: as above.
        Self(unsafe { all(0) })
    }

    /// As `plain::mixing::Change::apply`.
    #[inline(always)]
    pub(crate) fn apply(self, weights: &mut Weights) {
        // SAFETY: as above.
        unsafe { apply_sse2(self, weights) }
    }
}

impl Mixture {
    /// As `plain::mixing::Mixture::change`.
    #[inline(always)]
    pub(crate) fn change(self, error: i32) -> Change {
        // SAFETY: as above.
        unsafe { change_sse2(self, error) }
    }

    /// As `plain::mixing::Mixture::learn`.
    #[inline(always)]
    pub(crate) fn learn(self, bit: bool) -> [Word; INPUTS] {
        // SAFETY: as above.
        unsafe { learn_sse2(self, bit) }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn weigh_sse2(words: [Word; INPUTS], prior: PriorLanes, weights: &Weights) -> (Mixture, i32) {
    let of_count = lanes(words.map(|word| OF_COUNT[(word & COUNT_MASK) as usize]));
    let words = lanes(words);
    let unseen = _mm_cmpeq_epi32(words, _mm_setzero_si128());
    let known = _mm_or_si128(words, _mm_and_si128(unseen, prior.unseen));
    let p = _mm_srli_epi32::<{ COUNT_BITS as i32 }>(known);
    let below = _mm_and_si128(p, all(!(COMPLEMENT_WIDTH - 1)));
    let complement = _mm_sub_epi32(all((1 << P_BITS) - COMPLEMENT_WIDTH / 2), below);
    let log_odds = _mm_sub_epi32(biased_log(p), biased_log(complement));
    let distance = _mm_sub_epi32(log_odds, prior.log_odds);
    // Sixteen bits hold each factor; the upper halves of the second ones are 0.
    let inputs = _mm_srai_epi32::<8>(_mm_madd_epi16(distance, _mm_and_si128(of_count, all(0xffff))));
    let narrow = _mm_srai_epi32::<{ WEIGHT_SHIFT as i32 }>(load(weights));
    // Both fit sixteen bits.
    let products = _mm_madd_epi16(_mm_packs_epi32(inputs, inputs), _mm_packs_epi32(narrow, narrow));
    let rates = _mm_srli_epi32::<16>(of_count);
    (Mixture { known, inputs, rates }, sum_of_two(products))
}

#[inline]
#[target_feature(enable = "sse2")]
fn apply_sse2(change: Change, weights: &mut Weights) {
    store(weights, _mm_add_epi32(load(weights), change.0));
}

#[inline]
#[target_feature(enable = "sse2")]
fn change_sse2(mixture: Mixture, error: i32) -> Change {
    let change = _mm_madd_epi16(mixture.inputs, all(error as u32 & 0xffff));
    let change = _mm_add_epi32(change, all(1 << (LEARNING_SHIFT - 1)));
    Change(_mm_srai_epi32::<{ LEARNING_SHIFT as i32 }>(change))
}

#[inline]
#[target_feature(enable = "sse2")]
fn learn_sse2(mixture: Mixture, bit: bool) -> [Word; INPUTS] {
    let Mixture { known, rates, .. } = mixture;
    let p = _mm_srli_epi32::<{ COUNT_BITS as i32 }>(known);
    let p = if bit {
        _mm_add_epi32(p, part(_mm_sub_epi32(all(MOST), p), rates))
    } else {
        _mm_sub_epi32(p, part(_mm_sub_epi32(p, all(LEAST)), rates))
    };
    let count = _mm_and_si128(known, all(COUNT_MASK));
    // A true comparison is −1, so subtracting it adds one.
    let count = _mm_sub_epi32(count, _mm_cmpgt_epi32(all(COUNT_MASK), count));
    let learnt = _mm_or_si128(_mm_slli_epi32::<{ COUNT_BITS as i32 }>(p), count);
    [
        _mm_cvtsi128_si32(learnt) as u32,
        _mm_cvtsi128_si32(_mm_shuffle_epi32::<1>(learnt)) as u32,
        _mm_cvtsi128_si32(_mm_shuffle_epi32::<2>(learnt)) as u32,
    ]
}

/// 128 · log₂ of each value, plus a constant: the exponent and seven mantissa digits of the value as a float.
#[inline]
#[target_feature(enable = "sse2")]
fn biased_log(values: __m128i) -> __m128i {
    _mm_srli_epi32::<16>(_mm_castps_si128(_mm_cvtepi32_ps(values)))
}

/// Each value times its share, out of 2¹⁶.
#[inline]
#[target_feature(enable = "sse2")]
fn part(values: __m128i, shares: __m128i) -> __m128i {
    let even = _mm_srli_epi64::<16>(_mm_mul_epu32(values, shares));
    let odd = _mm_mul_epu32(_mm_srli_epi64::<32>(values), _mm_srli_epi64::<32>(shares));
    _mm_or_si128(even, _mm_slli_epi64::<32>(_mm_srli_epi64::<16>(odd)))
}

#[inline]
#[target_feature(enable = "sse2")]
fn sum_of_two(values: __m128i) -> i32 {
    _mm_cvtsi128_si32(_mm_add_epi32(values, _mm_shuffle_epi32::<1>(values)))
}

#[inline]
#[target_feature(enable = "sse2")]
fn all(value: u32) -> __m128i {
    _mm_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "sse2")]
fn lanes([a, b, c]: [u32; INPUTS]) -> __m128i {
    _mm_setr_epi32(a as i32, b as i32, c as i32, 0)
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(weights: &Weights) -> __m128i {
    // SAFETY: four weights, aligned as their type says.
    unsafe { _mm_load_si128(weights.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn store(weights: &mut Weights, values: __m128i) {
    // SAFETY: as above.
    unsafe { _mm_store_si128(weights.0.as_mut_ptr().cast(), values) }
}
