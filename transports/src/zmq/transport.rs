//! One rank's end, as its caller sees it.

use std::mem;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::zmq::Socket;

use super::error::ZmqError;
use super::incoming::Arrivals;
use super::link::Link;
use super::options::{CURVE_BYTES, ZmqLimits};
use super::packet::DATA_HEADER;
use super::roster::Roster;
use super::state::{Order, Peer, Shared, Standing, State};
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

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

/// The parts that do not change.
#[derive(Debug)]
pub(super) struct Me {
    pub(super) rank: Rank,
    pub(super) limits: ZmqLimits,
    pub(super) is_secure: bool,
    pub(super) listens: bool,
    pub(super) roster: RankSet,
    /// Whether this end waits for all its peers at the start.
    pub(super) is_patient: bool,
}

impl Me {
    fn waits_for(&self, peer: &Peer) -> bool {
        self.is_patient && peer.standing == Standing::Expected
    }

    /// Waits until all required peers are there.
    pub(super) fn wait_for_all<'a>(
        &self,
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<(), ZmqError> {
        loop {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            let mut missing = state.peers.iter().filter(|peer| self.waits_for(peer)).peekable();
            if missing.peek().is_none() {
                state.has_begun = true;
                return Ok(());
            }
            if deadline.has_passed() || state.is_stopped {
                let missing = missing.map(|peer| (peer.rank, peer.absence.clone())).collect();
                return Err(ZmqError::NotAllThere { missing });
            }
            state = shared.wait(state, deadline);
        }
    }
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

/// What a link repeated or dropped, which [`Transport::counters`] does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTally {
    /// Chunks that were sent again.
    pub resent: u64,
    /// Chunks that arrived again and were dropped.
    pub duplicates: u64,
    /// Sessions with this peer so far.
    pub sessions: u64,
}

impl ZmqTransport {
    /// Continues with other ranks in a later epoch. Every member must adopt the same membership. From then
    /// on, a member that begins another session is `Disconnected` until the next call.
    ///
    /// # Errors
    /// `NotAPeer` when this rank is not in it, or when it names a rank that is not in the roster. Nothing has
    /// changed then.
    ///
    /// # Panics
    /// If the epoch is not larger than the present one.
    pub fn adopt(&mut self, members: Membership) -> Result<(), TransportError> {
        assert!(members.epoch > self.members.epoch, "an epoch must be larger than the one before");
        if !members.ranks.contains(self.me.rank) {
            return Err(TransportError::NotAPeer { rank: self.me.rank });
        }
        if let Some(rank) = members.ranks.iter().find(|rank| !self.me.roster.contains(*rank)) {
            return Err(TransportError::NotAPeer { rank });
        }
        let mut state = self.shared.lock();
        // No session has number 0, but for one in 2^64.
        state
            .peers
            .iter_mut()
            .for_each(|peer| peer.bound = Some(peer.link.as_ref().map_or(0, |link| link.session)));
        drop(state);
        self.members = members;
        Ok(())
    }

    /// Sets the session to which a member's messages belong. The member may have begun another one since.
    pub(super) fn bind(&mut self, rank: Rank, session: u64) {
        let mut state = self.shared.lock();
        let peer = state.peers.iter_mut().find(|peer| peer.rank == rank);
        peer.into_iter().for_each(|peer| peer.bound = Some(session));
    }

    /// Ends the session of `rank`, and does not admit its key again. An end that listens calls this for a
    /// peer whose packets are valid but whose messages are not. Returns when it is done.
    pub fn shut_out(&mut self, rank: Rank, why: &str) {
        self.order(Order::ShutOut { rank, why: why.to_owned() });
    }

    /// Applies another list of peers. A rank that is no longer on the list, or has another key there, is
    /// disconnected. A rank with a new key, or one that is listed again, may join even if it was shut out.
    /// This end's own entry stays. Returns when it is done.
    ///
    /// # Errors
    /// `Options` where the list has a rank that it did not have at the start, or one without a key; without
    /// CURVE; and at an end that does not listen. Nothing has changed then.
    pub fn readmit(&mut self, roster: Roster) -> Result<(), ZmqError> {
        let refused = |what: String| Err(ZmqError::Options { what });
        if !(self.me.is_secure && self.me.listens) {
            return refused("only an end that listens, with keys, has a list of who may come in".to_owned());
        }
        for rank in roster.ranks().iter().filter(|&rank| rank != self.me.rank) {
            if !self.me.roster.contains(rank) {
                return refused(format!("{rank} was not in the list of peers at the start"));
            }
            if roster.get(rank).is_none_or(|entry| entry.key.is_none()) {
                return refused(format!("the list of peers has no key for {rank}"));
            }
        }
        self.order(Order::Readmit(roster));
        Ok(())
    }

    /// Gives the thread an order, and waits until it is carried out.
    fn order(&mut self, order: Order) {
        let mut state = self.shared.lock();
        state.orders.push(order);
        self.bell.ring(&mut state);
        while !(state.orders.is_empty() || state.is_stopped) {
            state = self.shared.wait(state, Deadline::NEVER);
        }
    }

    /// Peers that are connected or may connect: on the list, and not shut out.
    pub fn admitted(&self) -> usize {
        let state = self.shared.lock();
        state.peers.iter().filter(|peer| peer.is_listed && !peer.is_banned).count()
    }

    /// What was repeated or dropped on the link to `rank`.
    pub fn tally(&self, rank: Rank) -> LinkTally {
        let state = self.shared.lock();
        let Some(peer) = state.peers.iter().find(|peer| peer.rank == rank) else {
            return LinkTally::default();
        };
        let of_link = |link: &Link| (link.outgoing.resent, link.incoming.duplicates);
        let (resent, duplicates) = peer.link.as_ref().map_or((0, 0), of_link);
        LinkTally { resent, duplicates, sessions: peer.sessions }
    }

    /// The peers with an open session, silent ones included.
    pub fn present(&self) -> RankSet {
        let state = self.shared.lock();
        let is_present = |peer: &&Peer| matches!(peer.standing, Standing::Here | Standing::Silent);
        state.peers.iter().filter(is_present).map(|peer| peer.rank).collect()
    }

    /// The number of the open session with `rank`, the same at both ends; `None` if there is none.
    pub fn session(&self, rank: Rank) -> Option<u64> {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank)?;
        let is_present = matches!(peer.standing, Standing::Here | Standing::Silent);
        peer.link.as_ref().filter(|_| is_present).map(|link| link.session)
    }

    /// The time in which everything that is queued can be with its receivers, by the measured rate of each
    /// link; zero where nothing is measured or queued.
    pub fn delivery_time(&self) -> Duration {
        let state = self.shared.lock();
        let links = state.peers.iter().filter(|peer| peer.standing != Standing::Gone);
        let times = links.filter_map(|peer| {
            let outgoing = &peer.link.as_ref()?.outgoing;
            outgoing.pace.time_for(outgoing.queued_bytes()).filter(|_| !outgoing.is_done())
        });
        times.max().unwrap_or(Duration::ZERO)
    }

    /// Of the message that is arriving from `rank`, the bytes that are here, and all.
    pub fn arriving(&self, rank: Rank) -> Option<(usize, usize)> {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank)?;
        peer.link.as_ref()?.incoming.arriving()
    }

    /// Whether the message to `rank` with that tag has arrived there, or never can.
    pub(super) fn has_arrived(&self, rank: Rank, tag: Tag) -> bool {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank);
        let link = peer.filter(|peer| peer.standing != Standing::Gone).and_then(|peer| peer.link.as_ref());
        link.is_none_or(|link| link.outgoing.has_arrived(tag))
    }

    /// Begins a new session with every peer, after all sessions have ended. Messages of earlier sessions are
    /// dropped, and the membership is again that of the roster, in epoch 0. For ends that only connect, such
    /// as a worker whose server was restarted.
    ///
    /// # Errors
    /// As [`Bound::join`](super::Bound::join); it may then be tried again. `Options` while a session is open,
    /// or at an end that listens.
    pub fn rejoin(&mut self, deadline: Deadline) -> Result<(), ZmqError> {
        let refused = |what: &str| Err(ZmqError::Options { what: what.to_owned() });
        let mut state = self.shared.lock();
        if self.me.listens {
            return refused("an end that listens waits for others to come back");
        }
        if state.peers.iter().any(|peer| matches!(peer.standing, Standing::Here | Standing::Silent)) {
            return refused("a session is still open");
        }
        state.begin_again(&self.me.limits);
        self.members = Membership { epoch: 0, ranks: self.me.roster.clone() };
        self.bell.ring(&mut state);
        self.me.wait_for_all(&self.shared, state, deadline)
    }

    /// Goes on waiting for the peers that were not there in time when this end joined again.
    ///
    /// # Errors
    /// As [`Bound::join`](super::Bound::join).
    pub fn wait_for_peers(&mut self, deadline: Deadline) -> Result<(), ZmqError> {
        self.me.wait_for_all(&self.shared, self.shared.lock(), deadline)
    }

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
            for &Wanted { from: rank, tag, .. } in wanted {
                let peer = &state.peers[self.peer(&state, rank, tag)?];
                if peer.standing == Standing::Gone || peer.is_another() && tag.epoch != Tag::JOINING {
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
