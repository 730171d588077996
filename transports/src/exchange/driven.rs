//! What drives a machine: the calls that move its messages.

use std::time::Duration;

use super::Exchange;
use super::machine::Outgoing;
use super::refusal::Refusal;
use super::report::Work;
use crate::collective::Reduce;
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Tag, Wanted};

/// A machine without I/O, as whoever moves its messages sees it: an [`Exchange`], or a
/// [`Mixer`](crate::gossip::Mixer).
///
/// A driver sends what is [queued](Self::outgoing) and hands in what [arrives](Self::receive), in any order,
/// between the calls that work on the step. Time is in nanoseconds from any moment that stays the same.
pub trait Machine {
    /// The next message to send whose receiver may have room.
    fn outgoing(&self) -> Option<Outgoing<'_>>;

    /// A message has left.
    fn sent(&mut self, id: u64);

    /// The network has no room for a message now. Others may leave meanwhile; after [`retry`](Self::retry),
    /// it is tried again.
    fn no_room(&mut self, id: u64, now: u64);

    /// Whether messages wait for room.
    fn is_full(&self) -> bool;

    /// There may be room again for messages that found none.
    fn retry(&mut self);

    /// The network does not take a message. The step fails, unless the message may be lost.
    fn not_sent(&mut self, id: u64, error: TransportError);

    /// Takes a message that arrived, in any order. It is read when its turn comes.
    ///
    /// # Errors
    /// Why it is not taken. The step goes on.
    fn receive(&mut self, from: Rank, tag: Tag, message: Vec<u8>) -> Result<(), Refusal>;

    /// A buffer for the next message that arrives, to be used again.
    fn lend(&mut self) -> Vec<u8>;

    /// Takes back a buffer that was lent.
    fn give(&mut self, buffer: Vec<u8>);

    /// The messages to receive now, those needed first at the front. Others may be handed in too.
    fn wanted(&mut self) -> &[Wanted];

    /// When to call again, even if nothing arrives. [`u64::MAX`] is never.
    fn deadline(&self) -> u64;

    /// Nothing more comes from a peer. Its messages that arrived still count.
    fn peer_lost(&mut self, rank: Rank);

    /// A network that hands over messages by name says that nothing which was [wanted](Self::wanted) last
    /// comes from that peer any more. Other messages of it may have arrived.
    fn not_here(&mut self, rank: Rank);

    /// The network has failed.
    fn network_failed(&mut self, error: TransportError);

    /// Bytes of messages that arrived and wait for their turn.
    fn filed_bytes(&self) -> usize;

    /// Counts time that a driver spent on a kind of work.
    fn spend(&mut self, work: Work, time: Duration);

    /// Sums a payload that is [lent](super::Progress::Lent). Most machines lend none.
    fn sum_lent(&mut self, sum: &mut dyn FnMut(Tag, Reduce<'_>) -> Result<(), TransportError>) {
        let _ = sum;
    }
}

impl Machine for Exchange {
    fn outgoing(&self) -> Option<Outgoing<'_>> {
        self.outgoing()
    }

    fn sent(&mut self, id: u64) {
        self.sent(id);
    }

    fn no_room(&mut self, id: u64, now: u64) {
        self.no_room(id, now);
    }

    fn is_full(&self) -> bool {
        self.is_full()
    }

    fn retry(&mut self) {
        self.retry();
    }

    fn not_sent(&mut self, id: u64, error: TransportError) {
        self.not_sent(id, error);
    }

    fn receive(&mut self, from: Rank, tag: Tag, message: Vec<u8>) -> Result<(), Refusal> {
        self.receive(from, tag, message)
    }

    fn lend(&mut self) -> Vec<u8> {
        self.lend()
    }

    fn give(&mut self, buffer: Vec<u8>) {
        self.give(buffer);
    }

    fn wanted(&mut self) -> &[Wanted] {
        self.wanted()
    }

    fn deadline(&self) -> u64 {
        self.deadline()
    }

    fn peer_lost(&mut self, rank: Rank) {
        self.peer_lost(rank);
    }

    fn not_here(&mut self, rank: Rank) {
        self.not_here(rank);
    }

    fn network_failed(&mut self, error: TransportError) {
        self.network_failed(error);
    }

    fn filed_bytes(&self) -> usize {
        self.filed_bytes()
    }

    fn spend(&mut self, work: Work, time: Duration) {
        self.spend(work, time);
    }

    fn sum_lent(&mut self, sum: &mut dyn FnMut(Tag, Reduce<'_>) -> Result<(), TransportError>) {
        self.sum_lent(sum);
    }
}
