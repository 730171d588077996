//! Views of the same memory as another type.

/// Views words as twice as many halves, in place, in the byte order of the machine.
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

/// The bits of floats, in place, to be written.
#[allow(unsafe_code, reason = "a view of the same memory as another type of the same size")]
pub(crate) fn bits_of_mut(values: &mut [f32]) -> &mut [u32] {
    // SAFETY: f32 and u32 have the same size and alignment, every pattern is valid for both, and the borrow
    // is the same.
    unsafe { core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// The floats of bits, in place.
#[allow(unsafe_code, reason = "a view of the same memory as another type of the same size")]
pub(crate) fn floats_of(bits: &[u32]) -> &[f32] {
    // SAFETY: u32 and f32 have the same size and alignment, every pattern is valid for both, and the borrow
    // is the same.
    unsafe { core::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
}

/// The bytes of words, in the machine's order: four times as many.
///
/// Use it to lend the words of a [`LinearScratch`](crate::rounds::LinearScratch) as a
/// [`Payload::Bytes`](crate::rounds::Payload::Bytes).
///
/// # Examples
/// ```
/// use gradwire::rounds::bytes_of;
/// let mut words = [0, 0];
/// bytes_of(&mut words)[..5].copy_from_slice(b"votes");
/// assert_eq!(bytes_of(&mut words), b"votes\0\0\0");
/// ```
#[allow(unsafe_code, reason = "a view of the same memory as another type of a smaller size")]
pub fn bytes_of(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: a u32 is four u8 without padding, u8 has no alignment, every pattern is valid for both, and the
    // borrow is the same.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 4 * words.len()) }
}
