//! Any network as a [`Model`]: flat parameters, cross-entropy, backward pass.

use burn::tensor::{Device, Int, Tensor, TensorData, activation::log_softmax};

use super::init::Spec;
use super::weights::Weights;
use super::{Model, ModelError, Parameters, Score};
use crate::data::Batch;

/// A network as a pure function of its parameters and a batch.
pub(super) trait Network: Send {
    /// The parameters, in the order of the flat slices.
    fn specs(&self) -> Vec<Spec>;

    /// Number of classes or tokens that the network tells apart.
    fn classes(&self) -> usize;

    /// Returns the fault of a batch that does not fit the task.
    fn check(&self, batch: &Batch) -> Result<(), String>;

    /// Scores `[predictions, classes]` of a batch that passed the check.
    fn logits(&self, weights: &Weights<'_>, batch: &Batch, device: &Device) -> Tensor<2>;
}

/// A network with its parameters.
pub(super) struct Autodiff<N> {
    network: N,
    params: Parameters,
    plain: Device,
    recording: Device,
}

impl<N: Network> Autodiff<N> {
    /// The network with its initial weights.
    pub(super) fn new(network: N, seed: u64) -> Self {
        let params = Parameters::new(network.specs(), seed);
        Self { network, params, plain: Device::flex(), recording: Device::flex().autodiff() }
    }

    fn check(&self, batch: &Batch) -> Result<(), ModelError> {
        check_targets(batch, self.network.classes())?;
        self.network.check(batch).map_err(ModelError::Batch)
    }
}

/// Logarithm of the probability of each class, and of the right one: `[predictions, classes]`, `[predictions,
/// 1]`.
fn log_probabilities(logits: Tensor<2>, batch: &Batch, device: &Device) -> [Tensor<2>; 2] {
    let all = log_softmax(logits, 1);
    let right = all.clone().gather(1, indices(batch.targets(), [batch.predictions(), 1], device));
    [all, right]
}

/// Mean cross-entropy of logits `[predictions, classes]`.
pub(super) fn mean_loss(logits: Tensor<2>, batch: &Batch, device: &Device) -> Tensor<1> {
    let [_, right] = log_probabilities(logits, batch, device);
    right.mean().neg()
}

/// The score of logits `[predictions, classes]`.
pub(super) fn score(logits: Tensor<2>, batch: &Batch, device: &Device) -> Score {
    let [_, classes] = logits.dims();
    let [all, right] = log_probabilities(logits, batch, device).map(Tensor::into_data_as::<f32>);
    let (all, right) = (values(&all), values(&right));
    let rows = all.chunks_exact(classes).zip(batch.targets());
    Score {
        loss_sum: right.iter().map(|&value| -f64::from(value)).sum(),
        correct: rows.filter(|(row, target)| first_maximum(row) == **target as usize).count() as u64,
        count: batch.predictions() as u64,
    }
}

impl<N: Network> Model for Autodiff<N> {
    fn parameters(&self) -> &Parameters {
        &self.params
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.params
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        assert_eq!(grad.len(), self.len(), "a gradient is as long as the parameters");
        self.check(batch)?;
        let weights = Weights::new(&self.params, &self.recording);
        let logits = self.network.logits(&weights, batch, &self.recording);
        let loss = mean_loss(logits, batch, &self.recording);
        weights.read_gradients(loss.backward(), grad)?;
        Ok(loss.into_scalar())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.check(batch)?;
        let weights = Weights::new(&self.params, &self.plain);
        Ok(score(self.network.logits(&weights, batch, &self.plain), batch, &self.plain))
    }
}

/// Refuses a batch without targets, or with a target that is not below `classes`.
pub(super) fn check_targets(batch: &Batch, classes: usize) -> Result<(), ModelError> {
    let bad = |target: &&u32| **target as usize >= classes;
    if batch.predictions() == 0 {
        return Err(ModelError::Batch("it is empty".to_owned()));
    }
    match batch.targets().iter().find(bad) {
        Some(target) => Err(ModelError::Batch(format!("target {target} is not below {classes}"))),
        None => Ok(()),
    }
}

/// The data was converted to `f32` just before.
fn values(data: &TensorData) -> &[f32] {
    data.as_slice().expect("converted to f32")
}

/// Index of the largest value, the first of equal ones; 0 for a row that begins with NaN.
fn first_maximum(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, &value) in row.iter().enumerate() {
        if value > row[best] {
            best = index;
        }
    }
    best
}

/// Token or class numbers as a tensor.
pub(super) fn indices(numbers: &[u32], shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let numbers: Vec<i64> = numbers.iter().map(|&number| i64::from(number)).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::Init;

    /// Declares a parameter that it does not use.
    struct Forgetful;

    impl Network for Forgetful {
        fn specs(&self) -> Vec<Spec> {
            ["used", "forgotten"].map(|name| Spec::new(name, &[1, 2], Init::Constant(1.0))).to_vec()
        }

        fn classes(&self) -> usize {
            2
        }

        fn check(&self, _: &Batch) -> Result<(), String> {
            Ok(())
        }

        fn logits(&self, weights: &Weights<'_>, _: &Batch, _: &Device) -> Tensor<2> {
            weights.matrix("used")
        }
    }

    fn batch(labels: Vec<u32>) -> Batch {
        Batch::Images { shape: [labels.len(), 1, 1, 1], features: vec![0.0; labels.len()], labels }
    }

    #[test]
    fn a_parameter_without_a_gradient_is_an_error() {
        let mut grad = [7.0; 4];
        let result = Autodiff::new(Forgetful, 0).forward_backward(&batch(vec![0]), &mut grad);
        assert_eq!(result, Err(ModelError::Gradient("forgotten".to_owned())));
        assert_eq!(grad, [7.0; 4]);
    }

    #[test]
    fn a_target_that_is_no_class_is_an_error() {
        let result = Autodiff::new(Forgetful, 0).evaluate(&batch(vec![2]));
        assert_eq!(result, Err(ModelError::Batch("target 2 is not below 2".to_owned())));
        let result = Autodiff::new(Forgetful, 0).evaluate(&batch(vec![]));
        assert_eq!(result, Err(ModelError::Batch("it is empty".to_owned())));
    }

    #[test]
    fn the_first_of_equal_scores_wins() {
        assert_eq!(first_maximum(&[0.0, 3.0, 1.0, 3.0]), 1);
    }
}
