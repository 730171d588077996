//! Models behind one trait: parameters in one flat slice, gradients in another.
//!
//! | module | model | for |
//! | --- | --- | --- |
//! | [`mlp`] | fully connected layers | images |
//! | [`cnn`] | two convolutions with pooling, two fully connected layers | images |
//! | [`gpt`] | pre-norm transformer that predicts the next token | text |
//!
//! [`eval`] says how good one is, and [`hash`](mod@hash) makes one number of its parameters.
//!
//! The tensor library stays behind [`Model`]. A model keeps its parameters as a flat slice, makes tensors of them at
//! every step and reads the gradient of every one of them back; a gradient that is not there is an error. There is no
//! batch normalisation: workers need not agree on anything but parameters.

mod autodiff;
pub mod cnn;
pub mod eval;
pub mod gpt;
pub mod hash;
mod init;
pub mod mlp;
mod weights;

pub use cnn::CnnConfig;
pub use gpt::GptConfig;
pub use mlp::MlpConfig;

use crate::data::{Batch, Task};
use crate::range::RangeError;

/// A network, its parameters and its loss.
///
/// # Determinism
///
/// The same batch and parameters give the same bits on the same binary and CPU features, whatever other threads do.
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
    /// [`ModelError::Batch`] if the batch is not of the task, [`ModelError::Gradient`] if a parameter got no gradient.
    /// `grad` is as it was then.
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

/// A model cannot do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model does not fit the task, or a size of it is out of range.
    #[error(transparent)]
    Config(#[from] RangeError),
    /// The batch does not fit the model.
    #[error("batch does not fit the model: {0}")]
    Batch(String),
    /// The backward pass gave nothing for a parameter.
    #[error("no gradient for parameter `{0}`")]
    Gradient(String),
}

/// A kind of model with its sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelConfig {
    /// Fully connected layers.
    Mlp(MlpConfig),
    /// Convolutions.
    Cnn(CnnConfig),
    /// Transformer.
    Gpt(GptConfig),
}

impl ModelConfig {
    /// The names that [`ModelConfig::by_name`] knows.
    pub const NAMES: [&'static str; 3] = ["mlp", "cnn", "gpt"];

    /// The model of this name with sizes that suit the task.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    pub fn by_name(name: &str, task: &Task) -> Result<Self, RangeError> {
        match name {
            "mlp" => Ok(Self::Mlp(MlpConfig::suited_to(task))),
            "cnn" => Ok(Self::Cnn(CnnConfig::suited_to(task))),
            "gpt" => Ok(Self::Gpt(GptConfig::default())),
            _ => Err(RangeError::new("model", name, format!("one of {}", Self::NAMES.join(", ")))),
        }
    }

    /// The model that the trainer takes when none is named.
    pub fn default_for(task: &Task) -> Self {
        match task {
            Task::Images { .. } => Self::Mlp(MlpConfig::suited_to(task)),
            Task::Tokens { .. } => Self::Gpt(GptConfig::default()),
        }
    }

    /// Tokens of one training window; 0 for a model of images.
    pub fn context(&self) -> usize {
        match self {
            Self::Gpt(config) => config.context,
            Self::Mlp(_) | Self::Cnn(_) => 0,
        }
    }

    /// Makes the model, with initial weights that depend on the seed alone.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] if the model does not fit the task or a size is out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// use gradwire_trainer::data::{Batches, optdigits};
    /// use gradwire_trainer::model::{Model, ModelConfig};
    ///
    /// let digits = optdigits::load()?;
    /// let mut model = ModelConfig::default_for(&digits.task()).build(&digits.task(), 1)?;
    /// let mut grad = vec![0.0; model.len()];
    /// let batch = Batches::new(&digits, 1, 32, 0, 1, 0)?.batch(0, 0);
    /// let loss = model.forward_backward(&batch, &mut grad)?;
    /// assert!(loss.is_finite());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(&self, task: &Task, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(match self {
            Self::Mlp(config) => Box::new(autodiff::Autodiff::new(mlp::Mlp::new(config, task)?, seed)),
            Self::Cnn(config) => Box::new(autodiff::Autodiff::new(cnn::Cnn::new(config, task)?, seed)),
            Self::Gpt(config) => Box::new(autodiff::Autodiff::new(gpt::Gpt::new(config, task)?, seed)),
        })
    }
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.count += other.count;
    }
}
