//! Why training over the network fails.

use std::path::{Path, PathBuf};

use gradwire_transports::TransportError;
use gradwire_transports::zmq::ZmqError;

use crate::checkpoint::ReplicaError;
use crate::run::RunError;
use crate::step::StepError;

/// Why training over the network ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Keys, lists of peers, sockets, or ends that do not fit together.
    #[error(transparent)]
    Zmq(#[from] ZmqError),
    /// The other end is gone, or something did not come in time.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A step failed at this end.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The server's state does not fit.
    #[error("the server's state: {0}")]
    State(#[from] ReplicaError),
    /// The other end did not come, or not back, within `--wait`.
    #[error("{why}")]
    NobodyCame {
        /// Who is missing, where this end is or looked, and what may help.
        why: String,
        /// Steps done.
        steps: u64,
    },
    /// The run was ended, or its record cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file for the sums of every step.
    #[error("{}: {what}", path.display())]
    Trace {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        what: String,
    },
}

impl RemoteError {
    pub(crate) fn trace(path: &Path, error: &std::io::Error) -> Self {
        Self::Trace { path: path.to_path_buf(), what: error.to_string() }
    }
}
