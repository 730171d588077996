//! The kinds of models by name, with sizes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::autodiff::Autodiff;
use super::{
    CnnConfig, GptConfig, LstmConfig, MlpConfig, Model, ModelError, ResNetConfig, cnn, gpt, lstm, mlp, resnet,
};
use crate::data::{Batches, Dataset, Task};
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

/// A kind of model, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Fully connected layers.
    Mlp,
    /// Convolutions.
    Cnn,
    /// Convolutions with shortcuts and batch normalisation.
    Resnet20,
    /// Transformer.
    Gpt,
    /// Recurrent layers.
    Lstm,
}

impl ModelKind {
    /// The model with sizes that suit the task.
    pub fn suited_to(self, task: &Task) -> ModelConfig {
        match self {
            Self::Mlp => ModelConfig::Mlp(MlpConfig::suited_to(task)),
            Self::Cnn => ModelConfig::Cnn(CnnConfig::suited_to(task)),
            Self::Resnet20 => ModelConfig::ResNet20(ResNetConfig::default()),
            Self::Gpt => ModelConfig::Gpt(GptConfig::default()),
            Self::Lstm => ModelConfig::Lstm(LstmConfig::default()),
        }
    }
}

impl std::fmt::Display for ModelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

impl ModelConfig {
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
    /// use gradwire_trainer::model::{Model, ModelKind};
    ///
    /// let digits = optdigits::load()?;
    /// let mut model = ModelKind::Mlp.suited_to(&digits.task()).build(&digits.task(), 1)?;
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
