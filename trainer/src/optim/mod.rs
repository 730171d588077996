//! Optimizers and learning-rate schedules on flat slices.
//!
//! # Determinism
//!
//! Only `+ - * /` and square roots, which IEEE 754 rounds correctly, in a written order, never fused: the same
//! parameters on every machine from the same gradients. Powers are products, cosines come from `libm`.

mod adamw;
mod schedule;
mod sgd;

pub use adamw::{AdamW, AdamWConfig};
pub use schedule::{Decay, Schedule};
pub use sgd::{Sgd, SgdConfig};

/// Changes parameters along a gradient.
pub trait Optimizer: Send {
    /// One step: `params` move by a multiple of `rate`.
    ///
    /// # Panics
    ///
    /// If `params` or `grad` is not as long as the optimizer was made for.
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32);

    /// Number of steps so far.
    fn steps(&self) -> u64;

    /// What the optimizer remembers, by name: each slice is as long as the parameters.
    fn state(&self) -> Vec<(&'static str, &[f32])>;

    /// Continues where an optimizer stopped that had this state after `steps` steps.
    ///
    /// # Errors
    ///
    /// [`StateError`] if names or lengths are not those of [`Optimizer::state`]; nothing has changed then.
    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError>;
}

/// A saved state is not one of this optimizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A slice is missing or has another length.
    #[error("optimizer state `{name}` of {expected} values is missing")]
    Missing {
        /// Name of the slice.
        name: &'static str,
        /// Its length.
        expected: usize,
    },
    /// There is a slice that this optimizer does not have.
    #[error("optimizer state `{0}` is not known")]
    Unknown(String),
}

/// An optimizer with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent.
    Sgd(SgdConfig),
    /// Adam with decoupled weight decay.
    AdamW(AdamWConfig),
}

impl OptimizerConfig {
    /// Makes the optimizer for `len` parameters.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn build(&self, len: usize) -> Result<Box<dyn Optimizer>, crate::range::RangeError> {
        Ok(match self {
            Self::Sgd(config) => Box::new(Sgd::new(len, *config)?),
            Self::AdamW(config) => Box::new(AdamW::new(len, *config)?),
        })
    }
}

/// The saved slice of this name, if it has the right length.
fn saved<'a>(
    state: &[(&str, &'a [f32])],
    name: &'static str,
    expected: usize,
) -> Result<&'a [f32], StateError> {
    let found = state.iter().find(|(known, values)| *known == name && values.len() == expected);
    found.map(|&(_, values)| values).ok_or(StateError::Missing { name, expected })
}

/// Refuses a saved slice of another name.
fn only(names: &[&str], state: &[(&str, &[f32])]) -> Result<(), StateError> {
    match state.iter().find(|(name, _)| !names.contains(name)) {
        Some((name, _)) => Err(StateError::Unknown((*name).to_owned())),
        None => Ok(()),
    }
}
