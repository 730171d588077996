//! Adam with decoupled weight decay.

use gradwire::arithmetic::{Loop, vectorised};

use super::moments::{Moments, MomentsConfig, NextMoments};
use super::optimizer::{Optimizer, StateError};
use crate::range::{RangeError, require};

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// How gradients become directions.
    pub moments: MomentsConfig,
    /// Shrinks the parameters, times the rate.
    pub weight_decay: f32,
}

impl Default for AdamWConfig {
    /// The values of the papers; a weight decay of 0.01.
    fn default() -> Self {
        Self { moments: MomentsConfig::default(), weight_decay: 0.01 }
    }
}

/// Adam with decoupled weight decay: [`Moments`] of the mean gradient give a direction, and
///
/// ```text
/// params = params * (1 - rate * weight_decay) - rate * direction
/// ```
///
/// # Source
///
/// Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv:1711.05101, algorithm 2.
#[derive(Clone, Debug)]
pub struct AdamW {
    weight_decay: f32,
    moments: Moments,
}

impl AdamW {
    /// The optimizer of `len` parameters, at rest.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn new(len: usize, config: AdamWConfig) -> Result<Self, RangeError> {
        let AdamWConfig { moments, weight_decay } = config;
        require_decay(weight_decay)?;
        Ok(Self { weight_decay, moments: Moments::new(len, moments)? })
    }
}

pub(super) fn require_decay(weight_decay: f32) -> Result<(), RangeError> {
    require(weight_decay.is_finite() && weight_decay >= 0.0, "weight_decay", weight_decay, "at least 0")
}

/// One step of the moments and of the parameters.
struct Step<'a> {
    params: &'a mut [f32],
    grad: &'a [f32],
    moments: NextMoments<'a>,
    rate: f32,
    weight_decay: f32,
}

impl Loop for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { params, grad, moments: NextMoments { mean, square, law }, rate, weight_decay } = self;
        let shrink = 1.0 - rate * weight_decay;
        for ((param, &g), (mean, square)) in params.iter_mut().zip(grad).zip(mean.iter_mut().zip(square)) {
            *param = *param * shrink - rate * law.direction(g, mean, square);
        }
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32) {
        assert_eq!(params.len(), grad.len(), "lengths of parameters and gradient");
        let weight_decay = self.weight_decay;
        vectorised(Step { params, grad, moments: self.moments.next(grad.len()), rate, weight_decay });
    }

    fn steps(&self) -> u64 {
        self.moments.steps()
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        self.moments.state()
    }

    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        self.moments.restore(steps, state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::moments::Law;
    use super::super::tests::fastest;
    use super::*;

    const MOMENTS: MomentsConfig = MomentsConfig { beta1: 0.5, beta2: 0.75, epsilon: 0.5 };
    const HALVES: AdamWConfig = AdamWConfig { moments: MOMENTS, weight_decay: 0.5 };

    #[test]
    fn steps_are_those_computed_by_hand() {
        let mut adam = AdamW::new(1, HALVES).unwrap();
        let mut params = [1.0];
        // mean 1 / (1 - 0.5) = 2; square 0.25 * 4 / (1 - 0.75) = 4, root 2; params 1 * 0.875 - 0.25 * 2 /
        // 2.5.
        adam.step(&mut params, &[2.0], 0.25);
        assert_eq!(params, [0.875 - 0.25 * (2.0 / 2.5)]);
        assert_eq!(adam.state(), [("mean", &[1.0][..]), ("square", &[1.0][..])]);
        // mean 0.5 * 1 + 0.5 * -1 = 0: only the decay moves the parameter.
        adam.step(&mut params, &[-1.0], 0.25);
        assert_eq!(params, [0.675 * 0.875]);
    }

    #[test]
    fn a_restored_optimizer_goes_on_with_the_same_bits() {
        let mut whole = AdamW::new(1, AdamWConfig::default()).unwrap();
        let mut params = [0.5];
        (0..50).for_each(|n| whole.step(&mut params, &[n as f32 * 0.1 - 2.0], 1e-2));
        let mut resumed = AdamW::new(1, AdamWConfig::default()).unwrap();
        resumed.restore(whole.steps(), &whole.state()).unwrap();
        let mut other = params;
        whole.step(&mut params, &[0.3], 1e-2);
        resumed.step(&mut other, &[0.3], 1e-2);
        assert_eq!(params[0].to_bits(), other[0].to_bits());
    }

    #[test]
    fn an_absurd_step_count_restores_in_no_time() {
        let mut adam = AdamW::new(1, AdamWConfig::default()).unwrap();
        adam.restore(u64::MAX, &[("mean", &[0.0]), ("square", &[0.0])]).unwrap();
        // Halving rounds 3 to 4 and 4 to 4 times the smallest number, so the power need not reach zero.
        let powers = adam.moments.powers;
        assert!(powers.iter().all(|&power| power < 1e-300), "{powers:?}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let with = |moments| AdamWConfig { moments, ..HALVES };
        for (config, key) in [
            (with(MomentsConfig { beta1: 1.0, ..MOMENTS }), "beta1"),
            (with(MomentsConfig { beta2: -0.1, ..MOMENTS }), "beta2"),
            (with(MomentsConfig { epsilon: 0.0, ..MOMENTS }), "epsilon"),
            (AdamWConfig { weight_decay: f32::INFINITY, ..HALVES }, "weight_decay"),
        ] {
            assert_eq!(AdamW::new(1, config).unwrap_err().key, key);
        }
    }

    /// Compares with the same loop as the compiler builds it for every x86-64.
    #[test]
    #[ignore = "measures times"]
    fn how_much_faster_whole_vectors_are() {
        for len in [1 << 12, 1 << 22] {
            let mut buffers = [(); 3].map(|()| vec![0.5_f32; len]);
            let gradient = vec![0.25_f32; len];
            let law = Law { scales: [1.5, 2.5], config: MomentsConfig::default() };
            let mut time = |run: fn(Step<'_>)| {
                let [params, mean, square] = &mut buffers;
                let (grad, rate, weight_decay) = (&gradient[..], 1e-3, 0.01);
                fastest(|| {
                    let moments = NextMoments { mean, square, law };
                    run(Step { params, grad, moments, rate, weight_decay });
                })
            };
            let (plain, wide) = (time(|step| step.run()), time(|step| vectorised(step)));
            println!("AdamW, {len} parameters: {:.2} times as fast", plain / wide);
        }
    }
}
