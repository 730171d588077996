//! Tags of the messages of the roll.

use crate::rank::Rank;
use crate::tag::Tag;

/// Chunks of a step that belong to the roll; the exchange uses 0 and 1.
pub(super) const REPORT: u32 = 2;
pub(super) const NOTICE: u32 = 3;

/// The tag of the `asked`-th request of a session; its answer has chunk 1.
pub(super) fn request(session: u64, asked: u32) -> Tag {
    Tag { epoch: Tag::JOINING, step: session, unit: asked, chunk: 0 }
}

/// Whether a rank is in a sorted list.
pub(super) fn contains(ranks: &[Rank], rank: Rank) -> bool {
    ranks.binary_search(&rank).is_ok()
}
