//! One rank's part of an all-reduce, message by message, for callers who move the messages themselves.

use super::group::Group;
use super::reduce::Reduce;
use super::ring::Ring;
use super::tree::Tree;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::Tag;

/// A message of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    Send { to: Rank, tag: Tag },
    Take { from: Rank, tag: Tag },
}

/// The hops of one rank, which are made one after the other.
#[derive(Debug)]
pub(crate) enum Path {
    /// With the number of its first hop.
    Ring(Ring, usize),
    Tree(Tree),
}

impl Path {
    /// Those of [`all_reduce`](super::all_reduce), of a [gather](Reduce::Gather) or of any other reduction.
    pub(crate) fn ring(
        rank: Rank,
        members: Membership,
        tag: Tag,
        is_gather: bool,
    ) -> Result<Self, TransportError> {
        let ring = Ring::of_all_reduce(Group::new(rank, members, tag)?, tag);
        let first = ring.first_hop(is_gather);
        Ok(Self::Ring(ring, first))
    }

    /// Those of [`tree_all_reduce`](super::tree_all_reduce).
    pub(crate) fn tree(rank: Rank, members: Membership, tag: Tag) -> Result<Self, TransportError> {
        Ok(Self::Tree(Tree::new(Group::new(rank, members, tag)?, tag)))
    }

    /// The hop with that number, from 0; `None` after the last one. Around the ring, this rank sends and
    /// takes in turn.
    pub(crate) fn hop(&self, at: usize) -> Result<Option<Hop>, TransportError> {
        match self {
            Self::Ring(ring, first) if first + at / 2 == ring.hops() => Ok(None),
            Self::Ring(ring, first) if at.is_multiple_of(2) => {
                ring.target(first + at / 2).map(|(to, tag)| Some(Hop::Send { to, tag }))
            }
            Self::Ring(ring, first) => {
                ring.source(first + at / 2).map(|(from, tag)| Some(Hop::Take { from, tag }))
            }
            Self::Tree(tree) => tree.hop(at),
        }
    }

    /// The longest message of any hop.
    pub(crate) fn most_bytes(&self, data: &Reduce<'_>) -> usize {
        let longest = match self {
            Self::Ring(ring, _) => ring.longest_segment(data),
            Self::Tree(_) => data.len(),
        };
        longest * data.element_bytes()
    }

    /// Replaces what is in `out` by the message of a hop in which this rank sends.
    pub(crate) fn write(&self, at: usize, data: &Reduce<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Ring(ring, first) => ring.write(first + at / 2, data, out),
            Self::Tree(tree) => tree.write(at, data, out),
        }
    }

    /// Handles the message that was taken in a hop.
    pub(crate) fn land(
        &self,
        at: usize,
        data: &mut Reduce<'_>,
        incoming: &[u8],
    ) -> Result<(), TransportError> {
        match self {
            Self::Ring(ring, first) => ring.land(first + at / 2, data, incoming),
            Self::Tree(tree) => tree.land(at, data, incoming),
        }
    }
}
