//! The options of a transport over ZeroMQ, and their checks.

use std::time::Duration;

use super::endpoint::{Endpoint, Use};
use super::error::ZmqError;
use super::event::Log;
use super::keys::{KeyPair, PublicKey};
use super::packet::DATA_HEADER;
use super::roster::Roster;
use crate::inbox::InboxLimits;
use crate::rank::Rank;
use crate::terms::Terms;

/// Which ends are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All ranks with all others. Of two, the lower rank listens.
    AllToAll,
    /// All ranks with the server, which listens.
    Star {
        /// The rank of the server.
        server: Rank,
    },
}

impl Topology {
    /// Whether `a` and `b` are connected, and if so, which of the two listens.
    pub(super) fn listener(self, a: Rank, b: Rank) -> Option<Rank> {
        match self {
            Self::AllToAll => Some(a.min(b)),
            Self::Star { server } => [a, b].contains(&server).then_some(server),
        }
    }
}

/// How peers prove who they are.
#[derive(Clone, Debug)]
pub enum Security {
    /// Encrypted and authenticated by CURVE. Only keys of the [`Roster`] are let in, each for its own rank.
    Curve(KeyPair),
    /// No proof. Whoever reaches the socket can claim any rank, and read and change everything.
    Plain {
        /// Whether interfaces other than loopback are allowed.
        beyond_loopback: bool,
    },
}

/// Whether a rank that is gone may come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Returns {
    /// Not in this run. All ranks must be there at the start.
    #[default]
    Never,
    /// At any time, with a new session. At the start, the listening end waits for no peer.
    AtAnyTime,
}

/// Bounds on memory. They must be the same at both ends of a link, which compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmqLimits {
    /// The most payload bytes of one chunk. Messages are cut into chunks, so that sending and receiving
    /// overlap, and so that signs of life are not held up: on a slow link chunks are shorter.
    pub chunk_bytes: usize,
    /// The most chunks in flight to one peer, sent but not acknowledged.
    pub window: usize,
    /// How much of each sender is stored until the caller takes it.
    pub inbox: InboxLimits,
    /// How much is stored for each receiver until it takes it. An empty queue takes one message of any legal
    /// size.
    pub outbox: InboxLimits,
    /// The longest payload. Use the bound of the codec.
    pub max_message_bytes: usize,
}

/// The most packets in flight that are not data.
const CONTROL_PACKETS: usize = 8;

/// What CURVE adds to a frame, which counts for libzmq's limit: name of the command 8, nonce 8, authenticator
/// 16, flags 1.
pub(super) const CURVE_BYTES: usize = 33;

impl Default for ZmqLimits {
    /// Chunks of 256 KiB, 16 in flight; 4096 messages and 64 MiB each way; 256 MiB a message.
    fn default() -> Self {
        let queue = InboxLimits { messages: 4096, bytes: 64 << 20 };
        Self { chunk_bytes: 256 << 10, window: 16, inbox: queue, outbox: queue, max_message_bytes: 256 << 20 }
    }
}

impl ZmqLimits {
    /// The longest frame that a peer may send. libzmq enforces this limit before it allocates memory for a
    /// frame.
    pub fn max_frame_bytes(&self) -> usize {
        // Greetings: terms of 64 names and values of 512 bytes, and some more.
        const GREETING: usize = 66 << 10;
        CURVE_BYTES + (DATA_HEADER + self.chunk_bytes).max(GREETING)
    }

    /// Frames that libzmq queues for one peer in one direction.
    pub fn high_water_mark(&self) -> usize {
        self.window + CONTROL_PACKETS
    }

    /// The most bytes that one peer can make this end store: libzmq's queues both ways, chunks that wait for
    /// room, one incomplete message, the inbox, and messages that wait to be sent to the peer.
    pub fn bytes_per_peer(&self) -> usize {
        let queues = self.high_water_mark().saturating_mul(self.max_frame_bytes()).saturating_mul(2);
        let kept = |queue: InboxLimits| queue.bytes.max(self.max_message_bytes);
        let [held_back, partial] = [self.window.saturating_mul(self.chunk_bytes), self.max_message_bytes];
        [held_back, partial, kept(self.inbox), kept(self.outbox)]
            .into_iter()
            .fold(queues, usize::saturating_add)
    }

    pub(super) fn check(&self) -> Result<(), ZmqError> {
        let range = |what: &str, holds: bool| {
            if holds { Ok(()) } else { Err(ZmqError::Options { what: what.to_owned() }) }
        };
        range("a chunk has 1 byte to 16 MiB", (1..=16 << 20).contains(&self.chunk_bytes))?;
        range("a window has 1 to 4096 chunks", (1..=4096).contains(&self.window))?;
        range("queues hold at least one message", self.inbox.messages.min(self.outbox.messages) > 0)
    }
}

/// Time limits. Two of them grow with what was measured of a link: its round trips, which include the time
/// for which data is on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The longest time until a connection has proved its identity, which takes four round trips and 2 kB.
    /// Whoever connects can hold a connection for that long.
    pub handshake: Duration,
    /// The time between two signs of life.
    pub heartbeat: Duration,
    /// After this time without a sign of life, a connection counts as lost; on a slow link after three late
    /// round trips, at most [`Timing::LONGEST_SILENCE`].
    pub silence: Duration,
    /// After this time without a sign of life, a peer is given up: its session ends, and callers that wait
    /// for it get `Disconnected`. On a slow link after thirty late round trips, at most
    /// [`Timing::LONGEST_GIVE_UP`].
    pub give_up: Duration,
}

impl Default for Timing {
    /// 30 s, 300 ms, 900 ms, 30 s.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { handshake: ms(30_000), heartbeat: ms(300), silence: ms(900), give_up: ms(30_000) }
    }
}

impl Timing {
    /// The longest silence of a link that is slow, whatever was measured.
    pub const LONGEST_SILENCE: Duration = Duration::from_secs(30);
    /// The longest time until the peer on a slow link is given up, whatever was measured.
    pub const LONGEST_GIVE_UP: Duration = Duration::from_secs(300);

    /// The silence after which a connection counts as lost, if acknowledgements are as late as that.
    pub(super) fn silence_at(&self, late: Duration) -> Duration {
        self.silence.max((3 * late).min(Self::LONGEST_SILENCE))
    }

    /// The time after which a peer whose connection broke should have made another one, if acknowledgements
    /// are as late as that: it dials again, and proves who it is.
    pub(super) fn back_at(&self, late: Duration) -> Duration {
        self.silence + (6 * late).min(Self::LONGEST_SILENCE)
    }

    /// The silence after which a peer is given up, if acknowledgements are as late as that.
    pub(super) fn give_up_at(&self, late: Duration) -> Duration {
        self.give_up.max((30 * late).min(Self::LONGEST_GIVE_UP))
    }
}

/// The options of a transport.
#[derive(Clone, Debug)]
pub struct ZmqOptions {
    /// The rank of this end.
    pub rank: Rank,
    /// All participants.
    pub roster: Roster,
    /// Which ends are connected.
    pub topology: Topology,
    /// Keys, or none.
    pub security: Security,
    /// Whether a rank that is gone may come back.
    pub returns: Returns,
    /// Values that must be equal at both ends.
    pub terms: Terms,
    /// Bounds on memory.
    pub limits: ZmqLimits,
    /// Time limits.
    pub timing: Timing,
    /// The receiver of events.
    pub log: Log,
}

impl ZmqOptions {
    /// Default limits and times. No peer may come back, and events are dropped.
    pub fn new(rank: Rank, roster: Roster, topology: Topology, security: Security, terms: Terms) -> Self {
        let (returns, limits, timing, log) = Default::default();
        Self { rank, roster, topology, security, returns, terms, limits, timing, log }
    }

    /// The peers that are connected to this end.
    pub(super) fn neighbours(&self) -> Vec<Rank> {
        let is_connected =
            |&rank: &Rank| rank != self.rank && self.topology.listener(self.rank, rank).is_some();
        self.roster.ranks().iter().filter(is_connected).collect()
    }

    /// Whether this end listens for that peer.
    pub(super) fn listens_for(&self, rank: Rank) -> bool {
        self.topology.listener(self.rank, rank) == Some(self.rank)
    }

    pub(super) fn check(&self, has_curve: bool) -> Result<(), ZmqError> {
        let fault = |what: String| Err(ZmqError::Options { what });
        self.limits.check()?;
        let Some(own) = self.roster.get(self.rank) else {
            return fault(format!("{} is not in the list of peers", self.rank));
        };
        if let Topology::Star { server } = self.topology
            && self.roster.get(server).is_none()
        {
            return fault(format!("the server, {server}, is not in the list of peers"));
        }
        let Security::Curve(pair) = &self.security else { return Ok(()) };
        if !has_curve {
            return Err(ZmqError::NoCurve);
        }
        if own.key != Some(pair.public()) {
            return fault(format!(
                "the list of peers gives {} another key than {}",
                self.rank,
                pair.public()
            ));
        }
        let keyless = self.neighbours().into_iter().find(|&rank| self.key_of(rank).is_none());
        keyless.map_or(Ok(()), |rank| fault(format!("the list of peers has no key for {rank}")))
    }

    pub(super) fn key_of(&self, rank: Rank) -> Option<PublicKey> {
        self.roster.get(rank)?.key
    }

    /// The address of a socket, if one is allowed there: anywhere with keys, only on loopback without.
    pub(super) fn endpoint(&self, text: &str, used: Use) -> Result<Endpoint, ZmqError> {
        let refused = |what| ZmqError::Options { what };
        let endpoint = Endpoint::parse(text).map_err(refused)?;
        match self.security {
            Security::Plain { beyond_loopback: false } if !endpoint.is_loopback() => {
                Err(ZmqError::NotLoopback { endpoint: text.to_owned() })
            }
            _ => endpoint.is_fit_to(used).map(|()| endpoint).map_err(refused),
        }
    }

    /// The caller's terms, then those of the link itself. The link's come last, because a difference in the
    /// caller's terms often explains one in the link's.
    pub(super) fn all_terms(&self) -> Terms {
        let ZmqLimits { chunk_bytes, window, max_message_bytes, .. } = self.limits;
        let link =
            format!("chunks of {chunk_bytes} bytes, window {window}, messages up to {max_message_bytes}");
        self.terms.clone().with("zmq link", link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_time_follow_from_the_link_and_are_bounded() {
        let (timing, seconds) = (Timing::default(), Duration::from_secs_f64);
        for (late, silence, give_up) in [
            (0.0, 0.9, 30.0),
            (0.001, 0.9, 30.0),
            (0.6, 1.8, 30.0),
            (1.5, 4.5, 45.0),
            (5.0, 15.0, 150.0),
            (60.0, 30.0, 300.0),
            (1e6, 30.0, 300.0),
        ] {
            assert_eq!(timing.silence_at(seconds(late)), seconds(silence));
            assert_eq!(timing.give_up_at(seconds(late)), seconds(give_up));
        }
        let patient = Timing { silence: seconds(100.0), give_up: seconds(1000.0), ..timing };
        assert_eq!(patient.silence_at(seconds(60.0)), seconds(100.0));
        assert_eq!(patient.give_up_at(seconds(60.0)), seconds(1000.0));
    }

    #[test]
    fn the_memory_bound_counts_queues_backlog_messages_and_inboxes() {
        let queue = InboxLimits { messages: 4, bytes: 1000 };
        let limits = ZmqLimits {
            chunk_bytes: 100_000,
            window: 2,
            inbox: queue,
            outbox: queue,
            max_message_bytes: 500,
        };
        assert_eq!(
            limits.bytes_per_peer(),
            2 * 10 * (CURVE_BYTES + DATA_HEADER + 100_000) + 200_000 + 500 + 2 * 1000
        );
    }
}
