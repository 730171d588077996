//! What can go wrong on the way from gradients to a mean.

mod code;
mod text;

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
    /// The codec has rounds between all workers and no frames. It works with all-reduce, and with a server if
    /// all codecs of the plan are linear.
    NoFrames {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec has rounds before its frame, in which all ranks take part. Only all-gather supports them.
    RoundsFirst {
        /// Name of the codec.
        codec: &'static str,
    },
    /// A codec for the downlink was set on a route without a server, or where the server reduces payloads.
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
    /// A norm cap was requested with packets, which are added before the norm of the whole is known, or with
    /// payloads, which have none.
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

    /// The same, unless a frame could not be given back because of it.
    pub(super) fn unless_given_back(self, given: Result<(), DecodeError>) -> Self {
        match given {
            Ok(()) => self,
            Err(error) => Self::NotGivenBack { error, cause: Box::new(self) },
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
