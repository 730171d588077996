//! The kinds of models by name, with sizes.

use super::autodiff::Autodiff;
use super::{
    CnnConfig, GptConfig, LstmConfig, MlpConfig, Model, ModelError, ResNetConfig, cnn, gpt, lstm, mlp, resnet,
};
use crate::data::{Batches, Dataset, Task};
use crate::nearest::hint;
use crate::range::RangeError;

/// Images that are evaluated at once.
const IMAGES_AT_ONCE: usize = 256;
/// Tokens that are evaluated at once; each has a row of logits as long as the vocabulary.
const TOKENS_AT_ONCE: usize = 2048;

/// A kind of model with its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// Fully connected layers.
    Mlp(MlpConfig),
    /// Convolutions.
    Cnn(CnnConfig),
    /// Convolutions with shortcuts and batch normalisation.
    ResNet20(ResNetConfig),
    /// Transformer.
    Gpt(GptConfig),
    /// Recurrent layers.
    Lstm(LstmConfig),
}

impl ModelConfig {
    /// The names that [`ModelConfig::by_name`] knows.
    pub const NAMES: [&'static str; 5] = ["mlp", "cnn", "resnet20", "gpt", "lstm"];

    /// The model of this name with sizes that suit the task.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    pub fn by_name(name: &str, task: &Task) -> Result<Self, RangeError> {
        match name {
            "mlp" => Ok(Self::Mlp(MlpConfig::suited_to(task))),
            "cnn" => Ok(Self::Cnn(CnnConfig::suited_to(task))),
            "resnet20" => Ok(Self::ResNet20(ResNetConfig::default())),
            "gpt" => Ok(Self::Gpt(GptConfig::default())),
            "lstm" => Ok(Self::Lstm(LstmConfig::default())),
            _ => Err(RangeError::new(
                "model",
                name,
                format!("one of {}{}", Self::NAMES.join(", "), hint(name, Self::NAMES)),
            )),
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
            Self::Lstm(config) => config.context,
            Self::Mlp(_) | Self::Cnn(_) | Self::ResNet20(_) => 0,
        }
    }

    /// The training batches of worker `rank` of `world`, `batch` items each.
    ///
    /// # Errors
    ///
    /// As [`Batches::new`] and [`Batches::streams`].
    pub fn batches<'a>(
        &self,
        dataset: &'a Dataset,
        seed: u64,
        batch: usize,
        rank: usize,
        world: usize,
    ) -> Result<Batches<'a>, RangeError> {
        let cut = if matches!(self, Self::Lstm(_)) { Batches::streams } else { Batches::new };
        let batches = cut(dataset, seed, batch, rank, world, self.context())?;
        let augments = matches!(self, Self::ResNet20(config) if config.augment);
        Ok(if augments { batches.augmented() } else { batches })
    }

    /// How a part is evaluated: images or windows at a time, and tokens of a window. A model that reads
    /// streams reads the part as one stream.
    pub fn at_once(&self) -> (usize, usize) {
        match self.context() {
            0 => (IMAGES_AT_ONCE, 0),
            _ if matches!(self, Self::Lstm(_)) => (1, TOKENS_AT_ONCE),
            context => ((TOKENS_AT_ONCE / context).max(1), context),
        }
    }

    /// Makes the model, with initial weights that depend only on the seed.
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
            Self::Mlp(config) => Box::new(Autodiff::new(mlp::Mlp::new(config, task)?, seed)),
            Self::Cnn(config) => Box::new(Autodiff::new(cnn::Cnn::new(config, task)?, seed)),
            Self::ResNet20(_) => Box::new(resnet::ResNet::new(task, seed)?),
            Self::Gpt(config) => Box::new(Autodiff::new(gpt::Gpt::new(config, task)?, seed)),
            Self::Lstm(config) => Box::new(lstm::Lstm::new(config, task, seed)?),
        })
    }
}
