//! Loops that compilers do not vectorise, written out for x86-64.

pub(super) mod blocks;
pub(super) mod cast;
pub(super) mod checksum;
pub(super) mod clear;
pub(super) mod fields;
pub(super) mod gaps;
#[cfg(target_feature = "sse2")]
pub(crate) mod mixing;
mod philox;
pub(super) mod quantize;
pub(super) mod rans;
pub(super) mod rice;
pub(super) mod select;
#[cfg(target_feature = "sse2")]
pub(crate) mod shares;
pub(super) mod sketch;
pub(super) mod symbols;
