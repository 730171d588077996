//! Adam with decoupled weight decay.

use gradwire::arithmetic::{Loop, vectorised};

use super::{Optimizer, StateError, only, saved};
use crate::range::{RangeError, require};

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Share of the mean gradient that is kept: at least 0, below 1.
    pub beta1: f32,
    /// Share of the mean square that is kept: at least 0, below 1.
    pub beta2: f32,
    /// Keeps the step finite where gradients vanish.
    pub epsilon: f32,
    /// Shrinks the parameters, times the rate.
    pub weight_decay: f32,
}

impl Default for AdamWConfig {
    /// The values of the paper: 0.9, 0.999, 1e-8, 0.01.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// Adam with decoupled weight decay.
///
/// ```text
/// mean = beta1 * mean + (1 - beta1) * g
/// square = beta2 * square + (1 - beta2) * g * g
/// params = params * (1 - rate * weight_decay)
///        - rate * (mean / (1 - beta1^t)) / (sqrt(square / (1 - beta2^t)) + epsilon)
/// ```
///
/// # Source
///
/// Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv:1711.05101, algorithm 2. The powers
/// are products in `f64`, one factor per step.
#[derive(Clone, Debug)]
pub struct AdamW {
    config: AdamWConfig,
    steps: u64,
    /// `beta1^steps` and `beta2^steps`.
    powers: [f64; 2],
    mean: Vec<f32>,
    square: Vec<f32>,
}

const MEAN: &str = "mean";
const SQUARE: &str = "square";

impl AdamW {
    /// The optimizer of `len` parameters, at rest.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn new(len: usize, config: AdamWConfig) -> Result<Self, RangeError> {
        let AdamWConfig { beta1, beta2, epsilon, weight_decay } = config;
        require((0.0..1.0).contains(&beta1), "beta1", beta1, "at least 0, below 1")?;
        require((0.0..1.0).contains(&beta2), "beta2", beta2, "at least 0, below 1")?;
        require(epsilon.is_finite() && epsilon > 0.0, "epsilon", epsilon, "above 0")?;
        require(weight_decay.is_finite() && weight_decay >= 0.0, "weight_decay", weight_decay, "at least 0")?;
        Ok(Self { config, steps: 0, powers: [1.0; 2], mean: vec![0.0; len], square: vec![0.0; len] })
    }

    fn advance_powers(&mut self) {
        self.powers[0] *= f64::from(self.config.beta1);
        self.powers[1] *= f64::from(self.config.beta2);
    }
}

/// One step of the moments and of the parameters.
struct Step<'a> {
    params: &'a mut [f32],
    grad: &'a [f32],
    mean: &'a mut [f32],
    square: &'a mut [f32],
    scales: [f32; 2],
    rate: f32,
    config: AdamWConfig,
}

impl Loop for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { rate, scales: [mean_scale, square_scale], .. } = self;
        let AdamWConfig { beta1, beta2, epsilon, weight_decay } = self.config;
        let shrink = 1.0 - rate * weight_decay;
        let moments = self.mean.iter_mut().zip(self.square);
        for ((param, &g), (mean, square)) in self.params.iter_mut().zip(self.grad).zip(moments) {
            *mean = beta1 * *mean + (1.0 - beta1) * g;
            *square = beta2 * *square + (1.0 - beta2) * (g * g);
            let direction = (*mean * mean_scale) / ((*square * square_scale).sqrt() + epsilon);
            *param = *param * shrink - rate * direction;
        }
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32) {
        let len = self.mean.len();
        assert_eq!((params.len(), grad.len()), (len, len), "lengths of parameters and gradient");
        self.steps += 1;
        self.advance_powers();
        let scales = self.powers.map(|power| (1.0 / (1.0 - power)) as f32);
        let (config, mean, square) = (self.config, &mut self.mean[..], &mut self.square[..]);
        vectorised(Step { params, grad, mean, square, scales, rate, config });
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        vec![(MEAN, &self.mean), (SQUARE, &self.square)]
    }

    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        let len = self.mean.len();
        only(&[MEAN, SQUARE], state)?;
        let (mean, square) = (saved(state, MEAN, len)?, saved(state, SQUARE, len)?);
        self.mean.copy_from_slice(mean);
        self.square.copy_from_slice(square);
        self.steps = steps;
        self.powers = [1.0; 2];
        for _ in 0..steps {
            let before = self.powers;
            self.advance_powers();
            // Powers that no longer change, at zero or at the smallest number, never will again.
            if self.powers == before {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fastest;
    use super::*;

    const HALVES: AdamWConfig = AdamWConfig { beta1: 0.5, beta2: 0.75, epsilon: 0.5, weight_decay: 0.5 };

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
        assert!(adam.powers.iter().all(|&power| power < 1e-300), "{:?}", adam.powers);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (config, key) in [
            (AdamWConfig { beta1: 1.0, ..HALVES }, "beta1"),
            (AdamWConfig { beta2: -0.1, ..HALVES }, "beta2"),
            (AdamWConfig { epsilon: 0.0, ..HALVES }, "epsilon"),
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
            let mut time = |run: fn(Step<'_>)| {
                let [params, mean, square] = &mut buffers;
                let (grad, config) = (&gradient[..], AdamWConfig::default());
                fastest(|| run(Step { params, grad, mean, square, scales: [1.5, 2.5], rate: 1e-3, config }))
            };
            let (plain, wide) = (time(|step| step.run()), time(|step| vectorised(step)));
            println!("AdamW, {len} parameters: {:.2} times as fast", plain / wide);
        }
    }
}
