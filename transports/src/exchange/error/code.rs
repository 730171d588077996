//! The numbers of errors, and of refusals.

use super::ExchangeError;
use crate::error::TransportError;
use crate::exchange::refusal::Refusal;

impl ExchangeError {
    /// The number of this kind of error, for callers without Rust's enums. A number never changes its
    /// meaning; those of exchanges are 301 to 399. An error of encoding or decoding has
    /// [its own](gradwire::EncodeError::code).
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Encode(error) => error.code(),
            Self::Frame { error, .. } => error.code(),
            Self::NotGivenBack { cause, .. } => cause.code(),
            Self::NotLinear { .. } => 301,
            Self::NoFrames { .. } => 302,
            Self::RoundsFirst { .. } => 303,
            Self::NoDownlink { .. } => 304,
            Self::TooManyWorkers { .. } => 305,
            Self::NotSparse { .. } => 306,
            Self::NoSenders { .. } => 307,
            Self::OtherMemory { .. } => 308,
            Self::Conflict { .. } => 309,
            Self::OneMessage => 310,
            Self::Packets => 311,
            Self::NormCap { .. } => 312,
            Self::CappedPackets => 313,
            Self::Gossip { .. } => 314,
            Self::NotGossip { .. } => 315,
            Self::Busy => 316,
            Self::NotStarted => 317,
            Self::Downlink(_) => 318,
            Self::WrongStep { .. } => 319,
            Self::WrongUnits { .. } => 320,
            Self::NonFiniteMean { .. } => 321,
            Self::Void { .. } => 322,
            Self::NonFinitePayload { .. } => 323,
            Self::NoSum { .. } => 324,
            Self::NotAgreed { .. } => 325,
            Self::Undecided { .. } => 326,
            Self::NoQuorum { .. } => 327,
            Self::BadVerdict { .. } => 328,
            Self::NoParts { .. } => 329,
            Self::BadPart { .. } => 330,
            Self::OtherVersion { .. } => 331,
            Self::Failed { .. } => 332,
            Self::Transport(TransportError::Timeout { .. }) => 351,
            Self::Transport(TransportError::NoRoom { .. }) => 352,
            Self::Transport(TransportError::Disconnected { .. }) => 353,
            Self::Transport(_) => 354,
        }
    }
}

impl Refusal {
    /// As [`ExchangeError::code`], among whose numbers are those of refusals: 371 to 399.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Stranger { .. } => 371,
            Self::OtherEpoch { .. } => 372,
            Self::Duplicate { .. } => 373,
            Self::Stale { .. } => 374,
            Self::Full { .. } => 375,
        }
    }
}
