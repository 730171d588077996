//! The contract of everything that moves bytes between ranks.

use std::ops::Range;

use crate::collective::{self, Endpoint, Fold, Gathered, Reduce, Scalar, Scratch};
use crate::counters::Counters;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// Moves messages between ranks, blocking with deadlines; knows nothing of codecs.
///
/// # Messages
/// - A message is any byte string up to [`max_message_bytes`](Self::max_message_bytes), including the empty
///   one. Sender, receiver and [`Tag`] identify it. It arrives whole or not at all.
/// - `recv` asks for one sender and one tag. A message with another tag stays in an inbox of bounded size
///   until it is requested. A `recv` never returns a message with another tag, however late it comes.
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
/// The provided collectives use only `send` and `recv`. A transport may override them, but only with
/// functions of the same result, bit for bit. Every member calls the same collectives with the same tag. Two
/// calls of one collective in the same step and unit need different chunks below [`Tag::COLLECTIVE_CHUNKS`].
///
/// # Determinism
/// No result depends on the order in which messages arrive. Sums have the written order of
/// [`collective::reduce_scatter`].
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

    /// Waits for the message of `from` with `tag` and puts it in `into`, which it clears first.
    ///
    /// A transport may swap the vector's storage for its own, so its capacity can change. If the vector is
    /// reused, `recv` allocates nothing once buffers are large enough. With a deadline that has passed, it
    /// takes a message that has arrived and does not wait.
    ///
    /// # Errors
    /// `Timeout`; `NotAPeer`; `Disconnected` if the sender is gone and this message is not in the inbox;
    /// `Retired` for a tag older than the mark of [`retire`](Self::retire); `Closed`. `into` is then
    /// unchanged.
    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError>;

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

    /// Waits until every member has called it; returns the members.
    ///
    /// # Errors
    /// See [`collective::barrier`].
    fn barrier(&mut self, tag: Tag, deadline: Deadline) -> Result<RankSet, TransportError> {
        collective::barrier(self, tag, deadline)
    }

    /// Copies `data` of `root` to every member.
    ///
    /// # Errors
    /// See [`collective::broadcast`].
    fn broadcast(
        &mut self,
        root: Rank,
        tag: Tag,
        data: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        collective::broadcast(self, root, tag, data, deadline)
    }

    /// Collects at `root` the payloads that arrive before the deadline; returns the ranks whose payloads
    /// `root` has.
    ///
    /// # Errors
    /// See [`collective::gather`].
    fn gather(
        &mut self,
        root: Rank,
        tag: Tag,
        payload: &[u8],
        out: &mut Gathered,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        collective::gather(self, root, tag, payload, out, deadline)
    }

    /// Gives every member the payloads of all, of any lengths; returns the ranks that sent them.
    ///
    /// # Errors
    /// See [`collective::all_gather`].
    fn all_gather(
        &mut self,
        tag: Tag,
        payload: &[u8],
        out: &mut Gathered,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        collective::all_gather(self, tag, payload, out, deadline)
    }

    /// Folds a few scalars of all ranks, so that all make the same decision; every member ends with the same
    /// bits.
    ///
    /// # Errors
    /// See [`collective::agree`].
    ///
    /// # Examples
    /// ```
    /// use gradwire_transports::collective::{Fold, Scalar};
    /// use gradwire_transports::{Deadline, Tag, Transport, local};
    ///
    /// let ends = local::world(3).into_iter().map(|mut end| {
    ///     std::thread::spawn(move || {
    ///         let rank = end.rank().0;
    ///         let mut votes = [(Fold::Min, Scalar::I64(i64::from(rank != 1))), (Fold::Sum, Scalar::F64(rank.into()))];
    ///         end.agree(Tag::new(0, 1), &mut votes, Deadline::NEVER).unwrap();
    ///         votes.map(|(_, scalar)| scalar)
    ///     })
    /// });
    /// for end in ends.collect::<Vec<_>>() {
    ///     assert_eq!(end.join().unwrap(), [Scalar::I64(0), Scalar::F64(3.0)]);
    /// }
    /// ```
    fn agree(
        &mut self,
        tag: Tag,
        scalars: &mut [(Fold, Scalar)],
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        collective::agree(self, tag, scalars, deadline)
    }

    /// Reduces equal-length vectors; each member ends with the result in its own segment, whose range is
    /// returned.
    ///
    /// # Errors
    /// See [`collective::reduce_scatter`].
    fn reduce_scatter(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        scratch: &mut Scratch,
        deadline: Deadline,
    ) -> Result<(RankSet, Range<usize>), TransportError> {
        collective::reduce_scatter(self, tag, data, scratch, deadline)
    }

    /// Reduces equal-length vectors; every member ends with the same bits. Returns the contributors.
    ///
    /// # Errors
    /// See [`collective::all_reduce`].
    fn all_reduce(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        scratch: &mut Scratch,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        collective::all_reduce(self, tag, data, scratch, deadline)
    }

    /// Reduces equal-length vectors with the library's own all-reduce, in an order that only the library
    /// knows.
    ///
    /// With [`Wire::Bf16`](collective::Wire::Bf16) every operand is bfloat16, so a sum is rounded as often as
    /// the library adds.
    ///
    /// # Errors
    /// `Unsupported` if there is no such library; otherwise those of [`all_reduce`](Self::all_reduce).
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
