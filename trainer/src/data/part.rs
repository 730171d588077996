//! The parts of a data set.

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The part from which the model learns.
    Train,
    /// The part on which it is measured while it learns. The test part if a data set has no third one.
    Valid,
    /// The part on which it is measured at the end.
    Test,
}
