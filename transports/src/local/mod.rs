//! Threads of one process as ranks.
//!
//! A message is copied once, into a pooled buffer of the receiver; `recv` hands that buffer over. Each rank
//! has one lock, held only to enter or leave a message.
//!
//! # Memory
//! For each sender a rank stores at most the larger of `inbox.bytes` and one message of `max_message_bytes`,
//! in buffers of at most four times that (or 4 KiB a message). It also stores at most 64 spare buffers of
//! `inbox.bytes` in all. Nothing is reserved before it is used.
//!
//! # Failure
//! A transport that is dropped, also by a panic, is gone for good: a rank that waits for it gets
//! [`TransportError::Disconnected`] once it has taken the last messages. The survivors can continue in a new
//! epoch with [`LocalTransport::adopt`].

use std::sync::Arc;

use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::inbox::InboxLimits;
use crate::mailbox::Mailbox;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// Bytes that accompany each payload: the sender and the tag.
const ENVELOPE_BYTES: usize = size_of::<u32>() + Tag::BYTES;

/// Bounds on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalLimits {
    /// How much a rank stores for each sender.
    pub inbox: InboxLimits,
    /// The longest payload.
    pub max_message_bytes: usize,
}

impl Default for LocalLimits {
    /// 4096 messages and 1 GiB from each sender, 1 GiB a message: a gradient of 250 million f32 in one piece.
    fn default() -> Self {
        Self { inbox: InboxLimits { messages: 4096, bytes: 1 << 30 }, max_message_bytes: 1 << 30 }
    }
}

/// Transports for ranks 0 … `world`−1 in epoch 0, in rank order. Give one to each thread.
///
/// # Examples
/// ```
/// use gradwire_transports::{Deadline, Rank, Tag, Transport, local};
///
/// let mut ranks = local::world(2);
/// let tag = Tag::new(0, 1);
/// ranks[0].send(Rank(1), tag, b"frame", Deadline::NEVER)?;
/// let mut frame = Vec::new();
/// ranks[1].recv(Rank(0), tag, &mut frame, Deadline::NEVER)?;
/// assert_eq!(frame, b"frame");
/// # Ok::<(), gradwire_transports::TransportError>(())
/// ```
pub fn world(world: u32) -> Vec<LocalTransport> {
    let ranks = RankSet::contiguous(world);
    with_limits(Membership { epoch: 0, ranks }, LocalLimits::default())
}

/// Transports for the given ranks and epoch, in rank order.
pub fn with_limits(members: Membership, limits: LocalLimits) -> Vec<LocalTransport> {
    let mailboxes = members.ranks.iter().map(|_| Mailbox::new(members.world(), limits.inbox)).collect();
    let hub = Arc::new(Hub { ranks: members.ranks.clone(), mailboxes, limits });
    let end = |(position, rank)| LocalTransport {
        rank,
        position,
        members: members.clone(),
        hub: Arc::clone(&hub),
        counters: Counters::default(),
        closed: false,
    };
    members.ranks.iter().enumerate().map(end).collect()
}

/// Everything the ranks share.
#[derive(Debug)]
struct Hub {
    ranks: RankSet,
    /// By position in `ranks`.
    mailboxes: Vec<Mailbox>,
    limits: LocalLimits,
}

/// One rank's end.
#[derive(Debug)]
pub struct LocalTransport {
    rank: Rank,
    /// Position in the hub's ranks, which stay the same when the membership shrinks.
    position: usize,
    members: Membership,
    hub: Arc<Hub>,
    counters: Counters,
    closed: bool,
}

impl LocalTransport {
    /// Continues with fewer ranks in a later epoch, for instance without a rank that is gone. The caller must
    /// make every member adopt the same membership.
    ///
    /// # Errors
    /// `NotAPeer` when this rank is not in it, or when it names a rank that this process never had. Nothing
    /// has changed then.
    ///
    /// # Panics
    /// If the epoch is not larger than the present one.
    pub fn adopt(&mut self, members: Membership) -> Result<(), TransportError> {
        assert!(members.epoch > self.members.epoch, "an epoch must be larger than the one before");
        if !members.ranks.contains(self.rank) {
            return Err(TransportError::NotAPeer { rank: self.rank });
        }
        if let Some(rank) = members.ranks.iter().find(|rank| !self.hub.ranks.contains(*rank)) {
            return Err(TransportError::NotAPeer { rank });
        }
        self.members = members;
        Ok(())
    }

    fn ensure_open(&self) -> Result<(), TransportError> {
        if self.closed { Err(TransportError::Closed) } else { Ok(()) }
    }

    /// The place of a peer in the hub.
    fn peer(&self, rank: Rank) -> Result<usize, TransportError> {
        let member = rank != self.rank && self.members.ranks.contains(rank);
        let position = if member { self.hub.ranks.position(rank) } else { None };
        position.ok_or(TransportError::NotAPeer { rank })
    }

    fn own_mailbox(&self) -> &Mailbox {
        &self.hub.mailboxes[self.position]
    }

    fn leave(&mut self) {
        self.closed = true;
        self.own_mailbox().owner_left();
        self.hub.mailboxes.iter().for_each(|mailbox| mailbox.sender_left(self.position));
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        if !self.closed {
            self.leave();
        }
    }
}

impl Transport for LocalTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn membership(&self) -> Membership {
        self.members.clone()
    }

    /// A message is in the receiver's inbox when `send` returns.
    fn is_fail_stop(&self) -> bool {
        true
    }

    fn max_message_bytes(&self) -> usize {
        self.hub.limits.max_message_bytes
    }

    fn envelope_bytes(&self, _payload_bytes: usize) -> usize {
        ENVELOPE_BYTES
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        let position = self.peer(to)?;
        let (bytes, limit) = (payload.len(), self.max_message_bytes());
        if bytes > limit {
            return Err(TransportError::TooLarge { to, tag, bytes, limit });
        }
        self.hub.mailboxes[position].deliver((to, self.rank), tag, payload, deadline)?;
        self.counters.up += Traffic::message(bytes, ENVELOPE_BYTES);
        Ok(())
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.ensure_open()?;
        let found = self.own_mailbox().take(wanted, |rank| self.peer(rank), into, deadline)?;
        self.counters.down += Traffic::message(into.len(), ENVELOPE_BYTES);
        Ok(found)
    }

    /// Does nothing: a message is in the receiver's inbox when `send` returns.
    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.ensure_open()
    }

    fn retire(&mut self, before: Tag) {
        self.own_mailbox().retire(before);
    }

    fn close(&mut self, _deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        self.leave();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
