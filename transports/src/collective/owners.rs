//! All-reduce by owners: every rank sums one segment in rank order, and sends the sum to all.

use std::ops::Range;

use super::group::Group;
use super::path::Hop;
use super::reduce::{Holders, Reduce, segment};
use crate::derived::Kind;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::Tag;

/// One rank's part of an all-reduce by owners, hop by hop. A message may hold segments of several vectors,
/// one after the other. A long vector is cut: while one cut is summed, others travel.
///
/// ```text
/// cut c     = elements [⌊c·n/C⌋, ⌊(c+1)·n/C⌋), m of them
/// segment p = elements [⌈p·m/N⌉, ⌈(p+1)·m/N⌉) of a cut
/// for each cut: send segment q to position q, for all others
/// for each cut: take from all others, in rank order:   own ← ((x[0] ⊕ x[1]) ⊕ x[2]) ⊕ …
///               send the own segment to all others
/// for each cut: take the segments of all others
/// ```
/// 2C(N−1) messages of a segment each, of which two wait for each other: 2·α + 2(N−1)/N·B/BW on a link of
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
    cuts: usize,
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
    /// With as many `cuts` at all ranks: at least one, and few enough for their numbers to fit in a tag.
    pub(crate) fn new(
        rank: Rank,
        members: Membership,
        tag: Tag,
        cuts: usize,
    ) -> Result<Self, TransportError> {
        Ok(Self { group: Group::new(rank, members, tag)?, tag, cuts })
    }

    fn others(&self) -> usize {
        self.group.world() - 1
    }

    /// The elements of a cut.
    fn cut(&self, data: &Reduce<'_>, cut: usize) -> Range<usize> {
        segment(data.len(), self.cuts, cut)
    }

    /// The elements of a cut that a position owns. No segment is longer than all before it together, of which
    /// there are some: see [`sum_in_order`](Self::sum_in_order).
    fn segment(&self, data: &Reduce<'_>, cut: usize, position: usize) -> Range<usize> {
        let cut = self.cut(data, cut);
        let (len, world) = (cut.len() as u128, self.group.world() as u128);
        // Wide, so that the product cannot overflow.
        let start = |at: usize| cut.start + (at as u128 * len).div_ceil(world) as usize;
        start(position)..start(position + 1)
    }

    /// The purpose of a hop, the cut that it is about, and the position at its other end.
    fn turn(&self, at: usize) -> Option<(Turn, usize, usize)> {
        let (others, me, cuts) = (self.others(), self.group.me, self.cuts);
        let (nth, row) = (at % others.max(1), at.checked_div(others)?);
        let around = (me + 1 + nth) % self.group.world();
        let (turn, cut) = match row.checked_sub(cuts) {
            None => (Turn::SendShare, row),
            Some(row) if row < 2 * cuts && row.is_multiple_of(2) => (Turn::TakeShare, row / 2),
            Some(row) if row < 2 * cuts => (Turn::SendSum, row / 2),
            Some(row) if row < 3 * cuts => (Turn::TakeSum, row - 2 * cuts),
            Some(_) => return None,
        };
        let position = if turn == Turn::TakeShare { nth + usize::from(nth >= me) } else { around };
        Some((turn, cut, position))
    }

    /// The hop with that number, and its purpose; `None` after the last one.
    pub(crate) fn hop(&self, at: usize) -> Result<Option<(Turn, Hop)>, TransportError> {
        let Some((turn, cut, position)) = self.turn(at) else { return Ok(None) };
        let rank = self.group.members.ranks.as_slice()[position];
        let tag = |round| self.tag.derive(Kind::Owners, 2 * cut + round);
        let hop = match turn {
            Turn::SendShare => Hop::Send { to: rank, tag: tag(0)? },
            Turn::TakeShare => Hop::Take { from: rank, tag: tag(0)? },
            Turn::SendSum => Hop::Send { to: rank, tag: tag(1)? },
            Turn::TakeSum => Hop::Take { from: rank, tag: tag(1)? },
        };
        Ok(Some((turn, hop)))
    }

    /// All messages that this rank takes, in the order in which every peer sends them.
    pub(crate) fn takes(&self) -> impl Iterator<Item = Result<(Rank, Tag), TransportError>> {
        let hops = (0..4 * self.cuts * self.others()).map(|at| self.hop(at));
        hops.filter_map(|hop| match hop {
            Ok(Some((_, Hop::Take { from, tag }))) => Some(Ok((from, tag))),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The elements of a vector that travel in a hop.
    fn travelling(&self, at: usize, data: &Reduce<'_>) -> Range<usize> {
        let share = |from: usize, segment| {
            data.held(Holders { first: from, count: 1, world: self.group.world() }, segment)
        };
        match self.turn(at) {
            Some((Turn::SendShare, cut, to)) => share(self.group.me, self.segment(data, cut, to)),
            Some((Turn::TakeShare, cut, from)) => share(from, self.segment(data, cut, self.group.me)),
            Some((Turn::TakeSum, cut, from)) => self.segment(data, cut, from),
            Some((_, cut, _)) => self.segment(data, cut, self.group.me),
            None => 0..0,
        }
    }

    /// The bytes of a vector that travel in a hop.
    pub(crate) fn bytes(&self, at: usize, data: &Reduce<'_>) -> usize {
        self.travelling(at, data).len() * data.element_bytes()
    }

    /// Writes what a vector sends in a hop to the front of `out`. Returns what is left behind it.
    pub(crate) fn write<'o>(&self, at: usize, data: &Reduce<'_>, out: &'o mut [u8]) -> &'o mut [u8] {
        let range = self.travelling(at, data);
        let (own, rest) = out.split_at_mut(range.len() * data.element_bytes());
        data.write_to(range, own);
        rest
    }

    /// Handles what came for a vector in a hop, as many [`bytes`](Self::bytes) as it says.
    pub(crate) fn land(&self, at: usize, data: &mut Reduce<'_>, incoming: &[u8]) {
        let into = self.travelling(at, data);
        match self.turn(at) {
            Some((Turn::TakeSum, ..)) => data.replace(into, incoming),
            Some(_) if data.is_copy() => data.replace(into, incoming),
            Some((_, cut, from)) => self.sum_in_order(data, (cut, into), from, incoming),
            None => {}
        }
    }

    /// Adds the share of a position to the own segment of a cut, so that the sum has the order of the ranks.
    /// Where two come before this rank, its own share waits at the front of the cut: the share there has
    /// left.
    fn sum_in_order(
        &self,
        data: &mut Reduce<'_>,
        (cut, own): (usize, Range<usize>),
        from: usize,
        incoming: &[u8],
    ) {
        let (me, last, front) = (self.group.me, self.others(), self.cut(data, cut).start);
        let first = usize::from(me == 0);
        let waits = me > 1;
        if from == first {
            data.settle(own.clone());
        }
        if waits && from == 0 {
            data.copy_to(front, own.clone());
            data.replace(own.clone(), incoming);
        } else {
            data.fold(own.clone(), incoming);
        }
        if waits && from + 1 == me {
            data.fold_from(front, own.clone());
        }
        let is_last = from == last || from + 1 == last && me == last;
        if is_last {
            data.settle(own);
        }
    }
}
