//! Loops that compilers do not vectorise, written out for x86-64.

pub(super) mod blocks;
pub(super) mod cast;
pub(super) mod checksum;
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
pub(super) mod symbols;

use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Fetches the cache line of an address, which may be any.
#[inline(always)]
pub(super) fn fetch(address: *const i8) {
    // SAFETY: a prefetch reads nothing that a program can see, and does not fail, wherever it points.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
}
