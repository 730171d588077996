//! Why a checkpoint cannot be written, or why a run cannot continue from it.

use std::io;
use std::path::{Path, PathBuf};

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
    #[error("{}: damaged: {what}{}", path.display(), way_out(before.as_deref()))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The newest checkpoint before this one whose files are all whole, if there is one.
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

/// What to do instead of continuing where something is damaged.
pub(crate) fn way_out(before: Option<&Path>) -> String {
    let way = |path: &Path| format!("; the checkpoint before it is whole: --resume {}", path.display());
    before.map(way).unwrap_or_default()
}

impl CheckpointError {
    pub(super) fn corrupt(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.into(), what: what.into(), before: None }
    }

    /// The same for files of a draft, under the names that they would have got.
    pub(super) fn moved(self, draft: &Path, place: &Path) -> Self {
        let moved = |path: PathBuf| path.strip_prefix(draft).map(|name| place.join(name)).unwrap_or(path);
        match self {
            Self::Io { path, error } => Self::Io { path: moved(path), error },
            Self::Foreign { path, what } => Self::Foreign { path: moved(path), what },
            other => other,
        }
    }

    pub(super) fn foreign(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Foreign { path: path.into(), what: what.into() }
    }
}

/// As [`at`], for a file that belongs to a checkpoint: if it is missing, or something else is in its place,
/// the checkpoint is damaged.
pub(super) fn at_part(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => CheckpointError::corrupt(path, "it is missing"),
        io::ErrorKind::IsADirectory => CheckpointError::corrupt(path, "a folder is in its place"),
        io::ErrorKind::NotADirectory => CheckpointError::corrupt(path, "a file is in place of its folder"),
        _ => at(path)(error),
    }
}

/// Puts the path in front of what the system says.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    |error| CheckpointError::Io { path: path.to_path_buf(), error }
}
