//! Collectives made of `send` and `recv`: the same result on every transport, bit for bit.
//!
//! Every member calls the same collectives with the same tag. They work on the membership at their start and
//! refuse a tag of another epoch. Two calls of one collective in the same step and unit need different chunks
//! below [`Tag::COLLECTIVE_CHUNKS`](crate::Tag::COLLECTIVE_CHUNKS).
//!
//! Positions are the places of ranks in the sorted membership, 0 … N−1. A collective sends at most one
//! message at a time over each link, so the room in an inbox that [`Transport`](crate::Transport) promises is
//! enough.

mod agree;
mod gather;
mod group;
mod owners;
mod path;
mod reduce;
mod ring;
mod star;
mod tree;

pub use agree::{Fold, Scalar, agree};
pub use gather::{Gathered, all_gather, gather};
pub use group::Endpoint;
pub(crate) use owners::{Owners, Turn};
pub(crate) use path::{Hop, Path};
pub use reduce::{Reduce, Wire, max_f32, segment};
pub use ring::{Buffers, all_reduce, reduce_scatter};
pub(crate) use star::Star;
pub use tree::{barrier, broadcast, tree_all_reduce};
