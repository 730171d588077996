//! One rank's end, and how it is made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Interest, Poll, Waker};

use super::dial::resolve;
use super::engine::{Engine, LISTENER, Parts, WAKER};
use super::error::TcpError;
use super::frame::MESSAGE_HEADER;
use super::inlet::{PIECE, SEAL};
use super::options::{Meeting, Security, TcpOptions};
use super::state::{Peer, Shared, Standing};
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// How long a transport that is dropped without `close` continues to deliver.
const DROPPED: Duration = Duration::from_millis(250);

/// One end that listens, before it knows the others.
#[derive(Debug)]
pub struct Bound {
    options: TcpOptions,
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Listens at `address`, as `host:port`. Port 0 takes any free port.
    ///
    /// # Errors
    /// `Listen`; `NotLoopback`.
    pub fn new(options: TcpOptions, address: &str) -> Result<Self, TcpError> {
        let failed = |error: std::io::Error| TcpError::Listen {
            address: address.to_owned(),
            error: error.to_string(),
        };
        let mut last = None;
        for found in resolve(address).map_err(failed)? {
            options.security.allow(found)?;
            match TcpListener::bind(found) {
                Ok(listener) => {
                    let address = listener.local_addr().map_err(failed)?;
                    return Ok(Self { options, listener, address });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(failed(last.unwrap_or_else(|| std::io::Error::other("the name has no address"))))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all ranks are connected to this one.
    ///
    /// # Errors
    /// `NotAllThere` at the deadline, with what is known of those that are missing; otherwise the errors of
    /// [`begin`](Self::begin) and of [`Joining::wait`].
    pub fn join(self, meeting: &Meeting, deadline: Deadline) -> Result<TcpTransport, TcpError> {
        match self.begin(meeting)?.wait(deadline)? {
            Met::All(transport) => Ok(transport),
            Met::Some(joining) => Err(joining.give_up()),
        }
    }

    /// Begins to connect to all other ranks, and does not wait: for a caller who says what is waited for.
    ///
    /// # Errors
    /// `Options`, `System`.
    pub fn begin(self, meeting: &Meeting) -> Result<Joining, TcpError> {
        self.start(meeting, false)
    }

    /// As [`begin`](Self::begin), for a run that is over: every rank that comes gets [`TcpError::Over`]. Who
    /// is missing was not told. Once all were told, nobody can be reached through the transport.
    ///
    /// # Errors
    /// `Options` also for another rank than 0, which all others call; `System`.
    pub fn dismiss(self, meeting: &Meeting) -> Result<Joining, TcpError> {
        if self.options.rank != Rank(0) {
            let what = format!("{} cannot dismiss the others: not all of them call it", self.options.rank);
            return Err(TcpError::Options { what });
        }
        self.start(meeting, true)
    }

    fn start(self, meeting: &Meeting, dismisses: bool) -> Result<Joining, TcpError> {
        let Self { options, mut listener, address } = self;
        let (world, rank, me) = (meeting.world(), options.rank, options.rank.0 as usize);
        options.check(world)?;
        let failed = |error: std::io::Error| TcpError::System {
            what: "the poller of the sockets".to_owned(),
            error: error.to_string(),
        };
        let poll = Poll::new().map_err(failed)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        let shared = Arc::new(Shared::new(world, options.limits.inbox, options.limits.outbox, waker));
        let mut state = shared.lock();
        state.peers[me].standing = Standing::Gone;
        state.peers[me].is_settled = true;
        drop(state);
        let mut transport = TcpTransport {
            rank,
            members: Membership { epoch: 0, ranks: RankSet::contiguous(world as u32) },
            max_message_bytes: options.limits.max_message_bytes,
            is_sealed: matches!(options.security, Security::Key(_)),
            shared: Arc::clone(&shared),
            thread: None,
            counters: Counters::default(),
        };
        let engine = Engine::new(Parts {
            options,
            world,
            listens: address,
            poll,
            listener,
            shared,
            addresses: (0..me).map(|lower| meeting.address(lower).map(str::to_owned)).collect(),
            dismisses,
            tells_addresses: me == 0 && matches!(meeting, Meeting::Rendezvous { .. }),
        });
        let thread = thread::Builder::new().name("tcp".to_owned()).spawn(|| engine.run());
        let thread = thread.map_err(|error| TcpError::System {
            what: "a thread for the network".to_owned(),
            error: error.to_string(),
        })?;
        transport.thread = Some(thread);
        Ok(Joining(transport))
    }
}

/// A rank that connects to the others.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use gradwire::{LayoutRef, Spec};
/// use gradwire_transports::tcp::{Bound, Meeting, Met, Security, TcpOptions, Terms};
/// use gradwire_transports::{Deadline, Rank};
///
/// let terms = Terms::new(&LayoutRef::flat(650), &Spec::parse("none").unwrap());
/// let options = TcpOptions::new(Rank(0), terms, Security::Loopback);
/// let bound = Bound::new(options, "127.0.0.1:0").unwrap();
/// let root = bound.address().to_string();
/// let joining = bound.begin(&Meeting::Rendezvous { root, world: 2 }).unwrap();
/// let Ok(Met::Some(joining)) = joining.wait(Deadline::after(Duration::from_millis(1))) else { panic!() };
/// assert_eq!(joining.missing()[0].0, Rank(1));
/// ```
#[derive(Debug)]
pub struct Joining(TcpTransport);

/// Who was there at a deadline.
#[derive(Debug)]
pub enum Met {
    /// All ranks: they have begun.
    All(TcpTransport),
    /// Not all; this end goes on connecting.
    Some(Joining),
}

impl Joining {
    /// Waits for the other ranks.
    ///
    /// # Errors
    /// As soon as it is clear that no mesh comes about: `Differs`, `OtherKey`, `Encryption`, `Version`,
    /// `Refused`, `Lost`, `NotLoopback`; `System` if the thread of the sockets ended.
    pub fn wait(mut self, deadline: Deadline) -> Result<Met, TcpError> {
        let shared = Arc::clone(&self.0.shared);
        let mut state = shared.lock();
        loop {
            if let Some(failure) = state.failure.take() {
                drop(state);
                self.0.leave(Deadline::now());
                return Err(failure);
            }
            if state.has_begun {
                return Ok(Met::All(self.0));
            }
            if state.is_stopped {
                let (what, error) = ("the thread of the sockets".to_owned(), "it ended".to_owned());
                return Err(TcpError::System { what, error });
            }
            let is_missing = !state.missing().is_empty();
            if deadline.has_passed() && is_missing {
                return Ok(Met::Some(self));
            }
            // With the last one here, the thread is about to begin.
            state = shared.wait(state, if is_missing { deadline } else { Deadline::NEVER });
        }
    }

    /// The ranks that are not there, with what is known of each.
    pub fn missing(&self) -> Vec<(Rank, String)> {
        self.0.shared.lock().missing()
    }

    /// Waits no longer: `NotAllThere`.
    pub fn give_up(mut self) -> TcpError {
        let state = self.0.shared.lock();
        let (missing, turned_away) = (state.missing(), state.turned_away.iter().cloned().collect());
        drop(state);
        self.0.leave(Deadline::now());
        TcpError::NotAllThere { missing, turned_away }
    }
}

/// Ends the wait of a [`TcpTransport`] from another thread, and waits for what it sent.
#[derive(Clone, Debug)]
pub struct TcpWaker(Arc<Shared>);

impl TcpWaker {
    /// The call of [`recv_any`](Transport::recv_any) in progress returns
    /// [`Timeout`](TransportError::Timeout), unless a message is there; without one, the next call that would
    /// wait.
    pub fn wake(&self) {
        self.0.mailbox.wake();
    }

    /// When bytes of messages last moved: to this end or from it, or, as the others say with their signs of
    /// life, between them. For a caller whose patience ends only where nothing moves: on a slow link a long
    /// message takes its time.
    pub fn moved(&self) -> Instant {
        self.0.lock().moved
    }

    /// Whether a peer is gone for ever: it left, its connection broke, or others say so of theirs. Known
    /// without sending anything. Also true of this end's own rank.
    pub fn is_gone(&self, peer: Rank) -> bool {
        self.0.lock().peers.get(peer.0 as usize).is_some_and(|peer| peer.standing == Standing::Gone)
    }

    /// Waits until every message that was sent has been handed to the operating system, which delivers it
    /// even if this process ends, or its receiver is gone. Returns whether that is so at the deadline.
    pub fn flush(&self, deadline: Deadline) -> bool {
        let mut state = self.0.lock();
        loop {
            let is_written = |peer: &Peer| peer.standing == Standing::Gone || peer.outbox.is_written();
            if state.is_stopped || state.peers.iter().all(is_written) {
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
            state = self.0.wait(state, deadline);
        }
    }
}

/// One rank's end.
#[derive(Debug)]
pub struct TcpTransport {
    rank: Rank,
    members: Membership,
    max_message_bytes: usize,
    is_sealed: bool,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    counters: Counters,
}

impl TcpTransport {
    /// What other threads wake this end with, for a caller that waits for messages and for something else.
    #[must_use]
    pub fn waker(&self) -> TcpWaker {
        TcpWaker(Arc::clone(&self.shared))
    }

    fn ensure_open(&self) -> Result<(), TransportError> {
        if self.thread.is_some() { Ok(()) } else { Err(TransportError::Closed) }
    }

    /// The position of a peer.
    fn peer(&self, rank: Rank) -> Result<usize, TransportError> {
        let is_peer = rank != self.rank && self.members.ranks.contains(rank);
        if is_peer { Ok(rank.0 as usize) } else { Err(TransportError::NotAPeer { rank }) }
    }

    /// Ends the thread; messages that were not delivered by then are lost. Returns the first peer that has
    /// not confirmed everything, and the tag of the last message for it.
    fn leave(&mut self, deadline: Deadline) -> Option<(Rank, Tag)> {
        let thread = self.thread.take()?;
        self.shared.mailbox.owner_left();
        let mut state = self.shared.lock();
        state.closing = Some(deadline);
        self.shared.wake(&mut state);
        while !state.is_stopped {
            state = self.shared.wait(state, Deadline::NEVER);
        }
        let unsettled = state.peers.iter().enumerate().find(|(_, peer)| !peer.is_settled);
        let unsettled = unsettled.map(|(rank, peer)| (Rank(rank as u32), peer.last));
        drop(state);
        // A thread that panicked leaves nothing more to clean up than one that ended.
        let _ = thread.join();
        unsettled
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.leave(Deadline::after(DROPPED));
    }
}

impl Transport for TcpTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn membership(&self) -> Membership {
        self.members.clone()
    }

    /// If a connection breaks, both ends and all others hear of it.
    fn is_fail_stop(&self) -> bool {
        true
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// The frame's header, and with a key what Noise adds. Signs of life are not counted.
    fn envelope_bytes(&self, payload_bytes: usize) -> usize {
        let frame = MESSAGE_HEADER + payload_bytes;
        MESSAGE_HEADER + if self.is_sealed { frame.div_ceil(PIECE) * SEAL } else { 0 }
    }

    /// Queues the message. `NoRoom`: the queue stayed full. It empties as the receiver takes messages from
    /// its inbox.
    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        self.peer(to)?;
        let (bytes, limit) = (payload.len(), self.max_message_bytes);
        if bytes > limit {
            return Err(TransportError::TooLarge { to, tag, bytes, limit });
        }
        self.shared.queue(to, tag, payload, deadline)?;
        self.counters.up += Traffic::message(bytes, self.envelope_bytes(bytes));
        Ok(())
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.ensure_open()?;
        let found = self.shared.mailbox.take(wanted, |rank| self.peer(rank), into, deadline)?;
        self.shared.room_was_made();
        self.counters.down += Traffic::message(into.len(), self.envelope_bytes(into.len()));
        Ok(found)
    }

    /// Does nothing, because the transport has a thread of its own.
    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.ensure_open()
    }

    fn retire(&mut self, before: Tag) {
        self.shared.mailbox.retire(before);
        self.shared.room_was_made();
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        match self.leave(deadline) {
            None => Ok(()),
            Some((from, tag)) => Err(TransportError::Timeout { from, tag }),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
