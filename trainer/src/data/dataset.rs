//! A data set of either kind, and its description for a model.

use super::{Images, Part, Text};

/// A task: what to train on and what to test on.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Classification of images.
    Images(Images),
    /// Prediction of the next token.
    Text(Text),
}

/// What a model must know about a data set: the shape of its input and of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Channels, height and width of an image, and the number of classes.
    Images {
        /// Channels, height, width.
        shape: [usize; 3],
        /// Labels are below this.
        classes: usize,
    },
    /// The number of different tokens.
    Tokens {
        /// Tokens are below this.
        vocabulary: usize,
    },
}

impl Task {
    /// What a prediction is one of: classes, or tokens.
    pub fn choices(&self) -> usize {
        match *self {
            Self::Images { classes, .. } => classes,
            Self::Tokens { vocabulary } => vocabulary,
        }
    }
}

impl Dataset {
    /// Short name, as reports print it.
    pub fn name(&self) -> &str {
        match self {
            Self::Images(images) => images.name(),
            Self::Text(text) => text.name(),
        }
    }

    /// What a model must know.
    pub fn task(&self) -> Task {
        match self {
            Self::Images(images) => Task::Images { shape: images.shape(), classes: images.classes() },
            Self::Text(text) => Task::Tokens { vocabulary: text.vocabulary().len() },
        }
    }

    /// Number of examples: images, or tokens that can be predicted.
    pub fn examples(&self, part: Part) -> usize {
        match self {
            Self::Images(images) => images.part(part).len(),
            Self::Text(text) => text.part(part).len().saturating_sub(1),
        }
    }
}
