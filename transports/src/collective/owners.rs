//! All-reduce by owners: every rank sums one segment in rank order, and sends the sum to all.

use std::ops::Range;

use super::group::Group;
use super::path::Hop;
use super::reduce::Reduce;
use crate::derived::Kind;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::Tag;

/// One rank's part of an all-reduce by owners, hop by hop. A message may hold segments of several vectors,
/// one after the other.
///
/// ```text
/// segment p = elements [⌈p·n/N⌉, ⌈(p+1)·n/N⌉)
/// send segment q to position q, for all others
/// take from all others, in rank order:   own ← ((x[0] ⊕ x[1]) ⊕ x[2]) ⊕ …
/// send the own segment to all others;    take theirs
/// ```
/// 2(N−1) messages of a segment each, of which two wait for each other: 2·α + 2(N−1)/N·B/BW on a link of
/// latency α and bandwidth BW.
///
/// # Determinism
/// Every sum is the left fold over the ranks, ascending, wherever its element lies. With
/// [`Wire::Bf16`](super::Wire::Bf16) every operand is rounded to bfloat16, also the owner's, and so is the
/// sum; ⊕ is an f32 addition. With N = 1 nothing changes and nothing is rounded.
#[derive(Debug)]
pub(crate) struct Owners {
    group: Group,
    tag: Tag,
}

/// What the hops of one number of others are for, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    SendShare,
    TakeShare,
    SendSum,
    TakeSum,
}

impl Owners {
    pub(crate) fn new(rank: Rank, members: Membership, tag: Tag) -> Result<Self, TransportError> {
        Ok(Self { group: Group::new(rank, members, tag)?, tag })
    }

    fn others(&self) -> usize {
        self.group.world() - 1
    }

    /// The elements that a position owns. No segment is longer than all before it together, of which there
    /// are some: see [`sum_in_order`](Self::sum_in_order).
    fn segment(&self, data: &Reduce<'_>, position: usize) -> Range<usize> {
        let (len, world) = (data.len() as u128, self.group.world() as u128);
        // Wide, so that the product cannot overflow.
        let start = |at: usize| (at as u128 * len).div_ceil(world) as usize;
        start(position)..start(position + 1)
    }

    /// The purpose of a hop, and the position at its other end.
    fn turn(&self, at: usize) -> Option<(Turn, usize)> {
        let (others, me) = (self.others(), self.group.me);
        let (turn, nth) = (at.checked_div(others)?, at % others);
        let around = (me + 1 + nth) % self.group.world();
        Some(match turn {
            0 => (Turn::SendShare, around),
            1 => (Turn::TakeShare, nth + usize::from(nth >= me)),
            2 => (Turn::SendSum, around),
            3 => (Turn::TakeSum, around),
            _ => return None,
        })
    }

    /// The hop with that number, and its purpose; `None` after the last one.
    pub(crate) fn hop(&self, at: usize) -> Result<Option<(Turn, Hop)>, TransportError> {
        let Some((turn, position)) = self.turn(at) else { return Ok(None) };
        let rank = self.group.members.ranks.as_slice()[position];
        let tag = |round| self.tag.derive(Kind::Owners, round);
        let hop = match turn {
            Turn::SendShare => Hop::Send { to: rank, tag: tag(0)? },
            Turn::TakeShare => Hop::Take { from: rank, tag: tag(0)? },
            Turn::SendSum => Hop::Send { to: rank, tag: tag(1)? },
            Turn::TakeSum => Hop::Take { from: rank, tag: tag(1)? },
        };
        Ok(Some((turn, hop)))
    }

    /// The elements of a vector that travel in a hop.
    fn travelling(&self, at: usize, data: &Reduce<'_>) -> Range<usize> {
        match self.turn(at) {
            Some((Turn::SendShare, to)) => self.segment(data, to),
            Some((Turn::TakeSum, from)) => self.segment(data, from),
            _ => self.segment(data, self.group.me),
        }
    }

    /// The bytes of a vector that travel in a hop.
    pub(crate) fn bytes(&self, at: usize, data: &Reduce<'_>) -> usize {
        self.travelling(at, data).len() * data.element_bytes()
    }

    /// Appends what a vector sends in a hop.
    pub(crate) fn write(&self, at: usize, data: &Reduce<'_>, out: &mut Vec<u8>) {
        data.write(self.travelling(at, data), out);
    }

    /// Handles what came for a vector in a hop, as many [`bytes`](Self::bytes) as it says.
    pub(crate) fn land(&self, at: usize, data: &mut Reduce<'_>, incoming: &[u8]) {
        let into = self.travelling(at, data);
        match self.turn(at) {
            Some((Turn::TakeSum, _)) => data.replace(into, incoming),
            Some((_, from)) => self.sum_in_order(data, into, from, incoming),
            None => {}
        }
    }

    /// Adds the share of a position to the own segment, so that the sum has the order of the ranks. Where
    /// two come before this rank, its own share waits in front: the share there has left.
    fn sum_in_order(&self, data: &mut Reduce<'_>, own: Range<usize>, from: usize, incoming: &[u8]) {
        let (me, last) = (self.group.me, self.others());
        let first = usize::from(me == 0);
        let waits = me > 1;
        if from == first {
            data.settle(own.clone());
        }
        if waits && from == 0 {
            data.copy_to_front(own.clone());
            data.replace(own.clone(), incoming);
        } else {
            data.fold(own.clone(), incoming);
        }
        if waits && from + 1 == me {
            data.fold_front(own.clone());
        }
        let is_last = from == last || from + 1 == last && me == last;
        if is_last {
            data.settle(own);
        }
    }
}
