//! Messages that a rank does not take.

use std::fmt;

use crate::rank::Rank;
use crate::tag::Tag;

/// Why a message was refused. The step goes on without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sender is not a member, or is this rank itself.
    Stranger {
        /// Who sent it.
        from: Rank,
    },
    /// It belongs to another membership.
    OtherEpoch {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: Tag,
    },
    /// The same sender has sent this tag before.
    Duplicate {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: Tag,
    },
    /// It belongs to a step that is over.
    Stale {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: Tag,
    },
    /// Nobody has asked for it yet, and there is no room for more such messages of its sender. Hand it in
    /// again later.
    Full {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: Tag,
        /// Its bytes.
        message: Vec<u8>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger { from } => write!(f, "{from} is not a peer of this rank"),
            Self::OtherEpoch { from, tag } => write!(f, "message from {from} of another epoch ({tag})"),
            Self::Duplicate { from, tag } => write!(f, "second message from {from} with one tag ({tag})"),
            Self::Stale { from, tag } => write!(f, "message from {from} of a step that is over ({tag})"),
            Self::Full { from, tag, message } => {
                write!(f, "no room for {} bytes that {from} sent early ({tag})", message.len())
            }
        }
    }
}

impl std::error::Error for Refusal {}
