//! What a mixture of three probabilities weighs, and what it learns.

use crate::coding::entropy::logistic::{COMPLEMENT_WIDTH, P_BITS, log};
use crate::coding::entropy::mixer::{
    COUNT_BITS, COUNT_MASK, INPUTS, LEARNING_SHIFT, OF_COUNT, WEIGHT_SHIFT, Weights, Word, updated,
};

/// The logarithm of the odds that are expected, and what stands for a word that was never updated.
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

/// The words of a decision, and how far each is from the prior as far as it is to be trusted.
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

/// By how much weights change.
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
    /// How weights change by half an error, out of 2¹⁵.
    #[inline(always)]
    pub(crate) fn change(self, error: i32) -> Change {
        let half = 1 << (LEARNING_SHIFT - 1);
        Change(self.inputs.map(|input| (error * input + half) >> LEARNING_SHIFT))
    }

    /// The words behind a decision that came out as `bit`.
    #[inline(always)]
    pub(crate) fn learn(self, bit: bool) -> [Word; INPUTS] {
        self.known.map(|word| updated(word, bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::entropy::mixer::{LEAST, MOST};
    use crate::kernels::mixing as here;
    use proptest::prelude::*;

    /// Words that were updated, and one that never was.
    fn word() -> impl Strategy<Value = Word> {
        let p = prop_oneof![LEAST..=MOST, LEAST..LEAST + 5000, MOST - 5000..=MOST];
        let seen = (p, 1..=COUNT_MASK).prop_map(|(p, count)| p << COUNT_BITS | count);
        prop_oneof![8 => seen, 1 => Just(0)]
    }

    proptest! {
        #[test]
        fn vectors_do_what_the_plain_loops_do(
            words in [word(), word(), word()],
            unseen in LEAST..=MOST,
            log_odds in -2047..=2047,
            weights in prop_oneof![any::<[i32; 4]>(), [-3_000_000..3_000_000, -99..99, 0..9, 367_002..367_003]],
            error in -32_768..=32_767,
            bit in any::<bool>(),
        ) {
            prop_assert!(unseen < 1 << P_BITS);
            let mut weights = [Weights(weights); 2];
            let unseen = unseen << COUNT_BITS;
            let (here, its_sum) = here::weigh(words, here::PriorLanes::new(log_odds, unseen), &weights[0]);
            let (plain, sum) = weigh(words, PriorLanes::new(log_odds, unseen), &weights[1]);
            prop_assert_eq!(its_sum, sum);
            here::Change::none().apply(&mut weights[0]);
            here.change(error).apply(&mut weights[0]);
            Change::none().apply(&mut weights[1]);
            plain.change(error).apply(&mut weights[1]);
            prop_assert_eq!(&weights[0].0[..INPUTS], &weights[1].0[..INPUTS]);
            prop_assert_eq!(here.learn(bit), plain.learn(bit));
        }
    }

    #[test]
    fn the_odds_of_a_probability_are_those_of_its_digits() {
        for p in (1..1 << P_BITS).step_by(61).chain([1, 64, (1 << P_BITS) - 1]) {
            let complement = (1 << P_BITS) - (p & !4095 | 2048);
            assert_eq!(log_odds(p), log(p) - log(complement));
        }
    }
}
