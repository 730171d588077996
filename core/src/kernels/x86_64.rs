//! Loops that compilers do not vectorise, written out for x86-64.

pub(super) mod cast;
pub(super) mod checksum;
pub(super) mod fields;
pub(super) mod gaps;
pub(super) mod quantize;
pub(super) mod rans;
pub(super) mod select;
pub(super) mod symbols;
