//! What one rank reports about a step.

use std::time::Duration;

use gradwire::DecodeError;
use gradwire::arithmetic::gain::Gain;

use super::norm_cap::Capped;
use crate::rank::{Rank, RankSet};

/// What one rank reports about the exchange of a step.
#[derive(Clone, Debug)]
pub struct Report {
    /// The ranks whose gradients are in the mean.
    pub contributors: RankSet,
    /// Frames that this rank refused, and why. Only the server knows them.
    pub refused: Vec<(Rank, DecodeError)>,
    /// Frames that were scaled down to [`ServerOptions::norm_cap`](super::ServerOptions::norm_cap). Only the
    /// server knows them.
    pub capped: Vec<Capped>,
    /// Bytes of this rank's own frame or packets, of its all-reduce payload, or of its parts and sums in a
    /// sparse all-reduce.
    pub frame_bytes: usize,
    /// How many of this rank's own packets are in the mean.
    pub packets: PacketTally,
    /// Coordinates that this rank sent.
    pub held: usize,
    /// How much of this rank's gradient its frames hold, if the exchange
    /// [measures](super::Exchange::measuring_gain) it; none for payloads that are summed.
    pub gain: Option<Gain>,
    /// Time spent encoding.
    pub encode: Duration,
    /// Time spent sending and waiting.
    pub exchange: Duration,
    /// Time spent parsing, adding and dividing.
    pub decode: Duration,
}

/// The kinds of work in a step, which a driver times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Encoding.
    Encode,
    /// Parsing, adding and dividing.
    Decode,
    /// Moving payloads to and from messages, and everything else.
    Exchange,
}

/// What a call that works on a step did.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress<T> {
    /// A piece of work. Call again.
    Worked(Work),
    /// Nothing: a message is missing, or a queued one has not left. Call again once one came or left, or at
    /// the deadline.
    Waiting,
    /// A payload is lent to the library of the network. Call again once it is summed.
    Lent,
    /// All of it.
    Done(T),
}

/// Time spent in each phase of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    pub(crate) encode: Duration,
    pub(crate) exchange: Duration,
    pub(crate) decode: Duration,
}

/// Packets of a step; both zero for a step with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketTally {
    /// Packets that this rank sent.
    pub sent: usize,
    /// Packets that are not in the mean: lost on the way, late or refused. They were given back.
    pub lost: usize,
}
