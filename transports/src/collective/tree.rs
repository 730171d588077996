//! Barrier and broadcast: few hops, no arithmetic.

use super::Group;
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Kind, Tag};
use crate::transport::Transport;

/// Waits until every member has called it; returns the members.
///
/// Dissemination: in round r each rank sends an empty message 2^r places ahead and waits for the one from 2^r places
/// behind, for 2^r < N. After ⌈log2 N⌉ rounds each has heard of all.
///
/// # Errors
/// Those of `send` and `recv`, `WrongEpoch`, `TagOutOfRange`.
pub fn barrier<T: Transport + ?Sized>(
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
/// Binomial tree: count positions from the root. A rank with position p > 0 takes the data from p without its highest
/// bit, then passes it on to p + 2^r for every 2^r > p with p + 2^r < N, smallest first.
///
/// # Errors
/// Those of `send` and `recv`, `NotAPeer` when `root` is no member, `WrongEpoch`, `TagOutOfRange`. A rank that fails
/// may already have passed the data on.
pub fn broadcast<T: Transport + ?Sized>(
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
