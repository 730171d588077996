//! The moments of Adam, and the direction that follows from them.

use gradwire::arithmetic::{Loop, vectorised};

use super::optimizer::{StateError, only, saved};
use crate::range::{RangeError, require};

/// Settings of [`Moments`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentsConfig {
    /// Share of the mean gradient that is kept: at least 0, below 1.
    pub beta1: f32,
    /// Share of the mean square that is kept: at least 0, below 1.
    pub beta2: f32,
    /// Keeps the step finite where gradients vanish.
    pub epsilon: f32,
}

impl Default for MomentsConfig {
    /// The values of the paper: 0.9, 0.999, 1e-8.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// Running means of gradients and of their squares.
///
/// ```text
/// mean = beta1 * mean + (1 - beta1) * g
/// square = beta2 * square + (1 - beta2) * g * g
/// direction = (mean / (1 - beta1^t)) / (sqrt(square / (1 - beta2^t)) + epsilon)
/// ```
///
/// # Source
///
/// Kingma and Ba, "Adam: a method for stochastic optimization", arXiv:1412.6980, algorithm 1. The powers are
/// products in `f64`, one factor per step.
#[derive(Clone, Debug)]
pub struct Moments {
    config: MomentsConfig,
    steps: u64,
    /// `beta1^steps` and `beta2^steps`.
    pub(super) powers: [f64; 2],
    mean: Vec<f32>,
    square: Vec<f32>,
}

const MEAN: &str = "mean";
const SQUARE: &str = "square";

impl Moments {
    /// The moments of `len` parameters, before the first gradient.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn new(len: usize, config: MomentsConfig) -> Result<Self, RangeError> {
        let MomentsConfig { beta1, beta2, epsilon } = config;
        require((0.0..1.0).contains(&beta1), "beta1", beta1, "at least 0, below 1")?;
        require((0.0..1.0).contains(&beta2), "beta2", beta2, "at least 0, below 1")?;
        require(epsilon.is_finite() && epsilon > 0.0, "epsilon", epsilon, "above 0")?;
        Ok(Self { config, steps: 0, powers: [1.0; 2], mean: vec![0.0; len], square: vec![0.0; len] })
    }

    /// Number of gradients so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Both means, by name.
    pub fn state(&self) -> Vec<(&'static str, &[f32])> {
        vec![(MEAN, &self.mean), (SQUARE, &self.square)]
    }

    /// Takes in a gradient, and puts the direction in its place.
    ///
    /// # Panics
    ///
    /// If `grad` is not as long as the moments were made for.
    pub fn direct(&mut self, grad: &mut [f32]) {
        vectorised(Direct { moments: self.next(grad.len()), grad });
    }

    /// Counts a step, and lends what it changes.
    pub(super) fn next(&mut self, len: usize) -> NextMoments<'_> {
        assert_eq!(self.mean.len(), len, "lengths of parameters and gradient");
        self.steps += 1;
        self.advance_powers();
        let scales = self.powers.map(|power| (1.0 / (1.0 - power)) as f32);
        let law = Law { scales, config: self.config };
        NextMoments { mean: &mut self.mean, square: &mut self.square, law }
    }

    fn advance_powers(&mut self) {
        self.powers[0] *= f64::from(self.config.beta1);
        self.powers[1] *= f64::from(self.config.beta2);
    }

    /// Continues from moments that had this state after `steps` gradients.
    ///
    /// # Errors
    ///
    /// [`StateError`] if names or lengths are not those of [`Moments::state`]; nothing has changed then.
    pub fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
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

/// The moments in a step that has begun.
pub(super) struct NextMoments<'a> {
    pub(super) mean: &'a mut [f32],
    pub(super) square: &'a mut [f32],
    pub(super) law: Law,
}

/// How the moments of one parameter change in that step.
#[derive(Clone, Copy)]
pub(super) struct Law {
    pub(super) scales: [f32; 2],
    pub(super) config: MomentsConfig,
}

impl Law {
    /// Takes in a gradient, and returns the direction.
    #[inline(always)]
    pub(super) fn direction(self, g: f32, mean: &mut f32, square: &mut f32) -> f32 {
        let Self { scales: [mean_scale, square_scale], config: MomentsConfig { beta1, beta2, epsilon } } =
            self;
        *mean = beta1 * *mean + (1.0 - beta1) * g;
        *square = beta2 * *square + (1.0 - beta2) * (g * g);
        (*mean * mean_scale) / ((*square * square_scale).sqrt() + epsilon)
    }
}

/// Directions in place of gradients.
struct Direct<'a> {
    grad: &'a mut [f32],
    moments: NextMoments<'a>,
}

impl Loop for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let NextMoments { mean, square, law } = self.moments;
        for (g, (mean, square)) in self.grad.iter_mut().zip(mean.iter_mut().zip(square)) {
            *g = law.direction(*g, mean, square);
        }
    }
}
