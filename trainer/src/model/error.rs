//! Why a model refuses.

use crate::range::RangeError;

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
    /// The backward pass gave no gradient for a parameter.
    #[error("no gradient for parameter `{0}`")]
    Gradient(String),
}
