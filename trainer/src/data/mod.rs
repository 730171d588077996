//! Data sets: two shipped, the others read from the user's folder in their official formats.
//!
//! | module | reads | from |
//! | --- | --- | --- |
//! | [`optdigits`] | 8×8 digits | the binary itself |
//! | [`shakespeare`] | characters | the binary itself |
//! | [`idx`] | MNIST, Fashion-MNIST | IDX files, plain or gzip |
//! | [`cifar`] | CIFAR-10 | binary records of 3,073 bytes, plain or gzip |
//! | [`text`] | PTB, WikiText, any text | text files, plain or gzip |
//!
//! Every loader is total: a file is read completely or refused with a [`DataError`] that names the file and what is
//! wrong with it. Nothing is allocated because a header asks for it.

pub mod batch;
pub mod cifar;
mod error;
mod file;
pub mod idx;
mod images;
pub mod optdigits;
pub mod shakespeare;
mod source;
pub mod text;

pub use batch::{Batch, Batches, Plan};
pub use error::{DataError, DataFault};
pub use images::{ImageSet, Images, Scaling};
pub use source::{Level, Source};
pub use text::{Text, Vocabulary};

/// A task: what to train on and what to test on.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Classification of images.
    Images(Images),
    /// Prediction of the next token.
    Text(Text),
}

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the model learns from.
    Train,
    /// What it is measured on while it learns. The test part where a data set has no third one.
    Valid,
    /// What it is measured on at the end.
    Test,
}

/// What a model has to know of a data set: the shape of its input and of its output.
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

impl Dataset {
    /// Short name, as reports print it.
    pub fn name(&self) -> &str {
        match self {
            Self::Images(images) => images.name(),
            Self::Text(text) => text.name(),
        }
    }

    /// What a model has to know.
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
