//! Errors in words.

use std::fmt;

use super::ExchangeError;

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
                write!(f, "{codec} for the way back of the mean: only a server of frames encodes one")
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
                write!(f, "no parts that are added one by one over {route}: use all-gather, sparse all-reduce or owners")
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
