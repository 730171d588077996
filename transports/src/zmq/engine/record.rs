//! What only the thread knows of a peer, and how packets reach it.

use std::time::{Duration, Instant};

use zmq::{Message, Socket};

use crate::rank::Rank;
use crate::zmq::dial::Dial;
use crate::zmq::state::State;

/// When both ends leave: the longest time that this end waits for the peer to hang up first, or as long as
/// the link is silent without anything being wrong.
const UNTIL_PARTED: Duration = Duration::from_secs(1);

/// How packets reach a peer.
pub(in crate::zmq) enum Path {
    /// It connects to this end. The routing id is that of its current connection.
    Accepts { route: Option<Vec<u8>> },
    /// This end connects to it.
    Connects(Box<Dial>),
}

/// What only the thread knows of a peer. In the order of [`State::peers`].
pub(in crate::zmq) struct PeerRecord {
    pub(in crate::zmq) rank: Rank,
    pub(in crate::zmq) path: Path,
    pub(in crate::zmq) heard: Instant,
    /// At an end that listens: when the peer was welcomed over this connection, and the length of the answer,
    /// until it answers.
    pub(in crate::zmq) welcomed: Option<(Instant, usize)>,
    /// At an end that listens: when its connection broke, until it has another one.
    pub(in crate::zmq) broke: Option<Instant>,
    /// Sockets made for it so far.
    pub(in crate::zmq) dials: u64,
    /// When this end received its last word.
    pub(in crate::zmq) left: Option<Instant>,
}

impl PeerRecord {
    /// Whether this end leaves too, and must wait for a peer that said its last word but has not hung up. If
    /// this end hung up first, the peer's socket would drop messages that it has not read yet: libzmq does so
    /// when nothing may be queued without a connection. The answer to the last word could be among them, and
    /// the peer would wait for it in vain.
    pub(super) fn is_parting(&self, state: &State, silence: Duration, now: Instant) -> bool {
        let is_recent = |left| now.saturating_duration_since(left) < UNTIL_PARTED.max(silence);
        let is_connected = matches!(self.path, Path::Accepts { route: Some(_) });
        state.closing.is_some() && is_connected && self.left.is_some_and(is_recent)
    }
}

/// The result of passing a packet to a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// The queue is full; try again later.
    Full,
    /// There is no connection.
    Lost,
}

impl Path {
    pub(super) fn send(&mut self, router: Option<&Socket>, packet: Vec<u8>) -> Sent {
        let (result, route) = match self {
            Self::Accepts { route: None } => return Sent::Lost,
            Self::Connects(dial) if !dial.is_greeted() => return Sent::Lost,
            Self::Connects(dial) => (dial.socket.send(packet, zmq::DONTWAIT), None),
            Self::Accepts { route } => {
                let (Some(id), Some(router)) = (route.as_ref(), router) else { return Sent::Lost };
                (
                    router.send_multipart([Message::from(&id[..]), Message::from(packet)], zmq::DONTWAIT),
                    Some(route),
                )
            }
        };
        match (result, route) {
            (Ok(()), _) => Sent::Yes,
            (Err(zmq::Error::EHOSTUNREACH), Some(route)) => {
                *route = None;
                Sent::Lost
            }
            (Err(_), _) => Sent::Full,
        }
    }
}
