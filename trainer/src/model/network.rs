//! What every network can do.

use super::error::ModelError;
use crate::data::Batch;

/// A network, its parameters and its loss.
///
/// # Determinism
///
/// The same batch and parameters give the same bits on the same binary and CPU features, whatever other
/// threads do.
pub trait Model: Send {
    /// Names and shapes of the parameters, in the order of the flat slices.
    fn layout(&self) -> Vec<(String, Vec<usize>)>;

    /// Number of parameters: the length of every flat slice.
    fn len(&self) -> usize;

    /// Whether there is no parameter.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the parameters out.
    ///
    /// # Panics
    ///
    /// If `out` is not [`Model::len`] long.
    fn params(&self, out: &mut [f32]);

    /// Replaces the parameters.
    ///
    /// # Panics
    ///
    /// If `params` is not [`Model::len`] long.
    fn set_params(&mut self, params: &[f32]);

    /// Writes the gradient of the mean loss over the predictions of the batch, and returns that loss.
    ///
    /// # Errors
    ///
    /// [`ModelError::Batch`] if the batch is not of the task, [`ModelError::Gradient`] if a parameter got no
    /// gradient. `grad` is as it was then.
    ///
    /// # Panics
    ///
    /// If `grad` is not [`Model::len`] long.
    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError>;

    /// Predicts without learning.
    ///
    /// # Errors
    ///
    /// [`ModelError::Batch`] if the batch is not of the task.
    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError>;
}

/// What came of some predictions. Scores of several batches add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the cross-entropy, in nats.
    pub loss_sum: f64,
    /// How often the right class or token was the most likely one.
    pub correct: u64,
    /// Number of predictions.
    pub count: u64,
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.count += other.count;
    }
}
