//! Loops that compilers do not vectorise, or not well, written out for AArch64: NEON, which every such machine has, and the
//! CRC instructions.

pub(super) mod cast;
pub(super) mod checksum;
#[cfg(target_feature = "neon")]
pub(crate) mod mixing;
pub(super) mod quantize;
pub(super) mod select;
#[cfg(target_feature = "neon")]
pub(crate) mod shares;
pub(super) mod symbols;

use core::arch::asm;

/// Fetches the cache line of an address, which may be any.
#[inline(always)]
pub(super) fn fetch(address: *const i8) {
    // SAFETY: a prefetch reads nothing that a program can see, and does not fail, wherever it points.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) }
}
