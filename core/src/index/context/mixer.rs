//! Several adaptive probabilities of one decision, mixed by weights that learn.
//!
//! # Source
//! Mahoney: Adaptive weighing of context models for lossless data compression (CS-2005-16), equations 1 to 3. Here what is
//! mixed is how far each model is from a common prior, so that a model that has seen nothing says nothing.

use super::logistic::{P_BITS, log_odds, probability};
use crate::entropy::range::BitCoder;

/// Probabilities that are mixed.
pub(super) const INPUTS: usize = 3;

/// A word holds P(1) in 22 bits, and below them in ten how often it was updated; 0 has not been.
pub(super) type Word = u32;
const COUNT_BITS: u32 = 10;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// What updates move probabilities towards is this far from 0 and 1, out of 2²².
const LEAST: u32 = 64;

/// By how much of the way an update moves a probability towards what came, out of 2¹⁶: 1 / (count + 1.6).
const RATE: [u16; 1 << COUNT_BITS] = {
    let mut rate = [0; 1 << COUNT_BITS];
    let mut count = 0;
    while count < rate.len() {
        rate[count] = (655_360 / (10 * count + 16)) as u16;
        count += 1;
    }
    rate
};

/// How much a probability counts that was updated so often, out of 2⁸: count / (count + 1.5).
const CONFIDENCE: [u16; 1 << COUNT_BITS] = {
    let mut confidence = [0; 1 << COUNT_BITS];
    let mut count = 0;
    while count < confidence.len() {
        confidence[count] = (512 * count / (2 * count + 3)) as u16;
        count += 1;
    }
    confidence
};

/// Weights have this many binary places, and begin at 0.35.
const WEIGHT_BITS: u32 = 20;
const FIRST_WEIGHT: i32 = 367_002;

/// How many binary places less an error times a logarithm has than the change of a weight that it causes.
const LEARNING_SHIFT: u32 = 11;

/// The largest probability of a decision, out of 2¹⁶, so that every entry costs something.
const MOST: u32 = (1 << 16) - 96;

/// One weight for each input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights([i32; INPUTS]);

impl Default for Weights {
    fn default() -> Self {
        Self([FIRST_WEIGHT; INPUTS])
    }
}

/// What a decision is expected to be before any model is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    log_odds: i32,
    word: Word,
}

impl Prior {
    /// For odds of 1 whose logarithm is given in 128ths.
    pub(super) fn new(log_odds: i32) -> Self {
        let log_odds = log_odds.clamp(-2047, 2047);
        Self { log_odds, word: probability(log_odds) << (P_BITS - 16 + COUNT_BITS) }
    }
}

/// Codes a decision under the mixture of `words`, and teaches them and the weights what came.
#[inline(always)]
pub(super) fn decide(
    coder: &mut impl BitCoder,
    prior: Prior,
    words: [&mut Word; INPUTS],
    weights: &mut Weights,
    bit: bool,
) -> bool {
    let known = words.each_ref().map(|word| if **word == 0 { prior.word } else { **word });
    let inputs = known.map(|word| distance(word, prior));
    let weighted = |(weight, input): (i32, i32)| i64::from(weight) * i64::from(input);
    let sum: i64 = weights.0.into_iter().zip(inputs).map(weighted).sum();
    let p = probability(prior.log_odds + (sum >> WEIGHT_BITS) as i32);
    coder.bit_then(p.min(MOST), bit, |bit| {
        let error = (i32::from(bit) << 16) - p as i32;
        for (weight, input) in weights.0.iter_mut().zip(inputs) {
            let change = (error * input + (1 << (LEARNING_SHIFT - 1))) >> LEARNING_SHIFT;
            *weight = weight.wrapping_add(change);
        }
        for (word, known) in words.into_iter().zip(known) {
            *word = updated(known, bit);
        }
        bit
    })
}

/// How far the logarithm of the odds is from the prior's, as far as the word is to be trusted.
#[inline(always)]
fn distance(word: Word, prior: Prior) -> i32 {
    let confidence = CONFIDENCE[(word & COUNT_MASK) as usize];
    ((log_odds(word >> COUNT_BITS) - prior.log_odds) * i32::from(confidence)) >> 8
}

/// A word that was updated so often and has P(1) = `p` / 2¹⁶.
pub(super) fn seen(p: u32, updates: u32) -> Word {
    p << (P_BITS - 16 + COUNT_BITS) | updates
}

/// Codes a decision under one word, and teaches it what came.
#[inline]
pub(super) fn decide_alone(coder: &mut impl BitCoder, word: &mut Word, bit: bool) -> bool {
    let p = *word >> (P_BITS - 16 + COUNT_BITS);
    let bit = coder.bit(p.min(MOST), bit);
    *word = updated(*word, bit);
    bit
}

/// The word, one decision later.
#[inline(always)]
fn updated(word: Word, bit: bool) -> Word {
    let (p, count) = ((word >> COUNT_BITS) as i32, word & COUNT_MASK);
    let target = if bit { (1 << P_BITS) - LEAST } else { LEAST } as i32;
    let step = (i64::from(target - p) * i64::from(RATE[count as usize])) >> 16;
    ((p + step as i32) as u32) << COUNT_BITS | (count + u32::from(count < COUNT_MASK))
}
