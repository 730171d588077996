//! Why a transport over ZeroMQ cannot start.

use std::fmt;
use std::path::PathBuf;

use crate::rank::Rank;
use crate::terms::Difference;

/// Why a transport was not made. Later failures are [`TransportError`](crate::TransportError)s and
/// [`Event`](super::Event)s.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZmqError {
    /// The libzmq that this program is linked with has no CURVE, so nothing could be encrypted or
    /// authenticated.
    NoCurve,
    /// An address other than loopback, without keys.
    NotLoopback {
        /// The address of the socket.
        endpoint: String,
    },
    /// A key file that cannot be read, written or trusted.
    KeyFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A list of peers that is not valid.
    Roster {
        /// The line, from 1; 0 for the list as a whole.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Options that contradict each other.
    Options {
        /// The contradiction.
        what: String,
    },
    /// libzmq refused.
    Socket {
        /// The operation that failed.
        what: String,
        /// libzmq's message.
        error: String,
    },
    /// The system makes no thread.
    Threads {
        /// The system's message.
        error: String,
    },
    /// The two ends do not agree on the layout, the codec, the version of the protocol, or another term. Both
    /// get this error.
    Differs {
        /// The other end.
        peer: Rank,
        /// The terms on which they differ; at least one.
        differences: Vec<Difference>,
    },
    /// The peer refuses this end.
    Refused {
        /// The peer that refused.
        peer: Rank,
        /// Why.
        why: String,
    },
    /// The peer does not know this end's key, or does not admit it.
    Denied {
        /// The peer that denied it.
        peer: Rank,
        /// Where.
        endpoint: String,
    },
    /// Some peers could not be reached, or did not come, before the deadline.
    NotAllThere {
        /// The peers that are missing, and what is known of why: where each is looked for, how far it has
        /// come.
        missing: Vec<(Rank, String)>,
    },
}

impl fmt::Display for ZmqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCurve => write!(
                f,
                "the libzmq in this program has no CURVE, so nothing can be encrypted or authenticated: build it again with \
                 the system's libzmq (Debian, Ubuntu: apt-get install libzmq3-dev, and the stanza [target.TRIPLE.zmq] in \
                 .cargo/config.toml), or with CXXFLAGS='-DZMQ_HAVE_CURVE=1 -DZMQ_USE_LIBSODIUM=1' RUSTFLAGS=-lsodium and \
                 libsodium-dev"
            ),
            Self::NotLoopback { endpoint } => {
                write!(
                    f,
                    "{endpoint} is not on the loopback interface: without keys, nothing else is allowed"
                )
            }
            Self::KeyFile { path, what } => write!(f, "key file {}: {what}", path.display()),
            Self::Roster { line: 0, what } => write!(f, "list of peers: {what}"),
            Self::Roster { line, what } => write!(f, "list of peers, line {line}: {what}"),
            Self::Options { what } => write!(f, "{what}"),
            Self::Socket { what, error } => write!(f, "{what}: {error}"),
            Self::Threads { error } => write!(
                f,
                "no thread for the network: {error}; raise the limit on processes: ulimit -u, TasksMax of a systemd \
                 unit, the pids limit of a container"
            ),
            Self::Differs { peer, differences } => {
                write!(f, "{peer} does not fit: {}", Difference::line(differences))
            }
            Self::Refused { peer, why } => write!(f, "refused by {peer}: {why}"),
            Self::Denied { peer, endpoint } => {
                write!(f, "{peer} at {endpoint} does not let this key in: is it on its list?")
            }
            Self::NotAllThere { missing } => {
                let names: Vec<String> =
                    missing.iter().map(|(rank, known)| format!("{rank} ({known})")).collect();
                write!(f, "not there in time: {}", names.join(", "))
            }
        }
    }
}

impl std::error::Error for ZmqError {}
