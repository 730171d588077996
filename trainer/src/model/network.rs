//! What every network can do.

use super::error::ModelError;
use super::parameters::Parameters;
use crate::data::Batch;

/// A network, its parameters and its loss.
///
/// # Determinism
///
/// The same batch and parameters give the same bits on the same binary and CPU features, whatever other
/// threads do.
pub trait Model: Send {
    /// The parameters that it keeps.
    fn parameters(&self) -> &Parameters;

    /// The same, to be changed.
    fn parameters_mut(&mut self) -> &mut Parameters;

    /// Names and shapes of the parameters, in the order of the flat slices.
    fn layout(&self) -> Vec<(String, Vec<usize>)> {
        let specs = self.parameters().specs().iter();
        specs.map(|spec| (spec.name.clone(), spec.shape.clone())).collect()
    }

    /// Number of parameters: the length of every flat slice.
    fn len(&self) -> usize {
        self.parameters().values().len()
    }

    /// Whether there is no parameter.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the parameters out.
    ///
    /// # Panics
    ///
    /// If `out` is not [`Model::len`] long.
    fn params(&self, out: &mut [f32]) {
        out.copy_from_slice(self.parameters().values());
    }

    /// Replaces the parameters.
    ///
    /// # Panics
    ///
    /// If `params` is not [`Model::len`] long.
    fn set_params(&mut self, params: &[f32]) {
        self.parameters_mut().values_mut().copy_from_slice(params);
    }

    /// Says where in a run the next gradient is computed.
    ///
    /// A model draws at random, and carries state from step to step, only in gradients that follow this call.
    /// Without it, a gradient depends on nothing but the parameters and the batch.
    fn begin(&mut self, _: Moment) {}

    /// Writes the gradient of the mean loss over the predictions of the batch, and returns that loss.
    ///
    /// # Errors
    ///
    /// [`ModelError::Batch`] if the batch is not of the task, [`ModelError::Gradient`] if a parameter got no
    /// gradient. `grad` is then unchanged.
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

    /// Predicts batches that follow each other without learning. A model that carries state from one batch to
    /// the next begins afresh; the state that it carries in training stays as it is.
    ///
    /// # Errors
    ///
    /// As [`Model::evaluate`].
    fn evaluate_in_order(&mut self, batches: &mut dyn Iterator<Item = Batch>) -> Result<Score, ModelError> {
        let mut score = Score::default();
        for batch in batches {
            score += self.evaluate(&batch)?;
        }
        Ok(score)
    }

    /// The state on which the next gradient depends, beside parameters, batch and moment; empty if there is
    /// none.
    fn carried(&self) -> Vec<f32> {
        Vec::new()
    }

    /// Whether the carried state is statistics. All workers then take its mean before one of them evaluates.
    fn is_carried_averaged(&self) -> bool {
        false
    }

    /// Continues with the state that [`Model::carried`] returned.
    ///
    /// # Errors
    ///
    /// What does not fit. The model is then unchanged.
    fn carry(&mut self, carried: &[f32]) -> Result<(), String> {
        match carried.len() {
            0 => Ok(()),
            len => Err(format!("{len} values carried by a model that carries none")),
        }
    }
}

/// Where in a run a gradient is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seed of the run.
    pub seed: u64,
    /// Who computes it.
    pub rank: u32,
    /// For which step.
    pub step: u64,
    /// Whether it is the first of its epoch, where streams of text begin.
    pub starts_epoch: bool,
}

/// The results of some predictions. Scores of several batches add up.
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
