//! Why a memory could not be saved, or decayed.

use core::fmt;

/// Why a [`Memory`](crate::Memory) could not be [saved](crate::Memory::save). Nothing was written.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveError {
    /// The buffer holds `actual` bytes; the memory takes `needed`.
    BufferTooSmall {
        /// Bytes that [`saved_bytes`](crate::Memory::saved_bytes) asks for; `usize::MAX` if they cannot be
        /// counted.
        needed: usize,
        /// Bytes that the caller lent.
        actual: usize,
    },
    /// The memory has `states` unit states; a saved one has fewer than 2³².
    TooManyStates {
        /// Number of unit states.
        states: usize,
    },
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall { needed, actual } => {
                write!(f, "buffer holds {actual} bytes, the saved memory needs {needed}")
            }
            Self::TooManyStates { states } => {
                write!(f, "{states} unit states are too many for a saved memory, which has fewer than 2^32")
            }
        }
    }
}

impl core::error::Error for SaveError {}

/// A factor by which a residual cannot [decay](crate::Memory::decay): below 0, above 1 or NaN. Nothing was
/// changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecayError;

impl fmt::Display for DecayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a residual decays by a factor from 0 to 1")
    }
}

impl core::error::Error for DecayError {}
