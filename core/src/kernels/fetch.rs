//! Prefetching.

/// How many entries in advance a position is worth [`fetch`]ing: enough to hide the latency of memory, and
/// fewer than the first cache level holds lines.
pub(crate) const FETCH_AHEAD: usize = 96;

/// Tells the processor that the element `index` will soon be used. It is a hint: it changes only the time,
/// and does nothing for an index past the end.
#[inline(always)]
pub(crate) fn fetch<T>(values: &[T], index: usize) {
    fetch_line(values.as_ptr().wrapping_add(index).cast());
}

/// Fetches the cache line of an address, which may be any.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "a prefetch, which every such machine has")]
#[inline(always)]
fn fetch_line(address: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing that a program can see, and does not fail, wherever it points.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
}

/// Fetches the cache line of an address, which may be any.
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "a prefetch, which every such machine has")]
#[inline(always)]
fn fetch_line(address: *const i8) {
    use core::arch::asm;
    // SAFETY: a prefetch reads nothing that a program can see, and does not fail, wherever it points.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn fetch_line(_: *const i8) {}
