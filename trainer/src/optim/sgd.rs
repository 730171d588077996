//! Stochastic gradient descent with momentum and weight decay.

use std::ops::Range;

use gradwire::arithmetic::{Loop, vectorised};

use super::adamw::require_decay;
use super::optimizer::{Optimizer, StateError, only, saved};
use crate::range::{RangeError, require};

/// Settings of [`Sgd`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SgdConfig {
    /// Share of the last direction that is kept: at least 0, below 1.
    pub momentum: f32,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// Added to the gradient, times the parameters.
    pub weight_decay: f32,
}

/// Stochastic gradient descent.
///
/// ```text
/// g = gradient + weight_decay * params
/// velocity = momentum * velocity + g
/// params -= rate * (nesterov ? g + momentum * velocity : velocity)
/// ```
///
/// # Source
///
/// Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013, in the form
/// that PyTorch gave it: the rate is not part of the velocity.
#[derive(Clone, Debug)]
pub struct Sgd {
    config: SgdConfig,
    len: usize,
    steps: u64,
    /// Empty without momentum.
    velocity: Vec<f32>,
    /// Ranges with momentum: ascending, disjoint.
    momentum_in: Vec<Range<usize>>,
}

const VELOCITY: &str = "velocity";

impl Sgd {
    /// The optimizer of `len` parameters, at rest.
    ///
    /// # Errors
    ///
    /// If a setting is out of range, or Nesterov's step is requested without momentum.
    pub fn new(len: usize, config: SgdConfig) -> Result<Self, RangeError> {
        let SgdConfig { momentum, nesterov, weight_decay } = config;
        require((0.0..1.0).contains(&momentum), "momentum", momentum, "at least 0, below 1")?;
        require_decay(weight_decay)?;
        require(!nesterov || momentum > 0.0, "nesterov", nesterov, "false, or a momentum above 0")?;
        let velocity = if momentum > 0.0 { vec![0.0; len] } else { Vec::new() };
        let whole = 0..len;
        Ok(Self { config, len, steps: 0, velocity, momentum_in: vec![whole] })
    }

    /// Sets the ranges with momentum, which ascend and do not overlap. Elsewhere momentum was applied before
    /// the mean.
    pub fn with_momentum_in(self, ranges: Vec<Range<usize>>) -> Self {
        Self { momentum_in: ranges, ..self }
    }

    fn step_plainly(&self, params: &mut [f32], grad: &[f32], rate: f32) {
        vectorised(Plain { params, grad, rate, weight_decay: self.config.weight_decay });
    }
}

/// A step without momentum.
struct Plain<'a> {
    params: &'a mut [f32],
    grad: &'a [f32],
    rate: f32,
    weight_decay: f32,
}

impl Loop for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { params, grad, rate, weight_decay } = self;
        params.iter_mut().zip(grad).for_each(|(param, &g)| *param -= rate * (g + weight_decay * *param));
    }
}

/// A step with momentum.
struct Heavy<'a> {
    params: &'a mut [f32],
    grad: &'a [f32],
    velocity: &'a mut [f32],
    rate: f32,
    config: SgdConfig,
}

impl Loop for Heavy<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let SgdConfig { momentum, nesterov, weight_decay } = self.config;
        for ((param, &g), velocity) in self.params.iter_mut().zip(self.grad).zip(self.velocity) {
            let g = g + weight_decay * *param;
            *velocity = momentum * *velocity + g;
            *param -= self.rate * if nesterov { g + momentum * *velocity } else { *velocity };
        }
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32) {
        self.step_in(0..self.len, params, grad, rate);
    }

    fn step_in(&mut self, range: Range<usize>, params: &mut [f32], grad: &[f32], rate: f32) {
        assert_eq!((params.len(), grad.len()), (self.len, self.len), "lengths of parameters and gradient");
        let config = self.config;
        self.steps += 1;
        let mut next = range.start;
        for momentum in self.momentum_in.clone().into_iter().filter(|_| config.momentum != 0.0) {
            let (start, end) = (momentum.start.max(next), momentum.end.min(range.end));
            if start >= end {
                continue;
            }
            self.step_plainly(&mut params[next..start], &grad[next..start], rate);
            let (params, grad) = (&mut params[start..end], &grad[start..end]);
            vectorised(Heavy { params, grad, velocity: &mut self.velocity[start..end], rate, config });
            next = end;
        }
        self.step_plainly(&mut params[next..range.end], &grad[next..range.end], rate);
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        if self.velocity.is_empty() { vec![] } else { vec![(VELOCITY, &self.velocity)] }
    }

    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        if self.velocity.is_empty() {
            only(&[], state)?;
        } else {
            only(&[VELOCITY], state)?;
            self.velocity.copy_from_slice(saved(state, VELOCITY, self.len)?);
        }
        self.steps = steps;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fastest;
    use super::*;

    fn run(config: SgdConfig, steps: usize) -> f32 {
        let mut sgd = Sgd::new(1, config).unwrap();
        let mut params = [1.0];
        (0..steps).for_each(|_| sgd.step(&mut params, &[2.0], 0.25));
        params[0]
    }

    #[test]
    fn steps_are_those_computed_by_hand() {
        let plain = SgdConfig::default();
        assert_eq!(run(plain, 2), 0.0);
        // Gradients 2 + 0.5 * 1 = 2.5, then 2 + 0.5 * 0.375.
        assert_eq!(run(SgdConfig { weight_decay: 0.5, ..plain }, 2), 0.375 - 0.25 * 2.1875);
        // Velocities 2, then 0.5 * 2 + 2 = 3.
        let heavy = SgdConfig { momentum: 0.5, ..plain };
        assert_eq!(run(heavy, 2), 1.0 - 0.25 * 2.0 - 0.25 * 3.0);
        // Steps 2 + 0.5 * 2 = 3, then 2 + 0.5 * 3 = 3.5.
        assert_eq!(run(SgdConfig { nesterov: true, ..heavy }, 2), 1.0 - 0.25 * 3.0 - 0.25 * 3.5);
    }

    #[test]
    fn momentum_may_be_kept_to_ranges() {
        let config = SgdConfig { momentum: 0.5, nesterov: true, weight_decay: 0.5 };
        let plain = SgdConfig { momentum: 0.0, nesterov: false, ..config };
        let start = [0.5, -1.0, 0.25, 2.0, 1.5];
        let stepped = |mut sgd: Sgd| {
            let mut params = start;
            (0..3).for_each(|_| sgd.step(&mut params, &[1.0, 2.0, -1.0, 0.5, 3.0], 0.25));
            params
        };
        let whole = stepped(Sgd::new(5, config).unwrap());
        let without = stepped(Sgd::new(5, plain).unwrap());
        let ranges = stepped(Sgd::new(5, config).unwrap().with_momentum_in(vec![1..2, 3..4]));
        assert_eq!(ranges, [without[0], whole[1], without[2], whole[3], without[4]]);
        assert_eq!(stepped(Sgd::new(5, config).unwrap().with_momentum_in(vec![])), without);
    }

    #[test]
    fn a_restored_optimizer_goes_on_with_the_same_bits() {
        let config = SgdConfig { momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
        let mut whole = Sgd::new(2, config).unwrap();
        let mut params = [0.3, -0.7];
        whole.step(&mut params, &[0.1, 0.2], 0.1);
        let mut resumed = Sgd::new(2, config).unwrap();
        resumed.restore(whole.steps(), &whole.state()).unwrap();
        let mut other = params;
        whole.step(&mut params, &[0.3, 0.4], 0.1);
        resumed.step(&mut other, &[0.3, 0.4], 0.1);
        assert_eq!((params.map(f32::to_bits), whole.steps()), (other.map(f32::to_bits), resumed.steps()));
    }

    #[test]
    fn a_foreign_state_is_refused() {
        let mut sgd = Sgd::new(2, SgdConfig { momentum: 0.9, ..Default::default() }).unwrap();
        assert_eq!(sgd.restore(1, &[]), Err(StateError::Missing { name: "velocity", expected: 2 }));
        let short = [("velocity", &[1.0][..])];
        assert_eq!(sgd.restore(1, &short), Err(StateError::Missing { name: "velocity", expected: 2 }));
        let foreign = [("velocity", &[1.0, 1.0][..]), ("mean", &[1.0, 1.0][..])];
        assert_eq!(sgd.restore(1, &foreign), Err(StateError::Unknown("mean".to_owned())));
        assert_eq!((sgd.steps(), sgd.state()[0].1), (0, &[0.0, 0.0][..]));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let error = Sgd::new(1, SgdConfig { momentum: 1.0, ..Default::default() }).unwrap_err();
        assert_eq!(error.to_string(), "momentum = 1: expected at least 0, below 1");
        assert!(Sgd::new(1, SgdConfig { weight_decay: f32::NAN, ..Default::default() }).is_err());
        assert!(Sgd::new(1, SgdConfig { nesterov: true, ..Default::default() }).is_err());
    }

    /// Compares with the same loop as the compiler builds it for every x86-64.
    #[test]
    #[ignore = "measures times"]
    fn how_much_faster_whole_vectors_are() {
        let config = SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
        for len in [1 << 12, 1 << 22] {
            let [mut params, mut velocity, grad] = [(); 3].map(|()| vec![0.5_f32; len]);
            let (rate, grad) = (1e-3, &grad[..]);
            let plain = fastest(|| {
                Heavy { params: &mut params, grad, velocity: &mut velocity, rate, config }.run();
            });
            let wide = fastest(|| {
                vectorised(Heavy { params: &mut params, grad, velocity: &mut velocity, rate, config });
            });
            println!("SGD, {len} parameters: {:.2} times as fast", plain / wide);
        }
    }
}
