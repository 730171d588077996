//! One function for every kernel: it checks what all instruction sets rely on, and calls the loop for the
//! requested instruction set.

pub(super) mod blocks;
pub(super) mod cast;
pub(super) mod checksum;
pub(super) mod clear;
pub(super) mod factors;
pub(super) mod fields;
pub(super) mod gaps;
pub(super) mod moments;
pub(super) mod momentum;
pub(super) mod quantize;
pub(super) mod rans;
pub(super) mod rice;
pub(super) mod select;
pub(super) mod signs;
pub(crate) mod sketch;
pub(super) mod sums;
pub(super) mod symbols;
