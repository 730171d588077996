//! What a collective needs from a transport, and the membership that it uses.

use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag};

/// The four calls of a transport that collectives need: the ranks, and messages. Every
/// [`Transport`](crate::Transport) implements it; the documentation there holds here too. If both traits are
/// in scope, a call must name the trait.
pub trait Endpoint {
    /// The rank of this end.
    fn rank(&self) -> Rank;

    /// The ranks that take part now, this rank included.
    fn membership(&self) -> Membership;

    /// Sends a message.
    ///
    /// # Errors
    /// See [`Transport::send`](crate::Transport::send).
    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError>;

    /// Waits for a message.
    ///
    /// # Errors
    /// See [`Transport::recv`](crate::Transport::recv).
    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError>;
}

/// The membership of one collective, as one of its ranks sees it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Membership,
    pub(super) me: usize,
}

impl Group {
    /// Takes the current membership. Refuses a tag of another epoch.
    pub(super) fn of<T: Endpoint + ?Sized>(transport: &T, tag: Tag) -> Result<Self, TransportError> {
        Self::new(transport.rank(), transport.membership(), tag)
    }

    pub(super) fn new(rank: Rank, members: Membership, tag: Tag) -> Result<Self, TransportError> {
        if tag.epoch != members.epoch {
            return Err(TransportError::WrongEpoch { tag, current: members.epoch });
        }
        let me = members.ranks.position(rank).ok_or(TransportError::NotAPeer { rank })?;
        Ok(Self { members, me })
    }

    pub(super) fn world(&self) -> usize {
        self.members.world()
    }

    /// The rank `ahead` places after this one, around the ring.
    pub(super) fn after(&self, ahead: usize) -> Rank {
        self.members.ranks.as_slice()[(self.me + ahead) % self.world()]
    }

    /// The rank `behind` places before this one, around the ring; `behind` is at most the world.
    pub(super) fn before(&self, behind: usize) -> Rank {
        self.after(self.world() - behind)
    }
}
