//! What can go wrong between two ranks.

use std::fmt;

use crate::rank::Rank;
use crate::tag::Tag;

/// Why a message was not sent or not received, with the rank and the tag where they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportError {
    /// The deadline passed before the message arrived.
    Timeout {
        /// The expected sender.
        from: Rank,
        /// The tag of the expected message.
        tag: Tag,
    },
    /// The deadline passed before the receiver had room for the message; it was not sent.
    NoRoom {
        /// The rank whose inbox stayed full.
        to: Rank,
        /// The message that was not sent.
        tag: Tag,
    },
    /// A wait without a deadline would not end: before the message its sender sent others, which leave no
    /// room and for which nobody waits.
    Flooded {
        /// The sender.
        from: Rank,
        /// The tag of the expected message.
        tag: Tag,
    },
    /// The peer is gone, and nothing more will come from it.
    Disconnected {
        /// The rank that is gone.
        rank: Rank,
    },
    /// The message is larger than this transport can carry.
    TooLarge {
        /// To whom it was addressed.
        to: Rank,
        /// The message that was not sent.
        tag: Tag,
        /// Its length.
        bytes: usize,
        /// The largest length that is carried.
        limit: usize,
    },
    /// A message of a collective has another length than the collective sends.
    WrongLength {
        /// The sender.
        from: Rank,
        /// Which message.
        tag: Tag,
        /// The length it must have.
        expected: usize,
        /// The length it has.
        actual: usize,
    },
    /// A member agrees on other scalars than this rank: other types or folds, or another number of them.
    OtherScalars {
        /// That member.
        from: Rank,
        /// The tag that the agreement was called with.
        tag: Tag,
    },
    /// The rank is not in the membership, or is this rank itself.
    NotAPeer {
        /// The rank that was named.
        rank: Rank,
    },
    /// A collective was called with a tag whose epoch is not that of the membership.
    WrongEpoch {
        /// The tag it was called with.
        tag: Tag,
        /// The epoch of the membership.
        current: u32,
    },
    /// The chunk or the world is too large for the tags of a collective.
    TagOutOfRange {
        /// The tag it was called with.
        tag: Tag,
    },
    /// The tag is older than those that this rank still accepts.
    Retired {
        /// The requested tag.
        tag: Tag,
    },
    /// This end was closed.
    Closed,
    /// The transport has no such operation.
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
}

impl TransportError {
    /// The rank whose message did not come or go.
    #[must_use]
    pub fn peer(&self) -> Option<Rank> {
        match self {
            Self::Timeout { from: rank, .. }
            | Self::NoRoom { to: rank, .. }
            | Self::Flooded { from: rank, .. }
            | Self::Disconnected { rank }
            | Self::TooLarge { to: rank, .. }
            | Self::WrongLength { from: rank, .. }
            | Self::OtherScalars { from: rank, .. }
            | Self::NotAPeer { rank } => Some(*rank),
            _ => None,
        }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { from, tag } => write!(f, "no message from {from} in time ({tag})"),
            Self::NoRoom { to, tag } => write!(f, "the inbox of {to} stayed full until the deadline ({tag})"),
            Self::Flooded { from, tag } => write!(
                f,
                "{from} filled the inbox with messages that nobody waits for, before the one that is waited for ({tag}): do \
                 all ranks run the same program with the same settings?"
            ),
            Self::Disconnected { rank } => write!(f, "{rank} is gone"),
            Self::TooLarge { to, tag, bytes, limit } => {
                write!(f, "message of {bytes} bytes to {to} is over the limit of {limit} ({tag})")
            }
            Self::WrongLength { from, tag, expected, actual } => {
                write!(
                    f,
                    "message from {from} has {actual} bytes instead of {expected} ({tag}): do all ranks run the same \
                     program with the same settings?"
                )
            }
            Self::OtherScalars { from, tag } => {
                write!(
                    f,
                    "{from} agrees on other scalars than this rank ({tag}): do all ranks run the same program?"
                )
            }
            Self::NotAPeer { rank } => write!(f, "{rank} is not a peer of this rank"),
            Self::WrongEpoch { tag, current } => write!(
                f,
                "a message of epoch {}, while the membership is that of epoch {current} ({tag})",
                tag.epoch
            ),
            Self::TagOutOfRange { tag } => {
                write!(f, "chunk {} or world too large for a collective ({tag})", tag.chunk)
            }
            Self::Retired { tag } => write!(f, "messages this old are no longer taken ({tag})"),
            Self::Closed => write!(f, "this end of the transport is closed"),
            Self::Unsupported { operation } => write!(f, "this transport has no {operation}"),
        }
    }
}

impl std::error::Error for TransportError {}
