//! Adaptive probabilities of decisions, and how several of them become one.

use super::range::BitCoder;

/// Number of decisions in a context.
pub(crate) const DECISIONS: usize = 16;

/// The decisions of one context.
pub(crate) type Context = [u32; DECISIONS];

/// A word holds P(1) in 16 bits, and in the four bits below them how often it was updated.
pub(crate) const COUNT_BITS: u32 = 4;
pub(crate) const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// The part of the way to the result, out of 2¹⁵, by which an update moves a probability: 1 / (count + 1.6),
/// and 1/24 for the last count.
const RATE: [i32; 16] = {
    let mut rate = [32_768 / 24; 16];
    let mut count = 0;
    while count < 15 {
        rate[count] = 327_680 / (10 * count as i32 + 16);
        count += 1;
    }
    rate
};

/// How much a probability counts after this many updates: 32 · count / (count + 2).
const CONFIDENCE: [u32; 16] = {
    let mut confidence = [0; 16];
    let mut count = 0;
    while count < 16 {
        confidence[count] = (32 * count as u32 + (count as u32 + 2) / 2) / (count as u32 + 2);
        count += 1;
    }
    confidence
};

/// The probability, out of 2¹⁶, of a decision that is as likely 1 as 0.
pub(crate) const EVEN: u32 = 1 << 15;

/// The probabilities, out of 2¹⁶, towards which updates move: this one after a 0, the next after a 1.
const LEAST: i32 = 96;
const MOST: i32 = (1 << 16) - LEAST;

/// Codes a decision under the average of the probabilities of some contexts, weighted by `weights` and by how
/// much each has seen, and updates them. At least one context must have seen something.
#[inline(always)]
pub(crate) fn decide<const N: usize>(
    coder: &mut impl BitCoder,
    contexts: &mut [&mut Context; N],
    weights: [u32; N],
    number: usize,
    bit: bool,
) -> bool {
    let number = number % DECISIONS;
    let words = contexts.each_ref().map(|context| context[number]);
    let bit = coder.bit(average(words, weights), bit);
    contexts.iter_mut().zip(words).for_each(|(context, word)| context[number] = updated(word, bit));
    bit
}

/// The same for two contexts with weights of 1, which usually have reached the end of their count. `code`
/// codes the decision under the probability that it gets.
#[inline(always)]
pub(crate) fn decide_between(
    contexts: &mut [&mut Context; 2],
    number: usize,
    code: impl FnOnce(u32) -> bool,
) -> bool {
    let number = number % DECISIONS;
    let words = contexts.each_ref().map(|context| context[number]);
    if words[0] & words[1] & COUNT_MASK != COUNT_MASK {
        let bit = code(average(words, [1, 1]));
        contexts.iter_mut().zip(words).for_each(|(context, word)| context[number] = updated(word, bit));
        return bit;
    }
    // Equal weights cancel, and all rates are the last.
    let bit = code(((words[0] >> COUNT_BITS) + (words[1] >> COUNT_BITS)) >> 1);
    for (context, word) in contexts.iter_mut().zip(words) {
        context[number] = moved(word, bit, RATE[COUNT_MASK as usize]) << COUNT_BITS | COUNT_MASK;
    }
    bit
}

/// The average of the probabilities of some words.
#[inline(always)]
fn average<const N: usize>(words: [u32; N], weights: [u32; N]) -> u32 {
    let (mut sum, mut total) = (0, 0);
    for (word, weight) in words.into_iter().zip(weights) {
        let confidence = weight * CONFIDENCE[(word & COUNT_MASK) as usize];
        sum += confidence * (word >> COUNT_BITS);
        total += confidence;
    }
    quotient(sum, total)
}

/// `dividend / divisor` for a divisor in 2 … 127 and a quotient below 2¹⁶; confidences are above 1.
#[inline]
fn quotient(dividend: u32, divisor: u32) -> u32 {
    ((u64::from(dividend) * u64::from(RECIPROCAL[divisor as usize % RECIPROCAL.len()])) >> 32) as u32
}

/// 2³² / divisor, rounded up: exact quotients as long as dividend · divisor stays below 2³².
const RECIPROCAL: [u32; 128] = {
    let mut reciprocal = [u32::MAX; 128];
    let mut divisor = 2;
    while divisor < 128 {
        reciprocal[divisor] = u32::MAX / divisor as u32 + 1;
        divisor += 1;
    }
    reciprocal
};

/// The word after a decision whose result was `bit`.
#[inline]
fn updated(word: u32, bit: bool) -> u32 {
    let count = word & COUNT_MASK;
    moved(word, bit, RATE[count as usize]) << COUNT_BITS | (count + 1).min(COUNT_MASK)
}

/// The probability of a word, moved at a rate.
#[inline(always)]
fn moved(word: u32, bit: bool, rate: i32) -> u32 {
    let before = (word >> COUNT_BITS) as i32;
    let target = if bit { MOST } else { LEAST };
    (before + (((target - before) * rate) >> 15)) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::kernels::scalar::shares::Shares;
    use std::vec::Vec;

    /// Records each probability and its decision.
    struct Told(Vec<(u32, bool)>);

    impl BitCoder for Told {
        fn bit(&mut self, p: u32, bit: bool) -> bool {
            self.0.push((p, bit));
            bit
        }

        fn field(&mut self, _: u32, value: u32) -> u32 {
            value
        }

        fn symbol(&mut self, _: &Shares, symbol: usize) -> usize {
            symbol
        }
    }

    #[test]
    fn decisions_between_two_contexts_are_those_of_equal_weights() {
        let mut contexts = [[[EVEN << COUNT_BITS | 2; DECISIONS], [40_000 << COUNT_BITS | 9; DECISIONS]]; 2];
        let (mut expected, mut told) = (Told(Vec::new()), Told(Vec::new()));
        let mut state = 1u32;
        for _ in 0..3000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (number, bit) = ((state >> 28) as usize, state >> 12 & 0xff < 16 * (state >> 28));
            let [[a, b], [c, d]] = &mut contexts;
            decide(&mut expected, &mut [a, b], [1, 1], number, bit);
            decide_between(&mut [c, d], number, |p| told.bit(p, bit));
            assert_eq!(contexts[0], contexts[1]);
        }
        assert_eq!(told.0, expected.0);
        assert!(contexts[0].iter().flatten().all(|word| word & COUNT_MASK == COUNT_MASK));
    }

    #[test]
    fn quotients_are_exact() {
        for divisor in 2..=28 * 4 {
            for quotient_ in (0..1 << 16).step_by(97).chain([65_535]) {
                for rest in [0, divisor - 1] {
                    let dividend = (quotient_ * divisor + rest).min(65_535 * divisor);
                    assert_eq!(quotient(dividend, divisor), dividend / divisor);
                }
            }
        }
    }
}
