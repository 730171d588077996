//! The options of a transport over TCP.

use std::net::SocketAddr;
use std::time::Duration;

use super::error::TcpError;
use super::key::Key;
use crate::inbox::InboxLimits;
use crate::rank::Rank;
use crate::terms::Terms;

/// How ranks prove who they are, and whether others can read along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Encrypted and authenticated: only who has the key takes part.
    Key(Key),
    /// Neither. Refused as soon as an address is not on the loopback interface.
    Loopback,
    /// Neither, on any network. Whoever reaches the socket can take part, and read and change everything.
    Insecure,
}

impl Security {
    pub(super) fn key(&self) -> Option<&Key> {
        match self {
            Self::Key(key) => Some(key),
            Self::Loopback | Self::Insecure => None,
        }
    }

    /// Refuses an address that needs a key.
    pub(super) fn allow(&self, address: SocketAddr) -> Result<(), TcpError> {
        if *self == Self::Loopback && !address.ip().to_canonical().is_loopback() {
            return Err(TcpError::NotLoopback { address: address.to_string() });
        }
        Ok(())
    }
}

/// Bounds on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// How much of each sender is stored until the caller takes it. When it is full, this end stops reading.
    pub inbox: InboxLimits,
    /// How much is stored for each receiver until it is written to the socket. An empty queue takes one
    /// message of any legal size.
    pub outbox: InboxLimits,
    /// The longest payload, the same at all ranks.
    pub max_message_bytes: usize,
}

/// 8 GiB, or half of all that the machine can address.
const MAX_MESSAGE_BYTES: u64 = 8 << 30;

impl Default for TcpLimits {
    /// 4096 messages and 256 MiB each way; 8 GiB a message: a gradient of two billion f32 in one piece.
    fn default() -> Self {
        let queue = InboxLimits { messages: 4096, bytes: 256 << 20 };
        let max_message_bytes = usize::try_from(MAX_MESSAGE_BYTES).unwrap_or(usize::MAX / 2);
        Self { inbox: queue, outbox: queue, max_message_bytes }
    }
}

/// Limits of time. Once two ranks know each other, none of them passes while bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After this time without anything to send, an end sends a sign of life.
    pub heartbeat: Duration,
    /// After this time without a byte from it, a peer is gone: its host or the network is dead, or its
    /// process is stopped. Longer on a link that has been silent for long before, and then went on:
    /// three times as long as it was, at most [`Timing::LONGEST_SILENCE`].
    pub silence: Duration,
    /// How long the greeting of a connection may take; a second more for each 128 bytes of it that came.
    pub greeting: Duration,
}

impl Timing {
    /// The longest silence, whatever was seen of the link before.
    pub const LONGEST_SILENCE: Duration = Duration::from_secs(300);

    /// How long a greeting may take of which so many bytes came.
    pub(super) fn greeting_after(&self, bytes: u64) -> Duration {
        self.greeting.saturating_add(Duration::from_millis(bytes.saturating_mul(1000) / 128))
    }

    /// The silence after which a peer is gone, if it has been silent for `before` and went on.
    pub(super) fn silence_after(&self, before: Duration) -> Duration {
        self.silence.max(before.saturating_mul(3).min(Self::LONGEST_SILENCE))
    }
}

impl Default for Timing {
    /// 1 s, 10 s, 10 s.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { heartbeat: seconds(1), silence: seconds(10), greeting: seconds(10) }
    }
}

/// The options of one end.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The rank of this end.
    pub rank: Rank,
    /// Values that must be equal at all ranks.
    pub terms: Terms,
    /// A key, or none.
    pub security: Security,
    /// Bounds on memory.
    pub limits: TcpLimits,
    /// Limits of time.
    pub timing: Timing,
}

impl TcpOptions {
    /// Default limits.
    pub fn new(rank: Rank, terms: Terms, security: Security) -> Self {
        Self { rank, terms, security, limits: TcpLimits::default(), timing: Timing::default() }
    }

    pub(super) fn check(&self, world: usize) -> Result<(), TcpError> {
        let fault = |what: String| Err(TcpError::Options { what });
        if self.rank.0 as usize >= world {
            return fault(format!("{} does not exist among {world} ranks, which count from 0", self.rank));
        }
        if self.limits.inbox.messages.min(self.limits.outbox.messages) == 0 {
            return fault("queues hold at least one message".to_owned());
        }
        let Timing { heartbeat, silence, .. } = self.timing;
        if heartbeat.is_zero() || silence < 2 * heartbeat {
            return fault("a silence lasts at least two heartbeats".to_owned());
        }
        Ok(())
    }

    /// The caller's terms, then those of the transport itself.
    pub(super) fn all_terms(&self, world: usize) -> Terms {
        let own = format!("{world} ranks, messages up to {} bytes", self.limits.max_message_bytes);
        self.terms.clone().with("tcp mesh", own)
    }
}

/// How ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The address of every rank, as `host:port`, in rank order.
    Hosts(Vec<String>),
    /// Rank 0 listens at `root`; all others ask it for the addresses of the rest.
    Rendezvous {
        /// The address of rank 0, as `host:port`.
        root: String,
        /// How many ranks there are.
        world: u32,
    },
}

impl Meeting {
    pub(super) fn world(&self) -> usize {
        match self {
            Self::Hosts(hosts) => hosts.len(),
            Self::Rendezvous { world, .. } => *world as usize,
        }
    }

    /// The address of that rank, as far as it is known at the start.
    pub(super) fn address(&self, rank: usize) -> Option<&str> {
        match self {
            Self::Hosts(hosts) => hosts.get(rank).map(String::as_str),
            Self::Rendezvous { root, .. } => (rank == 0).then_some(root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_need_no_key() {
        for (address, is_loopback) in [
            ("127.0.0.1:80", true),
            ("127.3.2.1:80", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("0.0.0.0:80", false),
            ("[::]:80", false),
            ("10.0.0.1:80", false),
            ("[::ffff:10.0.0.1]:80", false),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Security::Loopback.allow(address).is_ok(), is_loopback, "{address}");
            assert!(Security::Insecure.allow(address).is_ok());
            assert!(Security::Key(Key::new([1; 32])).allow(address).is_ok());
        }
    }

    #[test]
    fn the_limit_on_silence_follows_from_the_silences_of_the_link() {
        let (timing, seconds) = (Timing::default(), Duration::from_secs);
        for (before, limit) in [(0, 10), (3, 10), (4, 12), (60, 180), (1000, 300)] {
            assert_eq!(timing.silence_after(seconds(before)), seconds(limit));
        }
        let patient = Timing { silence: seconds(1000), ..timing };
        assert_eq!(patient.silence_after(seconds(60)), seconds(1000));
    }
}
