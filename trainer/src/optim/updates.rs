//! Parameters that move by the mean of updates, which each worker made of its own gradient.

use gradwire::arithmetic::{Loop, vectorised};

use super::adamw::require_decay;
use super::optimizer::{Optimizer, StateError, only};
use crate::range::RangeError;

/// The half of AdamW that follows the exchange, if what workers exchange are directions instead of gradients:
///
/// ```text
/// before, at each worker:  direction = moments of its own gradient
/// exchange:                mean = mean over the workers of what they sent of residual + direction
/// here:                    params = params * (1 - rate * weight_decay) - rate * mean
/// ```
///
/// What a compressor keeps back and sends later enters the parameters linearly, so nothing of it is lost; and
/// the second moment sees gradients, not the spikes of a sparse mean.
///
/// # Source
///
/// Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", arXiv:2508.15706, with one local
/// step, a residual that does not decay, and a mean over all workers instead of those that sent a coordinate.
#[derive(Clone, Debug)]
pub struct Updates {
    weight_decay: f32,
    len: usize,
    steps: u64,
}

impl Updates {
    /// The optimizer of `len` parameters. It has no state.
    ///
    /// # Errors
    ///
    /// If the weight decay is out of range.
    pub fn new(len: usize, weight_decay: f32) -> Result<Self, RangeError> {
        require_decay(weight_decay)?;
        Ok(Self { weight_decay, len, steps: 0 })
    }
}

/// Moves the parameters along a direction, and shrinks them.
pub(super) fn advance(params: &mut [f32], mean: &[f32], rate: f32, weight_decay: f32) {
    vectorised(Step { params, mean, rate, weight_decay });
}

/// One step of the parameters.
struct Step<'a> {
    params: &'a mut [f32],
    mean: &'a [f32],
    rate: f32,
    weight_decay: f32,
}

impl Loop for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { params, mean, rate, weight_decay } = self;
        let shrink = 1.0 - rate * weight_decay;
        params.iter_mut().zip(mean).for_each(|(param, &mean)| *param = *param * shrink - rate * mean);
    }
}

impl Optimizer for Updates {
    fn step(&mut self, params: &mut [f32], mean: &[f32], rate: f32) {
        assert_eq!((params.len(), mean.len()), (self.len, self.len), "lengths of parameters and mean");
        self.steps += 1;
        advance(params, mean, rate, self.weight_decay);
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        Vec::new()
    }

    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        only(&[], state)?;
        self.steps = steps;
        Ok(())
    }
}
