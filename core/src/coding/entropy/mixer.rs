//! Several adaptive probabilities of one decision, mixed by weights that learn.
//!
//! # Source
//! Mahoney: Adaptive weighing of context models for lossless data compression (CS-2005-16), equations 1 to 3. Here what is
//! mixed is how far each model is from a common prior, so that a model that has seen nothing says nothing.

use super::logistic::{P_BITS, probability};
use super::range::BitCoder;
use crate::kernels::mixing::{Change, PriorLanes, weigh};

/// Probabilities that are mixed.
pub(crate) const INPUTS: usize = 3;

/// A word holds P(1) in 22 bits, and below them in ten how often it was updated; 0 has not been.
pub(crate) type Word = u32;
pub(crate) const COUNT_BITS: u32 = 10;
pub(crate) const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// What updates move probabilities towards is this far from 0 and 1, out of 2²².
pub(crate) const LEAST: u32 = 64;
pub(crate) const MOST: u32 = (1 << P_BITS) - LEAST;

/// What follows from how often a word was updated: in the upper half by how much of the way an update moves its probability
/// towards what came, out of 2¹⁶: 1 / (count + 1.6); in the lower half how much it counts, out of 2⁸: count / (count + 1.5).
pub(crate) static OF_COUNT: [u32; 1 << COUNT_BITS] = {
    let mut of_count = [0; 1 << COUNT_BITS];
    let mut count = 0;
    while count < of_count.len() as u32 {
        let (rate, confidence) = (655_360 / (10 * count + 16), 512 * count / (2 * count + 3));
        of_count[count as usize] = rate << 16 | confidence;
        count += 1;
    }
    of_count
};

/// Weights have this many binary places, and begin at 0.35. In products they have fewer, so that sixteen bits hold them.
const WEIGHT_BITS: u32 = 20;
const FIRST_WEIGHT: i32 = 367_002;
pub(crate) const WEIGHT_SHIFT: u32 = 6;

/// How many binary places less an error times a logarithm has than the change of a weight that it causes; errors are halved
/// first, so that sixteen bits hold them.
pub(crate) const LEARNING_SHIFT: u32 = 10;

/// The largest probability of a decision, out of 2¹⁶, so that every entry costs something.
const MOST_LIKELY: u32 = (1 << 16) - 96;

/// One weight for each input, and one more that makes a vector full.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub(crate) struct Weights(pub(crate) [i32; INPUTS + 1]);

impl Default for Weights {
    fn default() -> Self {
        Self([FIRST_WEIGHT; INPUTS + 1])
    }
}

/// Sets of weights, and a change of one of them that is still due: each decision goes by weights as they were one decision ago, so
/// that it does not wait for the one before it.
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

/// What a decision is expected to be before any model is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prior {
    log_odds: i32,
    lanes: PriorLanes,
}

impl Prior {
    /// For odds of 1 whose logarithm is given in 128ths.
    #[inline(always)]
    pub(crate) fn new(log_odds: i32) -> Self {
        let log_odds = log_odds.clamp(-2047, 2047);
        let unseen = probability(log_odds) << (P_BITS - 16 + COUNT_BITS);
        Self { log_odds, lanes: PriorLanes::new(log_odds, unseen) }
    }
}

/// Codes a decision under the mixture of the words of these numbers, and teaches them and the weights what came.
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

/// A word that was updated so often and has P(1) = `p` / 2¹⁶.
pub(crate) fn seen(p: u32, updates: u32) -> Word {
    p << (P_BITS - 16 + COUNT_BITS) | updates
}

/// Codes a decision under one word, and teaches it what came.
#[inline]
pub(crate) fn decide_alone(coder: &mut impl BitCoder, word: &mut Word, bit: bool) -> bool {
    let p = *word >> (P_BITS - 16 + COUNT_BITS);
    let bit = coder.bit(p.min(MOST_LIKELY), bit);
    *word = updated(*word, bit);
    bit
}

/// The word, one decision later.
#[inline(always)]
pub(crate) fn updated(word: Word, bit: bool) -> Word {
    let (p, count) = (word >> COUNT_BITS, word & COUNT_MASK);
    let rate = u64::from(OF_COUNT[count as usize] >> 16);
    let step = |way: u32| ((u64::from(way) * rate) >> 16) as u32;
    let p = if bit { p + step(MOST - p) } else { p - step(p - LEAST) };
    p << COUNT_BITS | (count + u32::from(count < COUNT_MASK))
}
