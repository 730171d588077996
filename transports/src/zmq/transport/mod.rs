//! One rank's end, as its caller sees it.

mod links;
mod peers;

use std::mem;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::zmq::Socket;

use super::incoming::Arrivals;
use super::options::CURVE_BYTES;
use super::packet::DATA_HEADER;
use super::state::{Peer, Shared, Standing, State};
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

pub use self::links::LinkTally;
pub(super) use self::peers::Me;

/// How long a transport that is dropped without `close` continues to deliver.
const DROPPED: Duration = Duration::from_millis(250);

/// Whether the libzmq of this program has CURVE, and so can encrypt and authenticate.
pub fn has_curve() -> bool {
    ::zmq::has("curve") == Some(true)
}

/// One rank's end.
#[derive(Debug)]
pub struct ZmqTransport {
    pub(super) members: Membership,
    pub(super) me: Me,
    pub(super) shared: Arc<Shared>,
    pub(super) bell: Bell,
    pub(super) thread: Option<JoinHandle<()>>,
    pub(super) counters: Counters,
}

/// Wakes the transport's thread.
pub(super) struct Bell(pub(super) Socket);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

impl Bell {
    /// Rings, unless the thread has not yet noticed the last ring.
    fn ring(&self, state: &mut State) {
        if !mem::replace(&mut state.is_woken, true) {
            // If the bell cannot ring, it is full of rings that the thread has not noticed.
            let _ = self.0.send(&b""[..], ::zmq::DONTWAIT);
        }
    }
}

impl ZmqTransport {
    fn ensure_open(&self) -> Result<(), TransportError> {
        if self.thread.is_some() { Ok(()) } else { Err(TransportError::Closed) }
    }

    /// The position of a member among the peers; for messages of the roll, of any peer.
    fn peer(&self, state: &State, rank: Rank, tag: Tag) -> Result<usize, TransportError> {
        let is_member = self.members.ranks.contains(rank) || tag.epoch == Tag::JOINING;
        if rank == self.me.rank || !is_member {
            return Err(TransportError::NotAPeer { rank });
        }
        let at = state.peers.binary_search_by_key(&rank, |peer| peer.rank);
        at.map_err(|_| TransportError::Unsupported { operation: "link between two workers of a star" })
    }

    /// Records the first message of each peer that a caller waits for. Requests to join are no messages that
    /// must come.
    fn await_any(
        &self,
        state: &mut State,
        wanted: &[Wanted],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let now = Instant::now();
        for (number, &Wanted { from: rank, tag, .. }) in wanted.iter().enumerate() {
            let is_first = !wanted[..number].iter().any(|earlier| earlier.from == rank);
            if is_first && tag.epoch != Tag::JOINING {
                let at = self.peer(state, rank, tag)?;
                state.peers[at].await_message(tag, deadline, now);
            }
        }
        Ok(())
    }

    /// Waits for room and queues a message, until it is queued or the deadline has passed.
    fn queue(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        (deadline, until): (Deadline, Option<Instant>),
    ) -> Result<(), TransportError> {
        self.ensure_open()?;
        let mut state = self.shared.lock();
        let at = self.peer(&state, to, tag)?;
        let (bytes, limit) = (payload.len(), self.me.limits.max_message_bytes);
        if bytes > limit {
            return Err(TransportError::TooLarge { to, tag, bytes, limit });
        }
        loop {
            if state.is_stopped {
                return Err(TransportError::Closed);
            }
            let peer = &mut state.peers[at];
            let is_another = peer.is_another() && tag.epoch != Tag::JOINING;
            let link = peer.open_link().filter(|_| !is_another);
            let link = link.ok_or(TransportError::Disconnected { rank: to })?;
            if link.outgoing.has_room(bytes) {
                break;
            }
            if deadline.has_passed() {
                return Err(TransportError::NoRoom { to, tag });
            }
            state = self.shared.wait(state, deadline);
        }
        let mut copy = state.arrivals.spares.take(bytes, bytes);
        copy.extend_from_slice(payload);
        if let Some(link) = state.peers[at].open_link() {
            link.outgoing.push(tag, copy, until);
        }
        self.bell.ring(&mut state);
        drop(state);
        self.counters.up += Traffic::message(bytes, self.envelope_bytes(bytes));
        Ok(())
    }

    /// Ends the thread; messages that were not delivered by then are lost. Returns the first peer that had
    /// not confirmed a message, and the tag of that message.
    fn leave(&mut self, deadline: Deadline) -> Option<(Rank, Tag)> {
        let thread = self.thread.take()?;
        let mut state = self.shared.lock();
        state.closing = Some(deadline);
        state.peers.iter_mut().filter_map(Peer::open_link).for_each(|link| link.outgoing.push_bye());
        self.bell.ring(&mut state);
        while !state.is_stopped {
            state = self.shared.wait(state, Deadline::NEVER);
        }
        let unsettled = state.peers.iter().filter(|peer| !peer.is_settled());
        let lost =
            unsettled.filter_map(|peer| Some((peer.rank, peer.link.as_ref()?.outgoing.oldest()?))).next();
        drop(state);
        // A thread that panicked leaves nothing more to clean up than one that ended.
        let _ = thread.join();
        lost
    }
}

impl Drop for ZmqTransport {
    fn drop(&mut self) {
        self.leave(Deadline::after(DROPPED));
    }
}

impl Transport for ZmqTransport {
    fn rank(&self) -> Rank {
        self.me.rank
    }

    fn membership(&self) -> Membership {
        self.members.clone()
    }

    fn max_message_bytes(&self) -> usize {
        self.me.limits.max_message_bytes
    }

    /// Bytes of the chunk headers and of ZeroMQ's and CURVE's framing for the longest chunks, without
    /// acknowledgements, signs of life, repetitions, and what shorter chunks take on a slow link.
    fn envelope_bytes(&self, payload_bytes: usize) -> usize {
        let chunk = self.me.limits.chunk_bytes;
        let frame = |bytes: usize| {
            let inside = DATA_HEADER + bytes + if self.me.is_secure { CURVE_BYTES } else { 0 };
            // A flag, and a length of one byte or of eight.
            inside - bytes + if inside < 256 { 2 } else { 9 }
        };
        let (whole, rest) = (payload_bytes / chunk, payload_bytes % chunk);
        whole * frame(chunk) + if rest > 0 || whole == 0 { frame(rest) } else { 0 }
    }

    /// Queues the message. `NoRoom`: the queue stayed full. It empties as the receiver takes messages from
    /// its inbox.
    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.queue(to, tag, payload, (deadline, None))
    }

    /// Queues the message. If it was not sent, or was lost with its connection, it is not sent again after
    /// `until`. A message of several chunks is delivered like any other.
    fn send_packet(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        until: Deadline,
    ) -> Result<(), TransportError> {
        match self.queue(to, tag, payload, (until, until.instant())) {
            Err(TransportError::NoRoom { .. }) => Ok(()),
            queued => queued,
        }
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.ensure_open()?;
        let mut state = self.shared.lock();
        wanted.iter().try_for_each(|wanted| self.peer(&state, wanted.from, wanted.tag).map(|_| ()))?;
        let found = loop {
            if let Some((found, bytes)) = state.arrivals.inbox.take_any(wanted) {
                let old = if bytes.is_empty() {
                    into.clear();
                    bytes
                } else {
                    mem::replace(into, bytes)
                };
                state.arrivals.spares.put(old);
                let at = self.peer(&state, found.0, found.1)?;
                state.peers[at].received(found.1, Instant::now());
                if state.peers[at].link.as_ref().is_some_and(|link| link.incoming.is_held_back()) {
                    self.bell.ring(&mut state);
                }
                break found;
            }
            if let Some(wanted) = wanted.iter().find(|wanted| state.arrivals.inbox.is_retired(wanted.tag)) {
                return Err(TransportError::Retired { tag: wanted.tag });
            }
            if state.is_stopped {
                return Err(TransportError::Closed);
            }
            for &Wanted { from: rank, tag, unless_cut_off, .. } in wanted {
                let peer = &state.peers[self.peer(&state, rank, tag)?];
                let is_another = peer.is_another() && tag.epoch != Tag::JOINING;
                if peer.standing == Standing::Gone || is_another || unless_cut_off && peer.is_cut_off {
                    return Err(TransportError::Disconnected { rank });
                }
            }
            if deadline.has_passed() {
                let Wanted { from, tag, .. } = wanted[0];
                return Err(TransportError::Timeout { from, tag });
            }
            self.await_any(&mut state, wanted, deadline)?;
            state = self.shared.wait(state, deadline);
        };
        drop(state);
        self.counters.down += Traffic::message(into.len(), self.envelope_bytes(into.len()));
        Ok(found)
    }

    /// Does nothing, because the transport has a thread of its own.
    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.ensure_open()
    }

    fn retire(&mut self, before: Tag) {
        let state = &mut *self.shared.lock();
        let Arrivals { inbox, spares } = &mut state.arrivals;
        inbox.retire(before, |buffer| spares.put(buffer));
        self.bell.ring(state);
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
