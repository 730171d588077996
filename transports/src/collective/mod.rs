//! Collectives made of `send` and `recv`: the definition that every override has to match.
//!
//! Positions are the places of ranks in the sorted membership, 0 … N−1. A collective sends at most one message at a
//! time over each link, so it never needs more room in an inbox than the contract of
//! [`Transport`] promises.

mod gather;
mod reduce;
mod ring;
mod tree;

pub use gather::{Gathered, all_gather, gather};
pub use reduce::{Reduce, Wire, max_f32, segment};
pub(crate) use ring::Ring;
pub use ring::{Scratch, all_reduce, reduce_scatter};
pub use tree::{barrier, broadcast, tree_all_reduce};

use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::Tag;
use crate::transport::Transport;

/// The membership a collective works on, seen from one of its ranks.
#[derive(Debug)]
struct Group {
    members: Membership,
    me: usize,
}

impl Group {
    /// Takes the membership of now; refuses the tag of another epoch.
    fn of<T: Transport + ?Sized>(transport: &T, tag: Tag) -> Result<Self, TransportError> {
        let members = transport.membership();
        if tag.epoch != members.epoch {
            return Err(TransportError::WrongEpoch { tag, current: members.epoch });
        }
        let rank = transport.rank();
        let me = members.ranks.position(rank).ok_or(TransportError::NotAPeer { rank })?;
        Ok(Self { members, me })
    }

    fn world(&self) -> usize {
        self.members.world()
    }

    /// The rank `ahead` places after this one, around the ring.
    fn after(&self, ahead: usize) -> Rank {
        self.members.ranks.as_slice()[(self.me + ahead) % self.world()]
    }

    /// The rank `behind` places before this one, around the ring; `behind` is at most the world.
    fn before(&self, behind: usize) -> Rank {
        self.after(self.world() - behind)
    }
}
