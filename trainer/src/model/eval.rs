//! How good a model is on a part of a data set.

use crate::data::{Batch, Dataset, Part};
use crate::model::{Model, ModelError, Score};

/// The results of a model on one part of a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    score: Score,
    /// Of replicas that differ.
    consensus_distance: Option<f64>,
}

impl Evaluation {
    /// Mean cross-entropy, in nats.
    pub fn loss(&self) -> f64 {
        self.score.loss_sum / self.score.count as f64
    }

    /// Share of right predictions, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.score.correct as f64 / self.score.count as f64
    }

    /// The smallest difference that an accuracy can show: one prediction.
    pub fn resolution(&self) -> f64 {
        1.0 / self.score.count as f64
    }

    /// e to the loss: among how many equally likely tokens the model hesitates.
    pub fn perplexity(&self) -> f64 {
        libm::exp(self.loss())
    }

    /// Number of predictions.
    pub fn count(&self) -> u64 {
        self.score.count
    }

    /// Where replicas differ and this is about their mean: the root of the mean square of their distances
    /// from it.
    pub fn consensus_distance(&self) -> Option<f64> {
        self.consensus_distance
    }

    /// The same, of the mean of replicas that differ.
    pub(crate) fn of_mean(self, consensus_distance: f64) -> Self {
        Self { consensus_distance: Some(consensus_distance), ..self }
    }
}

impl From<Score> for Evaluation {
    fn from(score: Score) -> Self {
        Self { score, consensus_distance: None }
    }
}

/// Evaluates a whole part, `items` images or windows of `context` tokens at once.
///
/// # Errors
///
/// [`ModelError::Batch`] if the model was not made for the data.
///
/// # Panics
///
/// If `items` is zero, or `context` is for a text.
///
/// # Determinism
///
/// Losses are added in `f64` in the order of the data.
pub fn evaluate(
    model: &mut dyn Model,
    dataset: &Dataset,
    part: Part,
    items: usize,
    context: usize,
) -> Result<Evaluation, ModelError> {
    evaluate_share(model, dataset, part, (items, context), (0, 1)).map(Evaluation::from)
}

/// Evaluates the share of one worker: of `share` = (`rank`, `world`), every `world`-th batch from batch
/// `rank` on.
///
/// # Errors
///
/// As [`evaluate`].
///
/// # Panics
///
/// As [`evaluate`].
///
/// # Determinism
///
/// As [`evaluate`].
pub fn evaluate_share(
    model: &mut dyn Model,
    dataset: &Dataset,
    part: Part,
    at_once: (usize, usize),
    share: (usize, usize),
) -> Result<Score, ModelError> {
    model.evaluate_in_order(&mut share_of(dataset, part, at_once, share))
}

/// The batches of worker `rank` of `world`.
pub(crate) fn share_of(
    dataset: &Dataset,
    part: Part,
    (items, context): (usize, usize),
    (rank, world): (usize, usize),
) -> impl Iterator<Item = Batch> {
    dataset.in_order(part, items, context).skip(rank).step_by(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_sums() {
        let mut score = Score { loss_sum: 3.0, correct: 1, count: 2 };
        score += Score { loss_sum: 1.0, correct: 2, count: 2 };
        let evaluation = Evaluation::from(score);
        assert_eq!((evaluation.loss(), evaluation.accuracy(), evaluation.resolution()), (1.0, 0.75, 0.25));
        assert!((evaluation.perplexity() - std::f64::consts::E).abs() < 1e-15);
    }
}
