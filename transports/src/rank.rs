//! Ranks, sorted sets of ranks, and the membership of an epoch.

use std::fmt;
use std::sync::Arc;

/// The name of one participant, unique within a run. Ranks need not be contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// A sorted set of ranks. A clone shares the storage and allocates nothing.
///
/// # Examples
/// ```
/// use gradwire_transports::{Rank, RankSet};
///
/// let set: RankSet = [Rank(7), Rank(3), Rank(7)].into_iter().collect();
/// assert_eq!(set.as_slice(), [Rank(3), Rank(7)]);
/// assert_eq!(set.position(Rank(7)), Some(1));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankSet(Arc<[Rank]>);

impl RankSet {
    /// The ranks 0, 1, …, `world` − 1.
    pub fn contiguous(world: u32) -> Self {
        (0..world).map(Rank).collect()
    }

    /// The ranks in rising order.
    pub fn as_slice(&self) -> &[Rank] {
        &self.0
    }

    /// The ranks in rising order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Rank> + DoubleEndedIterator + '_ {
        self.0.iter().copied()
    }

    /// How many ranks the set holds.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set holds no rank.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `rank` is in the set.
    pub fn contains(&self, rank: Rank) -> bool {
        self.position(rank).is_some()
    }

    /// The place of `rank` in rising order, from 0.
    pub fn position(&self, rank: Rank) -> Option<usize> {
        self.0.binary_search(&rank).ok()
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks.into())
    }
}

/// The ranks of the run during one epoch. Every change of the ranks begins a new, larger epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Counts the changes of membership.
    pub epoch: u32,
    /// All ranks that take part, the asking rank included.
    pub ranks: RankSet,
}

impl Membership {
    /// How many ranks take part.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_set_is_sorted_and_free_of_repeats() {
        let set: RankSet = [9, 2, 5, 2].map(Rank).into_iter().collect();
        assert_eq!(set.as_slice(), [Rank(2), Rank(5), Rank(9)]);
        assert_eq!((set.position(Rank(5)), set.position(Rank(4))), (Some(1), None));
    }

    #[test]
    fn contiguous_ranks_start_at_zero() {
        assert_eq!(RankSet::contiguous(3).as_slice(), [Rank(0), Rank(1), Rank(2)]);
        assert!(RankSet::contiguous(0).is_empty());
    }
}
