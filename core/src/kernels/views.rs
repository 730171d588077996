//! Views of the same memory as another type.

/// Words as twice as many halves, in place, in the byte order of the machine.
#[allow(unsafe_code, reason = "a view of the same memory as another type of half the size")]
pub(crate) fn halves_of<const N: usize>(words: &mut [[u32; 8]; N]) -> &mut [[u16; 16]; N] {
    // SAFETY: both have the same size, words are aligned for halves, every pattern is valid for both, and the
    // borrow is the same.
    unsafe { &mut *core::ptr::from_mut(words).cast() }
}

/// The bits of floats, in place.
#[allow(unsafe_code, reason = "a view of the same memory as another type of the same size")]
pub(crate) fn bits_of(values: &[f32]) -> &[u32] {
    // SAFETY: f32 and u32 have the same size and alignment, every pattern is valid for both, and the borrow
    // is the same.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// The floats of bits, in place.
#[allow(unsafe_code, reason = "a view of the same memory as another type of the same size")]
pub(crate) fn floats_of(bits: &[u32]) -> &[f32] {
    // SAFETY: u32 and f32 have the same size and alignment, every pattern is valid for both, and the borrow
    // is the same.
    unsafe { core::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
}
