//! Optimizers and learning-rate schedules on flat slices.
//!
//! # Determinism
//!
//! Only `+ - * /` and square roots, which IEEE 754 rounds correctly, in a written order, never fused. So the
//! same gradients give the same parameters on every machine. Powers are products; cosines come from `libm`.

mod adamw;
mod moments;
mod muon;
mod optimizer;
mod schedule;
mod sgd;
mod updates;

pub use adamw::{AdamW, AdamWConfig};
pub use moments::{Moments, MomentsConfig};
pub use muon::{Matrix, Muon};
pub use optimizer::{Optimizer, StateError};
pub use schedule::{Decay, Schedule};
pub use sgd::{Sgd, SgdConfig};
pub use updates::Updates;

/// An optimizer with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent.
    Sgd(SgdConfig),
    /// Adam with decoupled weight decay.
    AdamW(AdamWConfig),
    /// The same, of which workers exchange the updates instead of the gradients.
    AdamWUpdates(AdamWConfig),
    /// Muon for matrices between the first and the last layer, AdamW with these settings for all else.
    Muon(AdamWConfig),
}

impl OptimizerConfig {
    /// Makes the optimizer for `len` parameters, of which `matrices` are those between the first and the last
    /// layer.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn build(
        &self,
        len: usize,
        matrices: &[Matrix],
    ) -> Result<Box<dyn Optimizer>, crate::range::RangeError> {
        Ok(match self {
            Self::Sgd(config) => Box::new(Sgd::new(len, *config)?),
            Self::AdamW(config) => Box::new(AdamW::new(len, *config)?),
            Self::AdamWUpdates(config) => Box::new(Updates::new(len, config.weight_decay)?),
            Self::Muon(config) => Box::new(Muon::new(len, *config, matrices)?),
        })
    }

    /// What each worker turns its own gradient into an update with, before the exchange, if it does.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn own_moments(&self, len: usize) -> Result<Option<Moments>, crate::range::RangeError> {
        match self {
            Self::AdamWUpdates(config) => Moments::new(len, config.moments).map(Some),
            Self::Sgd(_) | Self::AdamW(_) | Self::Muon(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest of many runs of the work, in nanoseconds.
    pub(super) fn fastest(mut work: impl FnMut()) -> f64 {
        let once = |_| {
            let start = std::time::Instant::now();
            work();
            start.elapsed().as_nanos() as f64
        };
        (0..200).map(once).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn every_optimizer_refuses_parameters_and_gradients_of_other_lengths() {
        let adamw = AdamWConfig::default();
        let updates = OptimizerConfig::AdamWUpdates(adamw);
        let sgd = OptimizerConfig::Sgd(SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 0.0 });
        let matrices = [Matrix { start: 1, rows: 2, columns: 3 }];
        for config in [sgd, OptimizerConfig::AdamW(adamw), updates, OptimizerConfig::Muon(adamw)] {
            for (params, grad, is_right) in
                [(8, 8, true), (7, 8, false), (9, 8, false), (8, 7, false), (8, 9, false), (0, 8, false)]
            {
                let step = || {
                    let mut optimizer = config.build(8, &matrices).unwrap();
                    optimizer.step(&mut vec![0.5; params], &vec![0.25; grad], 0.01);
                };
                let stepped = std::panic::catch_unwind(step);
                assert_eq!(
                    stepped.is_ok(),
                    is_right,
                    "{config:?}: {params} parameters, {grad} of a gradient"
                );
            }
        }
    }

    /// The reference takes one element at a time, which uses no vectors.
    #[test]
    fn whole_vectors_give_the_bits_of_one_parameter_at_a_time() {
        let sgd =
            |momentum, nesterov| OptimizerConfig::Sgd(SgdConfig { momentum, nesterov, weight_decay: 1e-3 });
        let adamw = OptimizerConfig::AdamW(AdamWConfig::default());
        for config in [sgd(0.0, false), sgd(0.9, false), sgd(0.9, true), adamw] {
            for len in [0, 1, 7, 8, 9, 15, 16, 17, 33, 100] {
                let grad = |step: usize| -> Vec<f32> {
                    (0..len).map(|i| ((i * i + 31 * step) % 97) as f32 * 0.037 - 1.3).collect()
                };
                let mut params = grad(7);
                let mut whole = config.build(len, &[]).unwrap();
                (0..5).for_each(|step| whole.step(&mut params, &grad(step), 0.01));
                let single = |at: usize| {
                    let mut one = config.build(1, &[]).unwrap();
                    let mut param = [grad(7)[at]];
                    (0..5).for_each(|step| one.step(&mut param, &[grad(step)[at]], 0.01));
                    param[0].to_bits()
                };
                let bits: Vec<u32> = params.iter().map(|param| param.to_bits()).collect();
                assert_eq!(bits, (0..len).map(single).collect::<Vec<_>>(), "{config:?}");
            }
        }
    }
}
