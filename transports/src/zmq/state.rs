//! What the caller's thread and the transport's own thread share.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::error::ZmqError;
use super::incoming::Arrivals;
use super::link::Link;
use super::options::ZmqLimits;
use super::roster::Roster;
use crate::inbox::Inbox;
use crate::rank::Rank;
use crate::tag::Deadline;

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has never been here.
    Expected,
    Here,
    /// It was here; whether it comes back is unknown.
    Silent,
    /// Its session is over.
    Gone,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: Rank,
    pub(super) standing: Standing,
    /// Its session. A session whose peer said its last word is kept, so that this can still be acknowledged.
    pub(super) link: Option<Link>,
    /// Sessions so far.
    pub(super) sessions: u64,
    /// The session to which messages of the present membership belong; none as long as any will do.
    pub(super) bound: Option<u64>,
    /// It broke the protocol, or was shut out, and is not let in again.
    pub(super) is_banned: bool,
    /// Whether the list of peers still has it.
    pub(super) is_listed: bool,
    /// The session of a hello because of whose refusal this end fails, and its time, until its sender has
    /// heard of it.
    pub(super) untold: Option<(u64, Instant)>,
}

impl Peer {
    pub(super) fn new(rank: Rank) -> Self {
        let (link, bound, untold) = (None, None, None);
        let (standing, is_banned, is_listed) = (Standing::Expected, false, true);
        Self { rank, standing, link, sessions: 0, bound, is_banned, is_listed, untold }
    }

    /// Begins a session of this end's choice.
    pub(super) fn begin(&mut self, limits: &ZmqLimits, now: Instant) {
        self.link = Some(Link::new(session(), limits, now));
        self.standing = Standing::Expected;
        self.sessions += 1;
        self.bound = None;
    }

    /// Whether its session, if it has one, is not the one of the present membership: it was started again.
    pub(super) fn is_another(&self) -> bool {
        self.bound.is_some_and(|bound| self.link.as_ref().is_none_or(|link| link.session != bound))
    }

    /// The session, while messages can be queued for it.
    pub(super) fn open_link(&mut self) -> Option<&mut Link> {
        if self.standing == Standing::Gone { None } else { self.link.as_mut() }
    }

    /// Whether nothing that was queued for it can still arrive, or everything has.
    pub(super) fn is_settled(&self) -> bool {
        self.standing == Standing::Gone || self.link.as_ref().is_none_or(|link| link.outgoing.is_done())
    }
}

/// What the caller orders from the thread, which knows the connections.
#[derive(Debug)]
pub(super) enum Order {
    ShutOut { rank: Rank, why: String },
    Readmit(Roster),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) arrivals: Arrivals,
    /// In rank order.
    pub(super) peers: Vec<Peer>,
    /// Why the transport cannot begin.
    pub(super) failure: Option<ZmqError>,
    /// All peers were there.
    pub(super) has_begun: bool,
    /// Carried out before the thread does anything else.
    pub(super) orders: Vec<Order>,
    /// How long the thread may continue to deliver queued messages; then it ends.
    pub(super) closing: Option<Deadline>,
    pub(super) is_stopped: bool,
    /// The thread was woken and has not looked yet.
    pub(super) is_woken: bool,
}

impl State {
    /// New sessions with all peers; nothing is left of the old ones.
    pub(super) fn begin_again(&mut self, limits: &ZmqLimits) {
        let now = Instant::now();
        self.peers.iter_mut().for_each(|peer| peer.begin(limits, now));
        self.arrivals.inbox = Inbox::new(limits.inbox);
        (self.failure, self.has_begun) = (None, false);
    }
}

/// A number that no other session has. The standard library seeds its hashers from the system's random
/// numbers.
fn session() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Anything changed that somebody may wait for.
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(arrivals: Arrivals, peers: Vec<Peer>) -> Self {
        let (failure, orders, closing) = (None, Vec::new(), None);
        let (has_begun, is_stopped, is_woken) = (false, false, false);
        let state = State { arrivals, peers, failure, has_begun, orders, closing, is_stopped, is_woken };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// No code panics while it holds the lock halfway through a change, so a poisoned one is still good.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Deadline) -> MutexGuard<'a, State> {
        match deadline.instant() {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_differ() {
        let all: std::collections::BTreeSet<u64> = (0..1000).map(|_| session()).collect();
        assert_eq!(all.len(), 1000);
    }
}
