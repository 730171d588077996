//! Several adaptive probabilities of one decision, mixed by weights that learn.
//!
//! # Source
//! Mahoney: Adaptive weighing of context models for lossless data compression (CS-2005-16), equations 1 to 3.
//! Here each model contributes its distance from a common prior, so a model that has seen nothing contributes
//! nothing.

use super::logistic::probability;
use super::range::BitCoder;
use crate::kernels::mixing::{Change, PriorLanes, weigh};
pub(crate) use crate::kernels::scalar::mixing::Word;
use crate::kernels::scalar::mixing::{
    COUNT_BITS, INPUTS, P_BITS, WEIGHT_BITS, WEIGHT_SHIFT, Weights, updated,
};
use core::hint::select_unpredictable;

/// The largest probability of a decision, out of 2¹⁶, so that every entry costs something.
const MOST_LIKELY: u32 = (1 << 16) - 96;

/// Sets of weights, and a change to one of them that is not applied yet. Each decision uses the weights as
/// they were one decision ago, so that it does not wait for the decision before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LearningWeights<const SETS: usize> {
    sets: [Weights; SETS],
    due: (usize, Change),
}

impl<const SETS: usize> Default for LearningWeights<SETS> {
    fn default() -> Self {
        Self { sets: [Weights::default(); SETS], due: (0, Change::none()) }
    }
}

impl<const SETS: usize> LearningWeights<SETS> {
    #[inline(always)]
    fn settle(&mut self) {
        let (set, change) = self.due;
        change.apply(&mut self.sets[set % SETS]);
    }
}

/// The expectation for a decision before any model contributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prior {
    log_odds: i32,
    lanes: PriorLanes,
}

impl Prior {
    /// For the odds of a 1, given as their logarithm in 128ths.
    #[inline(always)]
    pub(crate) fn new(log_odds: i32) -> Self {
        let log_odds = log_odds.clamp(-2047, 2047);
        let unseen = probability(log_odds) << (P_BITS - 16 + COUNT_BITS);
        Self { log_odds, lanes: PriorLanes::new(log_odds, unseen) }
    }
}

/// Codes a decision under the mixture of the words with these numbers, and updates the words and the weights
/// with its result.
///
/// # Panics
/// When a number is not below `N`.
#[inline(always)]
pub(crate) fn decide<const N: usize, const SETS: usize>(
    coder: &mut impl BitCoder,
    prior: Prior,
    words: &mut [Word; N],
    numbers: [usize; INPUTS],
    weights: &mut LearningWeights<SETS>,
    set: usize,
    bit: bool,
) -> bool {
    let (mixture, sum) = weigh(numbers.map(|number| words[number]), prior.lanes, &weights.sets[set % SETS]);
    weights.settle();
    let p = probability(prior.log_odds + (sum >> (WEIGHT_BITS - WEIGHT_SHIFT)));
    coder.bit_then(p.min(MOST_LIKELY), bit, |bit| {
        let error = (i32::from(bit) << 16) - p as i32;
        weights.due = (set % SETS, mixture.change(error >> 1));
        let learnt = mixture.learn(bit);
        numbers.into_iter().zip(learnt).for_each(|(number, learnt)| words[number] = learnt);
        bit
    })
}

/// A word with P(1) = `p` / 2¹⁶ that counts as updated `updates` times.
pub(crate) fn seen(p: u32, updates: u32) -> Word {
    p << (P_BITS - 16 + COUNT_BITS) | updates
}

/// Codes a decision under one word, and updates the word with its result.
#[inline]
pub(crate) fn decide_alone(coder: &mut impl BitCoder, word: &mut Word, bit: bool) -> bool {
    let p = *word >> (P_BITS - 16 + COUNT_BITS);
    let bit = coder.bit(p.min(MOST_LIKELY), bit);
    *word = updated(*word, bit);
    bit
}

/// The same for a decision that is about as likely as not.
#[inline]
pub(crate) fn decide_even(coder: &mut impl BitCoder, word: &mut Word, bit: bool) -> bool {
    let p = *word >> (P_BITS - 16 + COUNT_BITS);
    let bit = coder.even_bit(p.min(MOST_LIKELY), bit);
    *word = select_unpredictable(bit, updated(*word, true), updated(*word, false));
    bit
}
