//! Buffers that grow, and threads: for callers who have a heap.

pub(crate) mod buffers;
pub(crate) mod packets;
#[cfg(feature = "parallel")]
pub(crate) mod parallel;
pub(crate) mod rounds;
pub(crate) mod selection;
pub(crate) mod trial;
