//! Why a transport over TCP cannot start.

use std::fmt;
use std::path::PathBuf;

use super::greeting::VERSION;
use crate::rank::Rank;
use crate::terms::Difference;

/// Why a transport was not made. Later failures are [`TransportError`](crate::TransportError)s.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpError {
    /// An address that is not on the loopback interface, without a key.
    NotLoopback {
        /// The address.
        address: String,
    },
    /// A key file that cannot be read, written or trusted.
    KeyFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Options that contradict each other.
    Options {
        /// The contradiction.
        what: String,
    },
    /// This end cannot listen at this address.
    Listen {
        /// The address.
        address: String,
        /// The system's message.
        error: String,
    },
    /// The system refuses something else.
    System {
        /// What was asked for.
        what: String,
        /// Its message.
        error: String,
    },
    /// The two ends do not agree on the layout, the codec or another term. Both get this error.
    Differs {
        /// The other end.
        peer: Rank,
        /// Its address.
        address: String,
        /// The terms on which they differ; at least one.
        differences: Vec<Difference>,
    },
    /// The peer has another key. It hears the same of this end, and goes on waiting.
    OtherKey {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: String,
    },
    /// One of the two ends encrypts and the other one does not.
    Encryption {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: String,
        /// Whether it is the peer that encrypts.
        they_encrypt: bool,
    },
    /// The peer has another version of the protocol.
    Version {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: String,
        /// Its version.
        theirs: u16,
    },
    /// The peer refuses this end.
    Refused {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: String,
        /// Why.
        why: String,
    },
    /// All steps of the run are done, says a peer that was made with
    /// [`Bound::dismiss`](super::Bound::dismiss).
    Over {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: String,
    },
    /// A rank was there and is gone before all were there; the others may have begun.
    Lost {
        /// Which rank.
        rank: Rank,
    },
    /// Some ranks could not be reached, or did not come, before the deadline.
    NotAllThere {
        /// The ranks that are missing, and what is known of the reason.
        missing: Vec<(Rank, String)>,
        /// Who else connected and was turned away last, and why.
        turned_away: Vec<String>,
    },
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoopback { address } => write!(
                f,
                "{address} is not on the loopback interface: give all ranks one key file, or ask for no encryption by name"
            ),
            Self::KeyFile { path, what } => write!(f, "key file {}: {what}", path.display()),
            Self::Options { what } => write!(f, "{what}"),
            Self::Listen { address, error } => write!(f, "cannot listen at {address}: {error}"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
            Self::Differs { peer, address, differences } => {
                write!(f, "{peer} at {address} does not fit: {}", Difference::line(differences))
            }
            Self::OtherKey { peer, address } => {
                write!(f, "{peer} at {address} has another key: copy one key file to all hosts")
            }
            Self::Encryption { peer, address, they_encrypt: true } => {
                write!(f, "{peer} at {address} encrypts, and this end has no key")
            }
            Self::Encryption { peer, address, they_encrypt: false } => {
                write!(f, "{peer} at {address} has no key, and this end encrypts")
            }
            Self::Version { peer, address, theirs } => {
                write!(f, "{peer} at {address} has version {theirs} of the protocol, and this end {VERSION}")
            }
            Self::Refused { peer, address, why } => write!(f, "refused by {peer} at {address}: {why}"),
            Self::Over { peer, address } => write!(f, "{peer} at {address} says that the run is over"),
            Self::Lost { rank } => write!(f, "{rank} was there and is gone before all were there"),
            Self::NotAllThere { missing, turned_away } => {
                let names: Vec<_> = missing.iter().map(|(rank, known)| format!("{rank} ({known})")).collect();
                write!(f, "not there in time: {}", names.join(", "))?;
                if !turned_away.is_empty() {
                    write!(f, "; turned away: {}", turned_away.join("; "))?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for TcpError {}
