//! What a data set is divided into.

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
