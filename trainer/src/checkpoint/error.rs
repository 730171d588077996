//! Why a checkpoint cannot be written, or not be gone on from.

use std::io;
use std::path::PathBuf;

/// A checkpoint was not written, or is not one. The text is one line and names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no checkpoint.
    #[error("{}: no checkpoint in this folder", .0.display())]
    None(PathBuf),
    /// What is there is damaged.
    #[error("{}: {what}{}", path.display(), before.as_ref().map(|path| format!("; the checkpoint before it can be resumed with --resume {}", path.display())).unwrap_or_default())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The checkpoint before this one, if there is one.
        before: Option<PathBuf>,
    },
    /// The checkpoint belongs to another program, version or model.
    #[error("{}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl CheckpointError {
    pub(super) fn corrupt(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.into(), what: what.into(), before: None }
    }

    pub(super) fn foreign(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Foreign { path: path.into(), what: what.into() }
    }
}

/// Puts the path in front of what the system says.
pub(super) fn at(path: &std::path::Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    |error| CheckpointError::Io { path: path.to_path_buf(), error }
}
