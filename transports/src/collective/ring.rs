//! Reduce-scatter and all-reduce around a ring, in one written order.

use std::ops::Range;

use super::group::{Endpoint, Group};
use super::reduce::{Holders, Reduce, segment};
use crate::derived::Kind;
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// Byte buffers of a reduction. Keep them from step to step: they allocate nothing once they are large
/// enough.
#[derive(Debug, Default)]
pub struct Buffers {
    pub(super) outgoing: Vec<u8>,
    pub(super) incoming: Vec<u8>,
}

impl Buffers {
    /// Empty buffers, which grow to one segment each, or to the whole vector for a tree.
    pub fn new() -> Self {
        Self::default()
    }
}

/// One rank's view of a reduction around the ring of the members, hop by hop. In each hop the rank sends one
/// segment to the next member and receives another from the previous one. In the first N−1 hops segments are
/// summed. An all-reduce has N−1 more hops, in which the sums travel around the ring. A gather has nothing to
/// sum, and begins with those.
#[derive(Debug)]
pub(crate) struct Ring {
    group: Group,
    tag: Tag,
    kind: Kind,
}

impl Ring {
    /// The ring of [`all_reduce`].
    pub(super) fn of_all_reduce(group: Group, tag: Tag) -> Self {
        Self { group, tag, kind: Kind::AllReduce }
    }

    /// Number of hops in which segments are summed.
    fn sums(&self) -> usize {
        self.group.world() - 1
    }

    /// Hops in all.
    pub(super) fn hops(&self) -> usize {
        if matches!(self.kind, Kind::AllReduce) { 2 * self.sums() } else { self.sums() }
    }

    /// The number of the first hop.
    pub(super) fn first_hop(&self, is_gather: bool) -> usize {
        if is_gather { self.sums() } else { 0 }
    }

    /// The elements of the segment that lies `behind` places before this rank's own.
    fn segment(&self, data: &Reduce<'_>, behind: usize) -> Range<usize> {
        let world = self.group.world();
        segment(data.len(), world, (self.group.me + world - behind % world) % world)
    }

    /// The most elements that a segment has.
    pub(super) fn longest_segment(&self, data: &Reduce<'_>) -> usize {
        data.len().div_ceil(self.group.world())
    }

    /// The segment that is sent in a hop lies this many places before this rank's own. The segment that is
    /// received lies one place further.
    fn away(&self, hop: usize) -> usize {
        if hop < self.sums() { hop + 1 } else { hop - self.sums() }
    }

    /// What travels of a segment in a hop, from the position that lies `behind` places before this rank's.
    fn travelling(&self, hop: usize, data: &Reduce<'_>, behind: usize) -> Range<usize> {
        let segment = self.segment(data, self.away(hop) + behind);
        if hop >= self.sums() {
            return segment;
        }
        let world = self.group.world();
        let first = (self.group.me + 2 * world - hop - behind) % world;
        data.held(Holders { first, count: hop + 1, world }, segment)
    }

    /// Replaces what is in `out` by the segment to send in a hop.
    pub(super) fn write(&self, hop: usize, data: &Reduce<'_>, out: &mut Vec<u8>) {
        data.write(self.travelling(hop, data, 0), out);
    }

    /// The receiver and the tag of the segment that is sent in a hop.
    pub(super) fn target(&self, hop: usize) -> Result<(Rank, Tag), TransportError> {
        Ok((self.group.after(1), self.tag.derive(self.kind, hop)?))
    }

    /// The sender and the tag of the segment that is received in a hop.
    pub(super) fn source(&self, hop: usize) -> Result<(Rank, Tag), TransportError> {
        Ok((self.group.before(1), self.tag.derive(self.kind, hop)?))
    }

    /// Handles the segment that was received in a hop.
    pub(super) fn land(
        &self,
        hop: usize,
        data: &mut Reduce<'_>,
        incoming: &[u8],
    ) -> Result<(), TransportError> {
        let into = self.travelling(hop, data, 1);
        require_len(self.source(hop)?, into.len() * data.element_bytes(), incoming.len())?;
        if hop < self.sums() {
            data.fold(into, incoming);
        } else {
            data.replace(into, incoming);
        }
        if hop + 1 == self.sums() && matches!(self.kind, Kind::AllReduce) {
            data.settle(self.segment(data, 0));
        }
        Ok(())
    }

    /// All hops, one after the other.
    fn run<T: Endpoint + ?Sized>(
        &self,
        transport: &mut T,
        data: &mut Reduce<'_>,
        scratch: &mut Buffers,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        for hop in self.first_hop(matches!(data, Reduce::Gather(_)))..self.hops() {
            let (to, tag) = self.target(hop)?;
            self.write(hop, data, &mut scratch.outgoing);
            transport.send(to, tag, &scratch.outgoing, deadline)?;
            transport.recv(self.source(hop)?.0, tag, &mut scratch.incoming, deadline)?;
            self.land(hop, data, &scratch.incoming)?;
        }
        Ok(())
    }
}

pub(super) fn require_len(
    (from, tag): (Rank, Tag),
    expected: usize,
    actual: usize,
) -> Result<(), TransportError> {
    if expected == actual { Ok(()) } else { Err(TransportError::WrongLength { from, tag, expected, actual }) }
}

/// Reduces vectors of equal length. Position p of N ends with the result in segment p. Returns the range of
/// that segment, and the members, who all contributed. The other segments then hold unusable partial results.
///
/// ```text
/// segment p = elements [⌊p·n/N⌋, ⌊(p+1)·n/N⌋)                  see `segment`
/// for hop in 0 .. N−1, every position p at once, all indices modulo N:
///     send segment p−1−hop to position p+1
///     take segment p−2−hop from position p−1;  own ← incoming ⊕ own
/// ```
/// Messages: N−1 each way, of one segment each. Segments may be empty; they travel all the same.
///
/// # Errors
/// The errors of `send` and `recv`; `WrongLength` if a message does not fit (a damaged message, or a vector
/// of another length at a peer); `WrongEpoch`, `TagOutOfRange`. After an error the vector holds partial
/// results: callers that need the old values keep a copy.
///
/// # Determinism
/// The result of segment s is the left fold over positions s+1, s+2, …, N−1, 0, …, s:
/// `((x[s+1] ⊕ x[s+2]) ⊕ x[s+3]) ⊕ … ⊕ x[s]`. It starts at the position after its owner and ends with the
/// owner. With [`Wire::Bf16`](super::Wire::Bf16) every left operand is rounded to bfloat16 before ⊕, and ⊕
/// itself is an f32 addition; the finished segment is not rounded, because it does not travel. With N = 1
/// nothing changes.
pub fn reduce_scatter<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    mut data: Reduce<'_>,
    scratch: &mut Buffers,
    deadline: Deadline,
) -> Result<(RankSet, Range<usize>), TransportError> {
    let ring = Ring { group: Group::of(transport, tag)?, tag, kind: Kind::ReduceScatter };
    ring.run(transport, &mut data, scratch, deadline)?;
    let own = ring.segment(&data, 0);
    Ok((ring.group.members.ranks, own))
}

/// Reduces vectors of equal length; every member ends with the same bits. Returns the members, all of whom
/// contributed.
///
/// First a [`reduce_scatter`], then N−1 hops in which position p sends segment p−hop to position p+1 and
/// takes segment p−1−hop from position p−1. Position p sends 2(N−1) messages: every segment but p, then every
/// segment but p+1.
///
/// # Errors
/// The errors of [`reduce_scatter`]. After an error the vector holds partial results.
///
/// # Determinism
/// Every sum has the order of [`reduce_scatter`]. With [`Wire::Bf16`](super::Wire::Bf16) the finished segment
/// is rounded to bfloat16, at its owner too. With N = 1 nothing changes and nothing is rounded.
pub fn all_reduce<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    mut data: Reduce<'_>,
    scratch: &mut Buffers,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let ring = Ring::of_all_reduce(Group::of(transport, tag)?, tag);
    ring.run(transport, &mut data, scratch, deadline)?;
    Ok(ring.group.members.ranks)
}
