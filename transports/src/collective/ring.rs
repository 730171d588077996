//! Reduce-scatter and all-reduce around a ring, in one written order.

use std::ops::Range;

use super::{Group, Reduce, segment};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Kind, Tag};
use crate::transport::Transport;

/// Byte buffers of a reduction. Kept from step to step, they allocate nothing once warm.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) outgoing: Vec<u8>,
    pub(super) incoming: Vec<u8>,
}

impl Scratch {
    /// Empty buffers, which grow to one segment each, or to the whole vector for a tree.
    pub fn new() -> Self {
        Self::default()
    }
}

/// One rank's view of a running reduction.
struct Ring<'a, T: Transport + ?Sized> {
    transport: &'a mut T,
    group: Group,
    tag: Tag,
    kind: Kind,
    deadline: Deadline,
}

impl<T: Transport + ?Sized> Ring<'_, T> {
    /// The elements of the segment that lies `behind` places before this rank's own.
    fn segment(&self, data: &Reduce<'_>, behind: usize) -> Range<usize> {
        let world = self.group.world();
        segment(data.len(), world, (self.group.me + world - behind % world) % world)
    }

    /// Sends one segment ahead and takes another from behind; leaves it in `scratch.incoming`.
    fn pass(
        &mut self,
        hop: usize,
        data: &Reduce<'_>,
        away: Range<usize>,
        expected_len: usize,
        scratch: &mut Scratch,
    ) -> Result<(), TransportError> {
        let tag = self.tag.derive(self.kind, hop)?;
        data.write(away, &mut scratch.outgoing);
        self.transport.send(self.group.after(1), tag, &scratch.outgoing, self.deadline)?;
        let from = self.group.before(1);
        let bytes = expected_len * data.element_bytes();
        recv_exactly(self.transport, from, tag, bytes, &mut scratch.incoming, self.deadline)
    }

    /// N−1 hops, after which this rank's own segment is finished.
    fn reduce(&mut self, data: &mut Reduce<'_>, scratch: &mut Scratch) -> Result<(), TransportError> {
        for hop in 0..self.group.world() - 1 {
            let (away, into) = (self.segment(data, hop + 1), self.segment(data, hop + 2));
            self.pass(hop, data, away, into.len(), scratch)?;
            data.fold(into, &scratch.incoming);
        }
        Ok(())
    }

    /// N−1 more hops, in which the finished segments travel round.
    fn spread(&mut self, data: &mut Reduce<'_>, scratch: &mut Scratch) -> Result<(), TransportError> {
        let hops = self.group.world() - 1;
        for hop in 0..hops {
            let (away, into) = (self.segment(data, hop), self.segment(data, hop + 1));
            self.pass(hops + hop, data, away, into.len(), scratch)?;
            data.replace(into, &scratch.incoming);
        }
        Ok(())
    }
}

/// Receives a message that must have `expected` bytes.
pub(super) fn recv_exactly<T: Transport + ?Sized>(
    transport: &mut T,
    from: Rank,
    tag: Tag,
    expected: usize,
    into: &mut Vec<u8>,
    deadline: Deadline,
) -> Result<(), TransportError> {
    transport.recv(from, tag, into, deadline)?;
    let actual = into.len();
    if expected == actual {
        return Ok(());
    }
    Err(TransportError::WrongLength { from, tag, expected, actual })
}

/// Reduces vectors of equal length; position p of N ends with the result in segment p, whose range is returned with
/// the members, all of whom contributed. The other segments then hold partial results of no use.
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
/// Those of `send` and `recv`; `WrongLength` when a message does not fit (a damaged message, or a vector of another
/// length at a peer); `WrongEpoch`, `TagOutOfRange`. After an error the vector holds partial results: callers that
/// need the old values keep a copy.
///
/// # Determinism
/// The result of segment s is the left fold over positions s+1, s+2, …, N−1, 0, …, s:
/// `((x[s+1] ⊕ x[s+2]) ⊕ x[s+3]) ⊕ … ⊕ x[s]`. It starts at the position after its owner and ends with the owner.
/// With [`Wire::Bf16`](super::Wire::Bf16) every left operand is rounded to bfloat16 before ⊕, and ⊕ itself is an f32
/// addition; the finished segment is not rounded, because it does not travel. With N = 1 nothing changes.
pub fn reduce_scatter<T: Transport + ?Sized>(
    transport: &mut T,
    tag: Tag,
    mut data: Reduce<'_>,
    scratch: &mut Scratch,
    deadline: Deadline,
) -> Result<(RankSet, Range<usize>), TransportError> {
    let group = Group::of(transport, tag)?;
    let mut ring = Ring { transport, group, tag, kind: Kind::ReduceScatter, deadline };
    ring.reduce(&mut data, scratch)?;
    let own = ring.segment(&data, 0);
    Ok((ring.group.members.ranks, own))
}

/// Reduces vectors of equal length; every member ends with the same bits. Returns the members, all of whom
/// contributed.
///
/// First a [`reduce_scatter`], then N−1 hops in which position p sends segment p−hop to position p+1 and takes
/// segment p−1−hop from position p−1. Position p sends 2(N−1) messages:
/// every segment but p, then every segment but p+1.
///
/// # Errors
/// Those of [`reduce_scatter`]. After an error the vector holds partial results.
///
/// # Determinism
/// The order of every sum is that of [`reduce_scatter`]. With [`Wire::Bf16`](super::Wire::Bf16) the finished segment
/// is rounded to bfloat16, at its owner too. With N = 1 nothing changes and nothing is rounded.
pub fn all_reduce<T: Transport + ?Sized>(
    transport: &mut T,
    tag: Tag,
    mut data: Reduce<'_>,
    scratch: &mut Scratch,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let group = Group::of(transport, tag)?;
    let mut ring = Ring { transport, group, tag, kind: Kind::AllReduce, deadline };
    ring.reduce(&mut data, scratch)?;
    if ring.group.world() > 1 {
        let own = ring.segment(&data, 0);
        data.settle(own);
    }
    ring.spread(&mut data, scratch)?;
    Ok(ring.group.members.ranks)
}
