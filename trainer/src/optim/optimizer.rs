//! What all optimizers have in common.

use std::ops::Range;

/// Changes parameters along a gradient.
pub trait Optimizer: Send {
    /// One step: `params` move by a multiple of `rate`.
    ///
    /// # Panics
    ///
    /// If `params` or `grad` is not as long as the optimizer was made for.
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32);

    /// One step of the parameters in `range` alone; the others, and what is kept of them, stay.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step); and if the range is not the whole, for an optimizer that only steps as a
    /// whole.
    fn step_in(&mut self, range: Range<usize>, params: &mut [f32], grad: &[f32], rate: f32) {
        assert_eq!(range, 0..params.len(), "this optimizer steps as a whole");
        self.step(params, grad, rate);
    }

    /// Number of steps so far.
    fn steps(&self) -> u64;

    /// The state of the optimizer, by name and in the order of names: each slice is as long as the
    /// parameters.
    fn state(&self) -> Vec<(&'static str, &[f32])>;

    /// Continues from an optimizer that had this state after `steps` steps.
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

/// The saved slice of this name, if it has the right length.
pub(super) fn saved<'a>(
    state: &[(&str, &'a [f32])],
    name: &'static str,
    expected: usize,
) -> Result<&'a [f32], StateError> {
    let found = state.iter().find(|(known, values)| *known == name && values.len() == expected);
    found.map(|&(_, values)| values).ok_or(StateError::Missing { name, expected })
}

/// Refuses a saved slice of another name.
pub(super) fn only(names: &[&str], state: &[(&str, &[f32])]) -> Result<(), StateError> {
    match state.iter().find(|(name, _)| !names.contains(name)) {
        Some((name, _)) => Err(StateError::Unknown((*name).to_owned())),
        None => Ok(()),
    }
}
