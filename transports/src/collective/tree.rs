//! Barrier, broadcast and all-reduce along trees: few hops, for short vectors and slow messages.

use std::ops::Range;

use super::group::{Endpoint, Group};
use super::path::Hop;
use super::reduce::{Holders, Reduce};
use super::ring::{Buffers, require_len};
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
    scratch: &mut Buffers,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let tree = Tree::new(Group::of(transport, tag)?, tag);
    for at in 0.. {
        match tree.hop(at)? {
            None => break,
            Some(Hop::Send { to, tag }) => {
                if tree.is_first_down(at) || tree.is_up(at) {
                    tree.write(at, &data, &mut scratch.outgoing);
                }
                transport.send(to, tag, &scratch.outgoing, deadline)?;
            }
            Some(Hop::Take { from, tag }) => {
                transport.recv(from, tag, &mut scratch.incoming, deadline)?;
                tree.land(at, &mut data, &scratch.incoming)?;
            }
        }
    }
    Ok(tree.group.members.ranks)
}

/// One rank's part of [`tree_all_reduce`], hop by hop: it takes the vectors of its children, exchanges its
/// sum for the result at its parent, and sends the result to its children.
#[derive(Debug)]
pub(crate) struct Tree {
    group: Group,
    tag: Tag,
    /// The hop at which this position hands its sum on; position 0 never does.
    top: usize,
    children: usize,
}

impl Tree {
    pub(super) fn new(group: Group, tag: Tag) -> Self {
        let (me, world) = (group.me, group.world());
        let top = if me == 0 { levels(world) } else { me.trailing_zeros() as usize };
        let children = (0..top).take_while(|hop| me + (1 << hop) < world).count();
        Self { group, tag, top, children }
    }

    fn up(&self) -> usize {
        2 * usize::from(self.group.me > 0)
    }

    fn at(&self, position: usize) -> Rank {
        self.group.members.ranks.as_slice()[position]
    }

    /// The hop with that number; `None` after the last one.
    pub(super) fn hop(&self, at: usize) -> Result<Option<Hop>, TransportError> {
        let (me, levels) = (self.group.me, levels(self.group.world()));
        let tag = |hop| self.tag.derive(Kind::TreeReduce, hop);
        if at < self.children {
            return Ok(Some(Hop::Take { from: self.at(me + (1 << at)), tag: tag(at)? }));
        }
        let after = at - self.children;
        if after < self.up() {
            let parent = self.at(me - (1 << self.top));
            return Ok(Some(match after {
                0 => Hop::Send { to: parent, tag: tag(self.top)? },
                _ => Hop::Take { from: parent, tag: tag(levels + self.top)? },
            }));
        }
        // The longest branch first.
        let Some(hop) = (self.children + self.up() + self.children).checked_sub(at + 1) else {
            return Ok(None);
        };
        Ok(Some(Hop::Send { to: self.at(me + (1 << hop)), tag: tag(levels + hop)? }))
    }

    fn is_up(&self, at: usize) -> bool {
        at == self.children && self.up() > 0
    }

    fn is_first_down(&self, at: usize) -> bool {
        at == self.children + self.up()
    }

    /// What a position has of the vector once it has heard of its children in the first `levels` hops.
    fn held(&self, data: &Reduce<'_>, first: usize, levels: usize) -> Range<usize> {
        let world = self.group.world();
        let count = (1 << levels).min(world - first);
        data.held(Holders { first, count, world }, 0..data.len())
    }

    /// Replaces what is in `out` by what is sent of the vector in a hop.
    pub(super) fn write(&self, at: usize, data: &Reduce<'_>, out: &mut Vec<u8>) {
        let is_up = self.is_up(at);
        data.write(if is_up { self.held(data, self.group.me, self.top) } else { 0..data.len() }, out);
    }

    /// Handles the vector that was received in a hop.
    pub(super) fn land(
        &self,
        at: usize,
        data: &mut Reduce<'_>,
        incoming: &[u8],
    ) -> Result<(), TransportError> {
        let all = 0..data.len();
        let is_up = at < self.children;
        let into = if is_up { self.held(data, self.group.me + (1 << at), at) } else { all.clone() };
        if let Some(Hop::Take { from, tag }) = self.hop(at)? {
            require_len((from, tag), into.len() * data.element_bytes(), incoming.len())?;
        }
        if !is_up {
            data.replace(into, incoming);
            return Ok(());
        }
        data.fold(into, incoming);
        if at + 1 == self.children && self.group.me == 0 {
            data.settle(all);
        }
        Ok(())
    }
}

/// Hops between the root and the furthest position.
fn levels(world: usize) -> usize {
    world.next_power_of_two().ilog2() as usize
}
