//! The contract of everything that moves bytes between ranks.

use crate::collective::{Endpoint, Reduce};
use crate::counters::Counters;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};

/// Moves messages between ranks, blocking with deadlines; knows nothing of codecs.
///
/// # Messages
/// - A message is any byte string up to [`max_message_bytes`](Self::max_message_bytes), including the empty
///   one. Sender, receiver and [`Tag`] identify it. It arrives whole or not at all.
/// - [`recv`](Self::recv) asks for one message by sender and tag, [`recv_any`](Self::recv_any) for the first
///   of several. A message that is not asked for stays in an inbox of bounded size until it is. No call
///   returns a message that it did not ask for, however late it comes.
/// - A message whose sender and tag equal those of a message in the inbox, or of one taken recently, is a
///   duplicate and is dropped. The first one counts.
/// - `send` does not wait for the receiver to call `recv`, only for room in its inbox: an inbox that holds
///   nothing from a sender accepts one message of any legal size from it. So ranks that send to each other
///   first and receive afterwards do not block, as long as each has one message in flight to each other.
///
/// # Membership
/// Ranks are names, not indices, and [`membership`](Self::membership) may change between two calls of one
/// rank, with a larger epoch. Collectives work on the membership at their start and refuse a tag of another
/// epoch. Fail-stop transports end the job when a member dies; fail-recover transports continue in the next
/// epoch. Both return [`TransportError::Disconnected`] to a rank that waits for a rank known to be gone, and
/// [`TransportError::Timeout`] if that is not known.
///
/// # Collectives
/// Barriers, gathers and sums are functions of [`collective`](crate::collective) that use only `send` and
/// `recv`, so their results are the same on every transport, bit for bit.
///
/// # Examples
/// A message with another tag waits until it is requested.
/// ```
/// use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, local};
///
/// let [mut a, mut b] = local::world(2).try_into().unwrap();
/// let (first, second) = (Tag::new(0, 1), Tag::new(0, 2));
/// b.send(Rank(0), second, b"later", Deadline::NEVER).unwrap();
/// b.send(Rank(0), first, b"now", Deadline::NEVER).unwrap();
/// let mut message = Vec::new();
/// a.recv(Rank(1), first, &mut message, Deadline::NEVER).unwrap();
/// assert_eq!(message, b"now");
/// a.recv(Rank(1), second, &mut message, Deadline::NEVER).unwrap();
/// assert_eq!(message, b"later");
/// let late = a.recv(Rank(1), second, &mut message, Deadline::now());
/// assert_eq!(late, Err(TransportError::Timeout { from: Rank(1), tag: second }));
/// ```
pub trait Transport: Send {
    /// The rank of this end.
    fn rank(&self) -> Rank;

    /// The ranks that take part now, this rank included. Allocates nothing.
    fn membership(&self) -> Membership;

    /// Whether every sent message arrives unless the run ends for all ranks: no single connection breaks, and
    /// if a member dies, the job ends or the survivors begin anew. Then an
    /// [exchange](crate::exchange#the-end-of-a-step) need not ask every rank how its step ended.
    ///
    /// The same at all ranks, and for as long as the transport lives.
    fn is_fail_stop(&self) -> bool {
        false
    }

    /// The longest payload that `send` takes, in bytes.
    fn max_message_bytes(&self) -> usize;

    /// Bytes that the transport adds to carry a payload of `payload_bytes`.
    fn envelope_bytes(&self, payload_bytes: usize) -> usize;

    /// Sends `payload` to `to`. The caller may reuse the slice on return.
    ///
    /// # Errors
    /// `NotAPeer`, `TooLarge`; `NoRoom` if the receiver's inbox stayed full until the deadline;
    /// `Disconnected` if the receiver is known to be gone; `Closed`. After an error the message has not been
    /// sent.
    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError>;

    /// Sends a message that may be lost: it arrives like a message of [`send`](Self::send), or never. A
    /// transport that repeats lost messages does not repeat this one once `until` has passed, and no
    /// transport waits longer for room.
    ///
    /// # Errors
    /// The errors of `send` except `NoRoom`: a message that finds no room is lost.
    fn send_packet(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        until: Deadline,
    ) -> Result<(), TransportError> {
        match self.send(to, tag, payload, until) {
            Err(TransportError::NoRoom { .. }) => Ok(()),
            sent => sent,
        }
    }

    /// Waits for any of the messages `wanted` and puts it in `into`, which it clears first. Returns which one
    /// it is. If several are here, the one that `wanted` names first; of several chunks, the lowest.
    ///
    /// Messages are asked for by name, because others use the transport too: a message of a rank that is one
    /// collective ahead waits for that collective.
    ///
    /// A transport may swap the vector's storage for its own, so its capacity can change. If the vector is
    /// reused, `recv_any` allocates nothing once buffers are large enough. With a deadline that has passed,
    /// it takes a message that has arrived and does not wait.
    ///
    /// # Errors
    /// `Timeout` with the first of `wanted`; `NotAPeer`; `Disconnected` if one of the senders is gone, or
    /// [cut off](Wanted::unless_cut_off), and none of the messages is in the inbox; `Retired` for a tag older
    /// than the mark of [`retire`](Self::retire); `Closed`. `into` is then unchanged.
    ///
    /// # Panics
    /// When nothing is wanted.
    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError>;

    /// Waits for the message of `from` with `tag`: [`recv_any`](Self::recv_any) of that message.
    ///
    /// # Errors
    /// See [`recv_any`](Self::recv_any).
    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        self.recv_any(&[Wanted::one(from, tag)], into, deadline).map(|_| ())
    }

    /// Moves messages without waiting. Calls during a computation let messages travel meanwhile.
    ///
    /// # Errors
    /// `Closed`.
    fn try_progress(&mut self) -> Result<(), TransportError>;

    /// Forgets every message with a tag smaller than `before`, including messages that arrive later.
    ///
    /// Called once a step, it keeps unrequested messages from filling the inbox.
    fn retire(&mut self, before: Tag);

    /// Leaves the run in an orderly way: sent messages are delivered, and peers learn that this rank is gone.
    ///
    /// # Errors
    /// `Closed` if it was closed before; `Timeout` if a peer did not confirm a message in time. This end is
    /// closed in any case.
    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError>;

    /// What this rank has sent and received so far.
    fn counters(&self) -> Counters;

    /// Reduces equal-length vectors with the library's own all-reduce, in an order that only the library
    /// knows.
    ///
    /// With [`Wire::Bf16`](crate::collective::Wire::Bf16) every operand is bfloat16, so a sum is rounded as
    /// often as the library adds.
    ///
    /// # Errors
    /// `Unsupported` if there is no such library; otherwise those of
    /// [`collective::all_reduce`](crate::collective::all_reduce).
    ///
    /// # Determinism
    /// Every member ends with the same bits, as far as the library follows the MPI standard's recommendation;
    /// other transports, and other worlds, may give other bits.
    fn native_all_reduce(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        let _ = (tag, data, deadline);
        Err(TransportError::Unsupported { operation: "native all-reduce" })
    }
}

impl<T: Transport + ?Sized> Endpoint for T {
    fn rank(&self) -> Rank {
        Transport::rank(self)
    }

    fn membership(&self) -> Membership {
        Transport::membership(self)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        Transport::send(self, to, tag, payload, deadline)
    }

    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        Transport::recv(self, from, tag, into, deadline)
    }
}
