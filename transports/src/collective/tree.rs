//! Barrier, broadcast and all-reduce along trees: few hops, for short vectors and slow messages.

use super::group::{Endpoint, Group};
use super::reduce::Reduce;
use super::ring::{Scratch, recv_exactly};
use crate::derived::Kind;
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// Waits until every member has called it; returns the members.
///
/// Dissemination: in round r each rank sends an empty message to the rank 2^r places ahead and waits for the
/// message from the rank 2^r places before it, for 2^r < N. After ⌈log2 N⌉ rounds each has heard of all.
///
/// # Errors
/// The errors of `send` and `recv`, `WrongEpoch`, `TagOutOfRange`.
pub fn barrier<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let group = Group::of(transport, tag)?;
    let mut nothing = Vec::new();
    let mut round = 0;
    while 1 << round < group.world() {
        let tag = tag.derive(Kind::Barrier, round)?;
        transport.send(group.after(1 << round), tag, &[], deadline)?;
        transport.recv(group.before(1 << round), tag, &mut nothing, deadline)?;
        round += 1;
    }
    Ok(group.members.ranks)
}

/// Copies `data` of `root` to every member; elsewhere `data` is replaced.
///
/// Binomial tree: count positions from the root. A rank with position p > 0 takes the data from p without its
/// highest bit, then passes it on to p + 2^r for every 2^r > p with p + 2^r < N, smallest first.
///
/// # Errors
/// The errors of `send` and `recv`, `NotAPeer` if `root` is not a member, `WrongEpoch`, `TagOutOfRange`. A
/// rank that fails may already have passed the data on.
pub fn broadcast<T: Endpoint + ?Sized>(
    transport: &mut T,
    root: Rank,
    tag: Tag,
    data: &mut Vec<u8>,
    deadline: Deadline,
) -> Result<(), TransportError> {
    let group = Group::of(transport, tag)?;
    let tag = tag.derive(Kind::Broadcast, 0)?;
    let root = group.members.ranks.position(root).ok_or(TransportError::NotAPeer { rank: root })?;
    let world = group.world();
    let position = (group.me + world - root) % world;
    let first = if position == 0 { 0 } else { position.ilog2() + 1 };
    if first > 0 {
        transport.recv(group.before(1 << (first - 1)), tag, data, deadline)?;
    }
    for round in first.. {
        let ahead = 1 << round;
        if position + ahead >= world {
            break;
        }
        transport.send(group.after(ahead), tag, data, deadline)?;
    }
    Ok(())
}

/// Reduces vectors of equal length, which travel whole; every member ends with the same bits. Returns the
/// members, all of whom contributed.
///
/// ```text
/// up, r = 0, 1, … while 2^r < N, at position p:
///     p has bit r:   send the vector to p − 2^r; wait for the result
///     p + 2^r < N:   take the vector of p + 2^r;  own ← incoming ⊕ own
/// down: position 0 has the result, which is broadcast along the same tree
/// ```
/// ⌈log2 N⌉ hops up and as many down, each of the whole vector: 2·⌈log2 N⌉·(α + B/BW) on a link of latency α
/// and bandwidth BW, where the ring of [`all_reduce`](super::all_reduce) takes 2(N−1)·(α + B/(N·BW)). So it
/// is for short vectors.
///
/// # Errors
/// As [`all_reduce`](super::all_reduce).
///
/// # Determinism
/// Neighbours first: `((x[0] ⊕ x[1]) ⊕ (x[2] ⊕ x[3])) ⊕ …`, each ⊕ with the higher positions on the left.
/// With [`Wire::Bf16`](super::Wire::Bf16) every left operand is rounded to bfloat16, and so is the result.
/// With N = 1 nothing changes.
pub fn tree_all_reduce<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    mut data: Reduce<'_>,
    scratch: &mut Scratch,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let group = Group::of(transport, tag)?;
    let (me, world, all) = (group.me, group.world(), 0..data.len());
    let at = |position: usize| group.members.ranks.as_slice()[position];
    let bytes = data.len() * data.element_bytes();
    let hops = world.next_power_of_two().ilog2() as usize;
    // The hop at which this position hands its sum on; position 0 never does.
    let top = if me == 0 { hops } else { me.trailing_zeros() as usize };
    for hop in (0..top).filter(|hop| me + (1 << hop) < world) {
        let (from, tag) = (at(me + (1 << hop)), tag.derive(Kind::TreeReduce, hop)?);
        recv_exactly(transport, from, tag, bytes, &mut scratch.incoming, deadline)?;
        data.fold(all.clone(), &scratch.incoming);
    }
    if me > 0 {
        let (parent, up, down) = (
            at(me - (1 << top)),
            tag.derive(Kind::TreeReduce, top)?,
            tag.derive(Kind::TreeReduce, hops + top)?,
        );
        data.write(all.clone(), &mut scratch.outgoing);
        transport.send(parent, up, &scratch.outgoing, deadline)?;
        recv_exactly(transport, parent, down, bytes, &mut scratch.incoming, deadline)?;
        data.replace(all.clone(), &scratch.incoming);
    } else if world > 1 {
        data.settle(all.clone());
    }
    data.write(all, &mut scratch.outgoing);
    // The longest branch first.
    for hop in (0..top).rev().filter(|hop| me + (1 << hop) < world) {
        let tag = tag.derive(Kind::TreeReduce, hops + hop)?;
        transport.send(at(me + (1 << hop)), tag, &scratch.outgoing, deadline)?;
    }
    Ok(group.members.ranks)
}
