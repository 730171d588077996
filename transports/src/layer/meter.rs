//! Counts bytes and messages for each peer.

use crate::collective::Reduce;
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// Counts what passes through it, for each peer, up and down apart.
///
/// Payloads count as given to `send` and as returned by `recv`; an error counts nothing. The transport inside
/// says what envelopes add. A native all-reduce has no messages: its bytes are in [`Transport::counters`] of
/// the meter, but in no peer's account.
///
/// # Examples
/// ```
/// use gradwire_transports::layer::Meter;
/// use gradwire_transports::{Deadline, Rank, Tag, Transport, local};
///
/// let mut meters: Vec<_> = local::world(2).into_iter().map(Meter::new).collect();
/// meters[0].send(Rank(1), Tag::new(0, 1), &[0; 100], Deadline::NEVER)?;
/// assert_eq!(meters[0].with(Rank(1)).up.payload_bytes, 100);
/// assert_eq!(meters[1].counters().down.messages, 0);
/// # Ok::<(), gradwire_transports::TransportError>(())
/// ```
#[derive(Debug)]
pub struct Meter<T> {
    inner: T,
    /// Sorted by peer.
    peers: Vec<(Rank, Counters)>,
    native: Counters,
}

impl<T: Transport> Meter<T> {
    /// Counts from now.
    pub fn new(inner: T) -> Self {
        Self { inner, peers: Vec::new(), native: Counters::default() }
    }

    /// What went to and came from `peer`.
    pub fn with(&self, peer: Rank) -> Counters {
        let at = self.peers.binary_search_by_key(&peer, |(rank, _)| *rank);
        at.map_or_else(|_| Counters::default(), |at| self.peers[at].1)
    }

    /// Every peer with whom something was exchanged, in rank order.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (Rank, Counters)> + '_ {
        self.peers.iter().copied()
    }

    /// The transport inside.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport inside. Messages sent through it directly are not counted.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Gives the transport back.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn account(&mut self, peer: Rank) -> &mut Counters {
        let at = self.peers.binary_search_by_key(&peer, |(rank, _)| *rank).unwrap_or_else(|at| {
            self.peers.insert(at, (peer, Counters::default()));
            at
        });
        &mut self.peers[at].1
    }

    fn message(&self, payload_bytes: usize) -> Traffic {
        Traffic::message(payload_bytes, self.inner.envelope_bytes(payload_bytes))
    }
}

impl<T: Transport> Transport for Meter<T> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn membership(&self) -> Membership {
        self.inner.membership()
    }

    fn is_fail_stop(&self) -> bool {
        self.inner.is_fail_stop()
    }

    fn max_message_bytes(&self) -> usize {
        self.inner.max_message_bytes()
    }

    fn envelope_bytes(&self, payload_bytes: usize) -> usize {
        self.inner.envelope_bytes(payload_bytes)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.inner.send(to, tag, payload, deadline)?;
        let message = self.message(payload.len());
        self.account(to).up += message;
        Ok(())
    }

    fn send_packet(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        until: Deadline,
    ) -> Result<(), TransportError> {
        self.inner.send_packet(to, tag, payload, until)?;
        let message = self.message(payload.len());
        self.account(to).up += message;
        Ok(())
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        let found = self.inner.recv_any(wanted, into, deadline)?;
        let message = self.message(into.len());
        self.account(found.0).down += message;
        Ok(found)
    }

    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.inner.try_progress()
    }

    fn retire(&mut self, before: Tag) {
        self.inner.retire(before);
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.inner.close(deadline)
    }

    /// The sum of all peers' accounts, and of native all-reduces.
    fn counters(&self) -> Counters {
        let mut total = self.native;
        self.peers.iter().for_each(|(_, counters)| total += *counters);
        total
    }

    fn native_all_reduce(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        let before = self.inner.counters();
        let result = self.inner.native_all_reduce(tag, data, deadline);
        self.native += self.inner.counters() - before;
        result
    }
}
