//! What drives a machine: the calls that move its messages.

use std::time::Duration;

use super::machine::Outgoing;
use super::port::{Body, Port};
use super::refusal::Refusal;
use super::report::Work;
use crate::collective::Reduce;
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Tag, Wanted};

/// The port of a machine, and the messages that it keeps itself.
pub trait HasPort {
    /// The messages of its step.
    fn port(&self) -> &Port;

    /// The same, to be changed.
    fn port_mut(&mut self) -> &mut Port;

    /// The bytes of a [frame](Body::Frame) that was queued.
    fn frame(&self, part: usize, place: usize) -> &[u8];

    /// Counts time that a driver spent on a kind of work.
    fn spend(&mut self, work: Work, time: Duration);

    /// Sums a payload that is [lent](super::Progress::Lent).
    fn sum_lent(&mut self, sum: &mut dyn FnMut(Tag, Reduce<'_>) -> Result<(), TransportError>) {
        let _ = sum;
    }
}

/// A machine without I/O, as whoever moves its messages sees it: an [`Exchange`](super::Exchange),
/// or a [`Mixer`](crate::gossip::Mixer).
///
/// A driver sends what is [queued](Self::outgoing) and hands in what [arrives](Self::receive), in any order,
/// between the calls that work on the step. A caller that has several of them may make one machine of all.
/// Time is in nanoseconds from any moment that stays the same.
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

impl<M: HasPort> Machine for M {
    fn outgoing(&self) -> Option<Outgoing<'_>> {
        let parcel = self.port().outgoing()?;
        let bytes = match &parcel.body {
            Body::Own(bytes) => bytes,
            Body::Frame { part, place } => HasPort::frame(self, *part, *place),
        };
        Some(Outgoing { id: parcel.id, to: parcel.to, tag: parcel.tag, bytes, care: parcel.care })
    }

    fn sent(&mut self, id: u64) {
        self.port_mut().sent(id);
    }

    fn no_room(&mut self, id: u64, now: u64) {
        self.port_mut().now = now;
        self.port_mut().no_room(id);
    }

    fn is_full(&self) -> bool {
        self.port().is_full()
    }

    fn retry(&mut self) {
        self.port_mut().retry();
    }

    fn not_sent(&mut self, id: u64, error: TransportError) {
        self.port_mut().not_sent(id, error);
    }

    fn receive(&mut self, from: Rank, tag: Tag, message: Vec<u8>) -> Result<(), Refusal> {
        self.port_mut().receive(from, tag, message)
    }

    fn lend(&mut self) -> Vec<u8> {
        self.port_mut().lend()
    }

    fn give(&mut self, buffer: Vec<u8>) {
        self.port_mut().give(buffer);
    }

    fn wanted(&mut self) -> &[Wanted] {
        self.port_mut().wanted()
    }

    fn deadline(&self) -> u64 {
        self.port().deadline
    }

    fn peer_lost(&mut self, rank: Rank) {
        self.port_mut().peer_lost(rank);
    }

    fn not_here(&mut self, rank: Rank) {
        self.port_mut().not_here(rank);
    }

    fn network_failed(&mut self, error: TransportError) {
        self.port_mut().fail(error);
    }

    fn filed_bytes(&self) -> usize {
        self.port().filed_bytes()
    }

    fn spend(&mut self, work: Work, time: Duration) {
        HasPort::spend(self, work, time);
    }

    fn sum_lent(&mut self, sum: &mut dyn FnMut(Tag, Reduce<'_>) -> Result<(), TransportError>) {
        HasPort::sum_lent(self, sum);
    }
}
