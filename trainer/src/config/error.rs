//! What can be wrong with a configuration.

use std::path::PathBuf;

use crate::range::RangeError;

/// A configuration was refused. The text is one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key has a value that it must not have.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The codec's spelling was refused.
    #[error("codec = {spelling}: {what}")]
    Codec {
        /// As it was given.
        spelling: String,
        /// What is wrong with it.
        what: String,
    },
    /// The rules by tensor name were refused.
    #[error("rules = {text}: {what}")]
    Rules {
        /// As they were given.
        text: String,
        /// What is wrong with them.
        what: String,
    },
    /// The spelling of what sets the densities was refused.
    #[error("adapt = {spelling}: {what}")]
    Adapt {
        /// As it was given.
        spelling: String,
        /// What is wrong with it.
        what: String,
    },
    /// Keys that do not go together.
    #[error("{0}")]
    Conflict(String),
    /// The configuration file cannot be read.
    #[error("{}: {what}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The line and what is wrong with it.
        what: String,
    },
}
