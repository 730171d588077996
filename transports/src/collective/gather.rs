//! Payloads of any length, collected at one rank or at all.

use super::group::{Endpoint, Group};
use crate::derived::Kind;
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// Payloads in rank order. Keep it from step to step: it allocates nothing once its buffers are large enough.
#[derive(Debug, Default)]
pub struct Gathered {
    ranks: Vec<Rank>,
    payloads: Vec<Vec<u8>>,
}

impl Gathered {
    /// Holds nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every payload with its sender, in rising rank order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Rank, &[u8])> + '_ {
        self.ranks.iter().zip(&self.payloads).map(|(rank, payload)| (*rank, payload.as_slice()))
    }

    /// The payload of `rank`, if it arrived.
    pub fn payload(&self, rank: Rank) -> Option<&[u8]> {
        self.ranks.binary_search(&rank).ok().map(|at| self.payloads[at].as_slice())
    }

    /// The number of payloads.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    fn clear(&mut self) {
        self.ranks.clear();
    }

    /// The buffer for the next payload. It has no sender until `keep` names one.
    fn next_buffer(&mut self) -> &mut Vec<u8> {
        let at = self.ranks.len();
        if at == self.payloads.len() {
            self.payloads.push(Vec::new());
        }
        &mut self.payloads[at]
    }

    fn keep(&mut self, rank: Rank) {
        self.ranks.push(rank);
    }

    fn keep_own(&mut self, rank: Rank, payload: &[u8]) {
        let buffer = self.next_buffer();
        buffer.clear();
        buffer.extend_from_slice(payload);
        self.keep(rank);
    }
}

/// Gives every member the payloads of all. Returns the members, who all contributed.
///
/// Each rank sends its payload to every peer, starting with the rank after its own, so that not all send to
/// the same rank first. Then it takes the others' payloads in rank order. `out` holds this rank's own payload
/// too. A payload may be empty; an empty one is still a contribution.
///
/// # Errors
/// The errors of `send` and `recv`, `WrongEpoch`, `TagOutOfRange`. There is no partial result: if a payload
/// is missing, ranks could disagree about which one. After an error, `out` holds the payloads that had
/// arrived and must not be used for a mean. A rank that has all payloads may succeed while another fails.
///
/// # Determinism
/// `out` is in rank order, in whatever order payloads arrive.
pub fn all_gather<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    payload: &[u8],
    out: &mut Gathered,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    out.clear();
    let group = Group::of(transport, tag)?;
    let tag = tag.derive(Kind::AllGather, 0)?;
    for ahead in 1..group.world() {
        transport.send(group.after(ahead), tag, payload, deadline)?;
    }
    let me = transport.rank();
    for rank in group.members.ranks.iter() {
        if rank == me {
            out.keep_own(me, payload);
        } else {
            transport.recv(rank, tag, out.next_buffer(), deadline)?;
            out.keep(rank);
        }
    }
    Ok(group.members.ranks)
}

/// Collects at `root` the payloads that arrive before the deadline. Returns the ranks whose payloads `root`
/// has, its own included.
///
/// Unlike [`all_gather`], the result may be partial, because a single rank decides which ranks took part and
/// can tell the others. A member that is late or gone is missing from the result; that is not an error. At
/// the other ranks `out` and the returned set are empty.
///
/// # Errors
/// At `root`, the errors of `recv` except `Timeout` and `Disconnected`; elsewhere, those of `send`.
/// `NotAPeer` if `root` is not a member, `WrongEpoch`, `TagOutOfRange`.
///
/// # Determinism
/// `out` is in rank order, in whatever order payloads arrived; which rank is late depends on the clock.
pub fn gather<T: Endpoint + ?Sized>(
    transport: &mut T,
    root: Rank,
    tag: Tag,
    payload: &[u8],
    out: &mut Gathered,
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    out.clear();
    let group = Group::of(transport, tag)?;
    let tag = tag.derive(Kind::Gather, 0)?;
    if transport.rank() != root {
        transport.send(root, tag, payload, deadline)?;
        return Ok(RankSet::default());
    }
    for rank in group.members.ranks.iter() {
        if rank == root {
            out.keep_own(root, payload);
        } else if arrived(transport.recv(rank, tag, out.next_buffer(), deadline))? {
            out.keep(rank);
        }
    }
    let complete = out.len() == group.world();
    Ok(if complete { group.members.ranks } else { out.ranks.iter().copied().collect() })
}

/// Whether the message came; a peer that is late or gone is not an error here.
fn arrived(received: Result<(), TransportError>) -> Result<bool, TransportError> {
    match received {
        Ok(()) => Ok(true),
        Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
