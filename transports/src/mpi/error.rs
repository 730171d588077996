//! Why there is no job.

use std::fmt;

/// Why MPI could not be started. Most failures never come here: the library ends the job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpiError {
    /// MPI was started in this process before. It can be started only once.
    StartedBefore,
    /// The library cannot be used from a program with threads.
    NoThreads,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartedBefore => write!(f, "MPI was started in this process before"),
            Self::NoThreads => write!(f, "the MPI library does not support programs with threads"),
        }
    }
}

impl std::error::Error for MpiError {}
