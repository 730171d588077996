//! Loops that compilers do not vectorise, or vectorise badly, written out for AArch64. They use NEON, which
//! every such machine has, and the CRC instructions.

pub(super) mod cast;
pub(super) mod checksum;
#[cfg(target_feature = "neon")]
pub(crate) mod mixing;
pub(super) mod quantize;
pub(super) mod select;
#[cfg(target_feature = "neon")]
pub(crate) mod shares;
pub(super) mod symbols;
