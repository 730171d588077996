//! The data sets by name.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{DataError, DataFault, Dataset, Level, cifar, idx, optdigits, shakespeare, text};

/// A data set that the trainer knows, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Shipped digits of 8×8 pixels.
    Optdigits,
    /// Shipped text, by characters.
    TinyShakespeare,
    /// IDX files of MNIST.
    Mnist,
    /// IDX files of Fashion-MNIST.
    FashionMnist,
    /// Binary files of CIFAR-10.
    #[value(name = "cifar-10")]
    #[serde(rename = "cifar-10")]
    Cifar10,
    /// Text files of the Penn Treebank, by words.
    Ptb,
    /// Text files of WikiText-2, by words.
    #[value(name = "wikitext-2")]
    #[serde(rename = "wikitext-2")]
    WikiText2,
    /// Text files of the user, by words.
    Text,
    /// Text files of the user, by characters.
    Characters,
}

impl Source {
    /// Whether the data set ships with the trainer.
    pub fn is_shipped(self) -> bool {
        matches!(self, Self::Optdigits | Self::TinyShakespeare)
    }

    /// Whether the next token is predicted.
    pub fn is_text(self) -> bool {
        matches!(self, Self::TinyShakespeare | Self::Ptb | Self::WikiText2 | Self::Text | Self::Characters)
    }

    /// Reads the data set; `folder` is not looked at by the shipped ones.
    ///
    /// # Errors
    ///
    /// `NoFolder` if a folder is needed and none was given; otherwise the errors of the loader.
    pub fn load(self, folder: Option<&Path>) -> Result<Dataset, DataError> {
        let needed = || {
            let fault = || DataFault::NoFolder { wanted: self.files() }.of(PathBuf::from(self.to_string()));
            folder.ok_or_else(fault)
        };
        match self {
            Self::Optdigits => optdigits::load(),
            Self::TinyShakespeare => shakespeare::load(),
            _ => self.load_in_or_below(needed()?),
        }
    }

    /// Reads the folder, or the first below it that has the files.
    fn load_in_or_below(self, folder: &Path) -> Result<Dataset, DataError> {
        let missing = match self.load_in(folder) {
            Err(error) if matches!(error.fault, DataFault::Missing { .. }) => error,
            other => return other,
        };
        for below in self.folders().iter().map(|name| folder.join(name)).filter(|below| below.is_dir()) {
            match self.load_in(&below) {
                Err(error) if matches!(error.fault, DataFault::Missing { .. }) => {}
                other => return other,
            }
        }
        Err(missing)
    }

    fn load_in(self, folder: &Path) -> Result<Dataset, DataError> {
        match self {
            Self::Mnist | Self::FashionMnist => idx::load(&self.to_string(), folder),
            Self::Cifar10 => cifar::load(folder),
            Self::Ptb | Self::WikiText2 => text::load_named(&self.to_string(), folder, Level::Words),
            Self::Text => text::load(folder, Level::Words),
            Self::Characters => text::load(folder, Level::Characters),
            Self::Optdigits | Self::TinyShakespeare => self.load(None),
        }
    }

    /// The files that its folder should have, in words.
    fn files(self) -> &'static str {
        match self {
            Self::Mnist | Self::FashionMnist => {
                "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz"
            }
            Self::Cifar10 => "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
            Self::Ptb => "ptb.train.txt, ptb.valid.txt and ptb.test.txt",
            Self::WikiText2 => "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
            Self::Text | Self::Characters => "train.txt, valid.txt and test.txt, or a single file of text",
            Self::Optdigits | Self::TinyShakespeare => "nothing",
        }
    }

    /// Names that the folder with the files has inside the one that users give: those of the archives, of
    /// torchvision, and of the data set itself.
    fn folders(self) -> &'static [&'static str] {
        match self {
            Self::Mnist => &["mnist", "MNIST/raw", "raw"],
            Self::FashionMnist => &["fashion-mnist", "FashionMNIST/raw", "raw"],
            Self::Cifar10 => &["cifar-10-batches-bin", "cifar-10/cifar-10-batches-bin", "cifar-10"],
            Self::Ptb => &["ptb", "simple-examples/data", "data"],
            Self::WikiText2 => &["wikitext-2", "wikitext-2-raw"],
            Self::Optdigits | Self::TinyShakespeare | Self::Text | Self::Characters => &[],
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needed_folder_is_asked_for() {
        for source in Source::value_variants().iter().filter(|source| !source.is_shipped()) {
            let said = source.load(None).unwrap_err().to_string();
            let begin =
                format!("{source}: it does not ship with the trainer: give --data-dir, the folder with ");
            assert!(said.starts_with(&begin) && said.len() > begin.len() + 20, "{said}");
        }
    }
}
