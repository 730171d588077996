//! The only cursors over bytes.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

pub(crate) mod checksum;
pub(crate) mod ids;
pub(crate) mod reader;
pub(crate) mod unit_header;
#[allow(
    clippy::indexing_slicing,
    reason = "the encoding side: the buffer was checked against the codec's bound"
)]
pub(crate) mod writer;
