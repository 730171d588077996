//! Weighs a mixture of three probabilities, and updates it.

use crate::kernels::scalar::mixing::{COMPLEMENT_WIDTH, P_BITS, log};
use crate::kernels::scalar::mixing::{
    COUNT_BITS, COUNT_MASK, INPUTS, LEARNING_SHIFT, OF_COUNT, WEIGHT_SHIFT, Weights, Word, updated,
};

/// The logarithm of the expected odds, and the value of a word that was never updated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriorLanes {
    log_odds: i32,
    unseen: Word,
}

impl PriorLanes {
    #[inline(always)]
    pub(crate) fn new(log_odds: i32, unseen: Word) -> Self {
        Self { log_odds, unseen }
    }
}

/// The words of a decision, and the distance of each from the prior, weighted by how far the word is to be
/// trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    known: [Word; INPUTS],
    inputs: [i32; INPUTS],
}

/// The mixture, and the weighted sum of its inputs.
#[inline(always)]
pub(crate) fn weigh(words: [Word; INPUTS], prior: PriorLanes, weights: &Weights) -> (Mixture, i32) {
    let known = words.map(|word| if word == 0 { prior.unseen } else { word });
    let inputs = known.map(|word| {
        let confidence = OF_COUNT[(word & COUNT_MASK) as usize] & 0xffff;
        ((log_odds(word >> COUNT_BITS) - prior.log_odds) * confidence as i32) >> 8
    });
    let narrow = |weight: i32| (weight >> WEIGHT_SHIFT).clamp(i16::MIN.into(), i16::MAX.into());
    let sum = weights.0.into_iter().zip(inputs).map(|(weight, input)| narrow(weight) * input).sum();
    (Mixture { known, inputs }, sum)
}

/// The change of each weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change([i32; INPUTS]);

impl Change {
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Self([0; INPUTS])
    }

    #[inline(always)]
    pub(crate) fn apply(self, weights: &mut Weights) {
        weights.0.iter_mut().zip(self.0).for_each(|(weight, change)| *weight = weight.wrapping_add(change));
    }
}

/// 128 · log₂ of the odds of a probability of 0 < `p` < 2²² out of 2²².
#[inline(always)]
fn log_odds(p: u32) -> i32 {
    let below = p & !(COMPLEMENT_WIDTH - 1);
    log(p) - log((1 << P_BITS) - below - COMPLEMENT_WIDTH / 2)
}

impl Mixture {
    /// The change of the weights for half an error, out of 2¹⁵.
    #[inline(always)]
    pub(crate) fn change(self, error: i32) -> Change {
        let half = 1 << (LEARNING_SHIFT - 1);
        Change(self.inputs.map(|input| (error * input + half) >> LEARNING_SHIFT))
    }

    /// The words after a decision whose result was `bit`.
    #[inline(always)]
    pub(crate) fn learn(self, bit: bool) -> [Word; INPUTS] {
        self.known.map(|word| updated(word, bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odds_of_a_probability_are_those_of_its_digits() {
        for p in (1..1 << P_BITS).step_by(61).chain([1, 64, (1 << P_BITS) - 1]) {
            let complement = (1 << P_BITS) - (p & !4095 | 2048);
            assert_eq!(log_odds(p), log(p) - log(complement));
        }
    }
}
