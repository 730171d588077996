//! The wire format, version 1. FORMAT.md is the authority; names here are the names there.
//!
//! Bytes are parsed once, completely, and are trusted afterwards: [`Frame::parse`](crate::Frame::parse) checks all
//! that can be wrong, and what it returns cannot fail.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

pub(crate) mod checksum;
pub(crate) mod frame;
pub(crate) mod header;
#[allow(
    clippy::indexing_slicing,
    reason = "the encoding side: the buffer was checked against the codec's bound"
)]
pub(crate) mod message;
pub(crate) mod reader;
pub(crate) mod unit_header;
#[allow(
    clippy::indexing_slicing,
    reason = "the encoding side: the buffer was checked against the codec's bound"
)]
pub(crate) mod writer;
