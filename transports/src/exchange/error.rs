//! What can go wrong on the way from gradients to a mean.

use std::fmt;

use gradwire::plan::PlanError;
use gradwire::{DecodeError, EncodeError};

use crate::error::TransportError;
use crate::rank::Rank;

/// Why the exchange of a step failed, and which rank caused it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The codec's payloads cannot be summed, so it cannot use all-reduce.
    NotLinear {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec has rounds between all workers and no frames, so it works only with all-reduce.
    NoFrames {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec has rounds before its frame, in which all ranks take part. Only all-gather supports them.
    RoundsFirst {
        /// Name of the codec.
        codec: &'static str,
    },
    /// A codec for the downlink was set on a route without a server.
    NoDownlink {
        /// Name of the codec.
        codec: &'static str,
    },
    /// There are more workers than the codec's payloads can sum.
    TooManyWorkers {
        /// Name of the codec.
        codec: &'static str,
        /// The number of workers.
        workers: usize,
        /// How many there may be.
        most: u32,
    },
    /// The codec sends every coordinate, so a sparse all-reduce would gain nothing.
    NotSparse {
        /// Name of the codec.
        codec: &'static str,
    },
    /// A mean over senders ([`Divisor::Senders`](gradwire::format::Divisor::Senders)) was requested where it
    /// does not exist.
    NoSenders {
        /// Why.
        why: &'static str,
    },
    /// The codec keeps other parts in the memory than the previous codec, so it cannot replace it.
    OtherMemory {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec does not work with the memory or the packets that the spelling asks for, so it cannot
    /// replace the previous codec.
    Conflict {
        /// Name of the codec.
        codec: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The route sends a step in one message, so there is nothing to overlap.
    OneMessage,
    /// The spelling asks for packets, and the route has no server to say which of them arrived.
    Packets,
    /// A norm cap is a finite multiple of the median, at least 1.
    NormCap {
        /// The requested multiple.
        multiple: f32,
    },
    /// A norm cap was requested with packets, which are added before the norm of the whole is known.
    CappedPackets,
    /// The codec works between two neighbours and makes no mean over all.
    Gossip {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec makes a mean over all workers, not between two neighbours.
    NotGossip {
        /// Name of the codec.
        codec: &'static str,
    },
    /// Parts cannot be added one by one on this route.
    NoParts {
        /// The route.
        route: &'static str,
    },
    /// A part cannot be added.
    BadPart {
        /// Why.
        why: &'static str,
    },
    /// `rank` runs another version of the exchange. All ranks of a run have one release.
    OtherVersion {
        /// Who sent the message.
        rank: Rank,
        /// Its version.
        theirs: u8,
        /// The version here.
        own: u8,
    },
    /// The caller at `rank` has failed, and has said so: see [`Exchange::fail`](super::Exchange::fail). Or
    /// its gradient could not be encoded, with no coordinate to blame.
    Failed {
        /// Where, maybe here.
        rank: Rank,
        /// What it says.
        text: String,
    },
    /// A step was started before the previous one was finished.
    Busy,
    /// `finish` was called without `start`.
    NotStarted,
    /// This rank's gradient could not be encoded.
    Encode(EncodeError),
    /// The server could not encode the mean. What the downlink keeps is as it was, and every rank takes its
    /// frame back. Only the server gets this error; the others get `NoQuorum`.
    Downlink(EncodeError),
    /// A message did not arrive or could not be sent. If it is the answer of a parameter server, this rank
    /// cannot know whether its frame entered the mean. The frame is given back, and may then count twice.
    Transport(TransportError),
    /// The frame of `rank` was refused.
    Frame {
        /// Who sent it.
        rank: Rank,
        /// Why.
        error: DecodeError,
    },
    /// The frame of `rank` belongs to another step.
    WrongStep {
        /// Who sent it.
        rank: Rank,
        /// The step of the frame.
        frame: u64,
        /// The step of this rank.
        own: u64,
    },
    /// The frame of `rank` was made by another codec, holds other units, or states another divisor.
    WrongUnits {
        /// Who sent it.
        rank: Rank,
    },
    /// The mean is not finite. `rank` is the first whose frame made it so, if that is known.
    NonFiniteMean {
        /// First coordinate that is not finite.
        index: usize,
        /// The rank to blame.
        rank: Option<Rank>,
    },
    /// The step is void, because `rank` reported that its gradient cannot be encoded. That rank itself gets
    /// `Encode`. With a server the error is `NoQuorum`.
    Void {
        /// The rank that reported it.
        rank: Rank,
        /// First coordinate of its gradient that is not finite, or too large for the value format. If a codec
        /// of another crate refuses a unit, the first coordinate of that unit.
        index: usize,
    },
    /// The payload of a neighbour is not finite, or the numbers of `rank` in a round before a frame.
    NonFinitePayload {
        /// Who sent it.
        rank: Rank,
        /// First element of the payload that is not finite.
        index: usize,
    },
    /// The owner of some coordinates refused a part that it received, so there is no sum of them.
    NoSum {
        /// The owner.
        rank: Rank,
    },
    /// The step failed at `rank`, or `rank` did not say in time whether it has the mean. So the step failed
    /// at all ranks: see [The end of a step](super#the-end-of-a-step).
    NotAgreed {
        /// The rank without a mean.
        rank: Rank,
    },
    /// This rank had the mean, but `missing` did not say whether it had it too, and no other rank said how
    /// the step ended. The others may have used the mean; here the step is undone. Fetch the parameters anew.
    Undecided {
        /// Who did not say so.
        missing: Rank,
    },
    /// Too few frames reached the server in time. No frame entered a mean.
    NoQuorum {
        /// Frames that arrived in time.
        arrived: usize,
        /// Frames needed.
        quorum: usize,
        /// Frames that arrived and were refused, and why. Only the server knows them.
        refused: Vec<(Rank, DecodeError)>,
        /// The first rank that reported that its gradient cannot be encoded, and the coordinate.
        void: Option<(Rank, usize)>,
    },
    /// This rank's own frame cannot be read back into its memory, so its content is lost. Only a codec of
    /// another crate can cause this.
    NotGivenBack {
        /// What is wrong with the frame.
        error: DecodeError,
        /// The error that made giving it back necessary.
        cause: Box<ExchangeError>,
    },
    /// The server's answer names ranks that are not members, or is cut short.
    BadVerdict {
        /// The server.
        server: Rank,
    },
}

impl ExchangeError {
    /// Whether the step is void: the gradient of this rank, or of a rank that reported it, is not finite or
    /// too large to be sent.
    pub fn is_void(&self) -> bool {
        use EncodeError::{NonFiniteInput, ValueOverflow};
        if let Self::NotGivenBack { cause, .. } = self {
            return cause.is_void();
        }
        matches!(
            self,
            Self::Encode(NonFiniteInput { .. } | ValueOverflow { .. })
                | Self::Void { .. }
                | Self::NoQuorum { void: Some(_), .. }
        )
    }
}

impl ExchangeError {
    /// The number of this kind of error, for callers without Rust's enums. A number never changes its
    /// meaning; those of exchanges are 301 to 399. An error of encoding or decoding has
    /// [its own](EncodeError::code).
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

    /// The same, unless a frame could not be given back because of it.
    pub(super) fn unless_given_back(self, given: Result<(), DecodeError>) -> Self {
        match given {
            Ok(()) => self,
            Err(error) => Self::NotGivenBack { error, cause: Box::new(self) },
        }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinear { codec } => {
                write!(f, "{codec} frames cannot be summed: use all-gather or a server")
            }
            Self::NoFrames { codec } => {
                write!(f, "{codec} has rounds of sums and no frames: use all-reduce")
            }
            Self::RoundsFirst { codec } => {
                write!(f, "{codec} has rounds of all ranks before its frame: use all-gather")
            }
            Self::NoDownlink { codec } => {
                write!(f, "{codec} for the way back of the mean: only a server sends one back")
            }
            Self::TooManyWorkers { codec, workers, most } => {
                write!(f, "{codec}: the sum of {workers} workers may not fit its words, that of {most} does; use fewer levels")
            }
            // Some of these codecs can be summed and others cannot; these two routes take both.
            Self::NotSparse { codec } => {
                write!(f, "{codec} frames are not sparse: use all-gather or a server")
            }
            Self::NoSenders { why } => write!(f, "no mean over senders: {why}"),
            Self::OtherMemory { codec } => {
                write!(f, "{codec} keeps other things in the memory than the codec before it: begin a new exchange with it")
            }
            Self::Conflict { codec, why } => write!(f, "{codec} cannot follow the codec before it: {why}"),
            Self::OneMessage => f.write_str(
                "no pipeline: a step is one message here; several go with all-gather, sparse all-reduce and the ring of all-reduce",
            ),
            Self::Packets => write!(
                f,
                "max_packet_bytes: only a server can tell all workers which packets arrived; use that exchange"
            ),
            Self::NormCap { multiple } => {
                write!(f, "norm cap {multiple}: not a finite multiple of at least 1")
            }
            Self::CappedPackets => write!(
                f,
                "norm cap: packets are added before the norm of all is known; leave out max_packet_bytes or the cap"
            ),
            Self::Gossip { codec } => {
                write!(f, "{codec} is a gossip codec: it makes no mean over all workers")
            }
            Self::NotGossip { codec } => {
                write!(f, "{codec} is no gossip codec: it makes a mean over all workers")
            }
            Self::NoParts { route } => {
                write!(f, "no parts that are added one by one over {route}: use all-gather or owners")
            }
            Self::BadPart { why } => write!(f, "part not added: {why}"),
            Self::OtherVersion { rank, theirs, own } => write!(
                f,
                "{rank} exchanges by version {theirs}, this rank by version {own}: use one release at all ranks"
            ),
            Self::Failed { rank, text } => write!(f, "{rank} failed: {text}"),
            Self::Busy => write!(f, "the step before this one is not finished"),
            Self::NotStarted => write!(f, "no step was started"),
            Self::Encode(error) => write!(f, "gradient not encoded: {error}"),
            Self::Downlink(error) => write!(f, "mean not encoded for its way back: {error}"),
            Self::Transport(error) => write!(f, "{error}"),
            Self::Frame { rank, error } => write!(f, "frame of {rank} refused: {error}"),
            Self::WrongStep { rank, frame, own } => {
                write!(f, "frame of {rank} belongs to step {frame}, this rank is at step {own}")
            }
            Self::WrongUnits { rank } => {
                write!(f, "frame of {rank} has another codec, other units or another divisor")
            }
            Self::NonFiniteMean { index, rank: Some(rank) } => {
                write!(f, "mean not finite at coordinate {index} with the frame of {rank}")
            }
            Self::NonFiniteMean { index, rank: None } => write!(f, "mean not finite at coordinate {index}"),
            Self::Void { rank, index } => {
                write!(f, "step void: the gradient of {rank} cannot be sent, its coordinate {index} is to blame")
            }
            Self::NonFinitePayload { rank, index } => {
                write!(f, "payload of {rank} not finite at element {index}")
            }
            Self::NoSum { rank } => write!(f, "{rank} refused a part of its coordinates, and has no sum"),
            Self::NotAgreed { rank } => write!(f, "{rank} has no mean, so the step failed at all ranks"),
            Self::Undecided { missing } => write!(
                f,
                "{missing} did not say how the step ended, and nobody else did: others may have used the mean; fetch the parameters anew"
            ),
            Self::NoQuorum { arrived, quorum, void, .. } => {
                write!(f, "{arrived} good frames in time, {quorum} needed")?;
                let Some((rank, index)) = void else { return Ok(()) };
                write!(f, "; the gradient of {rank} cannot be sent, its coordinate {index} is to blame")
            }
            Self::NotGivenBack { error, cause } => {
                write!(f, "{cause}; own frame not given back to the memory, what it holds is lost: {error}")
            }
            Self::BadVerdict { server } => write!(f, "answer of server {server} makes no sense"),
        }
    }
}

impl std::error::Error for ExchangeError {}

impl From<TransportError> for ExchangeError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<EncodeError> for ExchangeError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

impl From<PlanError> for ExchangeError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::OtherMemory { codec } => Self::OtherMemory { codec },
            PlanError::Memory(error) => Self::Encode(error),
            PlanError::Conflict { codec, why } => Self::Conflict { codec, why },
        }
    }
}
