//! What the caller's thread and the transport's own thread share.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::ZmqError;
use super::incoming::Arrivals;
use super::link::Link;
use super::options::ZmqLimits;
use super::roster::Roster;
use crate::growing::Growing;
use crate::inbox::Inbox;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};

/// The time until the first line says which message is waited for, or three times what is usual.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// Callers that wait for several peers in turn ask each of them again within this time.
const UNTIL_ASKED_AGAIN: Duration = Duration::from_secs(10);

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has never connected.
    Expected,
    Here,
    /// It was connected. Whether it comes back is not known.
    Silent,
    /// Its session is over.
    Gone,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: Rank,
    pub(super) standing: Standing,
    /// Its session. After the peer's last word the session is kept, so that the last word can still be
    /// acknowledged.
    pub(super) link: Option<Link>,
    /// Sessions so far.
    pub(super) sessions: u64,
    /// The session to which messages of the current membership belong; `None` if any session may be used.
    pub(super) bound: Option<u64>,
    /// It broke the protocol, or was shut out, and is not admitted again.
    pub(super) is_banned: bool,
    /// Whether its connection broke, and it did not come back in the time that this takes.
    pub(super) is_cut_off: bool,
    /// Whether it is still on the list of peers.
    pub(super) is_listed: bool,
    /// The message that a caller waits for.
    pub(super) awaited: Option<Awaited>,
    /// What is known of why it is not there, for callers that stop waiting for it.
    pub(super) absence: String,
    /// How long callers waited for messages lately.
    usual: Duration,
    /// If this end fails because it refused a hello: the session of that hello and the time, until its sender
    /// has received the refusal.
    pub(super) untold: Option<(u64, Instant)>,
}

impl Peer {
    pub(super) fn new(rank: Rank) -> Self {
        let (link, bound, untold, awaited) = (None, None, None, None);
        let (standing, is_banned, is_cut_off, is_listed) = (Standing::Expected, false, false, true);
        let (usual, absence) = (Duration::ZERO, "it has not connected to this end".to_owned());
        Self {
            rank,
            standing,
            link,
            sessions: 0,
            bound,
            is_banned,
            is_cut_off,
            is_listed,
            awaited,
            absence,
            usual,
            untold,
        }
    }

    /// How late acknowledgements of this peer are.
    pub(super) fn lateness(&self, now: Instant) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| link.outgoing.pace.lateness(now))
    }

    /// A caller begins to wait for a message, or continues to, at most until `deadline`.
    pub(super) fn await_message(&mut self, tag: Tag, deadline: Deadline, now: Instant) {
        let growing = Growing::new(SAID_AFTER.max(3 * self.usual), now);
        let new = Awaited { tag, since: now, until: None, growing };
        let awaited = self.awaited.take().filter(|awaited| awaited.tag == tag).unwrap_or(new);
        let until = deadline.instant().map(|until| until.max(now) + UNTIL_ASKED_AGAIN);
        self.awaited = Some(Awaited { until, ..awaited });
    }

    /// A caller got a message. It waits for nothing more of that step, unless it says so again.
    pub(super) fn received(&mut self, tag: Tag, now: Instant) {
        let of_step = |awaited: &mut Awaited| (awaited.tag.epoch, awaited.tag.step) == (tag.epoch, tag.step);
        if let Some(awaited) = self.awaited.take_if(of_step).filter(|awaited| awaited.tag == tag) {
            let took = now.saturating_duration_since(awaited.since);
            self.usual = took.max(self.usual / 8 * 7);
        }
    }

    /// What is known of the message that callers wait for, if it is time to say so, and for how long they
    /// have waited. `quiet` is the time since the peer was heard.
    pub(super) fn is_awaited(&mut self, quiet: Duration, now: Instant) -> Option<(String, Duration)> {
        let awaited = self.awaited.as_mut()?;
        if self.standing == Standing::Gone || awaited.until.is_some_and(|until| until < now) {
            self.awaited = None;
            return None;
        }
        if !awaited.growing.is_due(now) {
            return None;
        }
        let waited = now.saturating_duration_since(awaited.since);
        let arriving = self.link.as_ref().and_then(|link| link.incoming.arriving());
        let known = match (self.standing, arriving) {
            (Standing::Here, Some((here, all))) => format!("{here} of {all} bytes of its message are here"),
            (Standing::Here, None) => "it is connected, and nothing of its next message is here".to_owned(),
            (Standing::Expected, _) => "it has not come yet".to_owned(),
            (Standing::Silent | Standing::Gone, _) => {
                format!("nothing was heard of it for {} s", quiet.as_secs())
            }
        };
        Some((format!("{}: {known}", awaited.tag), waited))
    }

    /// Begins a session with a number that this end chooses.
    pub(super) fn begin(&mut self, limits: &ZmqLimits, now: Instant) {
        self.link = Some(Link::new(session(), limits, now));
        self.standing = Standing::Expected;
        self.sessions += 1;
        (self.bound, self.awaited) = (None, None);
    }

    /// Whether its session, if it has one, is not that of the current membership: the peer was restarted.
    pub(super) fn is_another(&self) -> bool {
        self.bound.is_some_and(|bound| self.link.as_ref().is_none_or(|link| link.session != bound))
    }

    /// The session, if messages can be queued for it.
    pub(super) fn open_link(&mut self) -> Option<&mut Link> {
        if self.standing == Standing::Gone { None } else { self.link.as_mut() }
    }

    /// Whether everything queued for it has arrived, or can no longer arrive.
    pub(super) fn is_settled(&self) -> bool {
        self.standing == Standing::Gone || self.link.as_ref().is_none_or(|link| link.outgoing.is_done())
    }
}

/// A message that a caller waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    tag: Tag,
    since: Instant,
    /// When it no longer counts as waited for; `None` for never.
    until: Option<Instant>,
    growing: Growing,
}

/// Orders of the caller to the thread, which knows the connections.
#[derive(Debug)]
pub(super) enum Order {
    ShutOut {
        rank: Rank,
        why: String,
    },
    Readmit(Roster),
    /// Make all connections of this end anew.
    Redial,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) arrivals: Arrivals,
    /// In rank order.
    pub(super) peers: Vec<Peer>,
    /// Why the transport cannot start.
    pub(super) failure: Option<ZmqError>,
    /// Whether all peers have been connected.
    pub(super) has_begun: bool,
    /// Orders, carried out before the thread does anything else.
    pub(super) orders: Vec<Order>,
    /// Set on closing: until when the thread may deliver queued messages before it ends.
    pub(super) closing: Option<Deadline>,
    pub(super) is_stopped: bool,
    /// Whether the thread was woken and has not looked yet.
    pub(super) is_woken: bool,
}

impl State {
    /// Begins new sessions with all peers, without any trace of the old ones.
    pub(super) fn begin_again(&mut self, limits: &ZmqLimits) {
        let now = Instant::now();
        self.peers.iter_mut().for_each(|peer| peer.begin(limits, now));
        self.arrivals.inbox = Inbox::new(limits.inbox);
        self.orders.push(Order::Redial);
        (self.failure, self.has_begun) = (None, false);
    }
}

/// A random session number. The standard library seeds its hashers with random numbers of the system.
fn session() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Signals every change that a caller may wait for.
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(arrivals: Arrivals, peers: Vec<Peer>) -> Self {
        let (failure, orders, closing) = (None, Vec::new(), None);
        let (has_begun, is_stopped, is_woken) = (false, false, false);
        let state = State { arrivals, peers, failure, has_begun, orders, closing, is_stopped, is_woken };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// No code panics in the middle of a change while it holds the lock, so a poisoned lock is still usable.
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
