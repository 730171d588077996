//! The entries of a sparse unit before their values are written.

/// The entries of a unit on their way to the wire. All slices have one element an entry.
#[derive(Debug)]
pub(crate) struct Entries<'a> {
    /// Positions in the unit, ascending.
    pub(crate) indices: &'a mut [u32],
    /// Bits of the values.
    pub(crate) values: &'a mut [u32],
    /// Bits of what each value decodes to.
    pub(crate) decoded: &'a mut [u32],
    /// One symbol an entry; empty for values in a fixed format that may not be in planes.
    pub(crate) symbols: &'a mut [u8],
    /// At least [`ValueChoice::fit_words`](super::ValueChoice::fit_words) elements; free once the values are
    /// [prepared](super::ValueChoice::prepare).
    pub(crate) fit: &'a mut [u32],
}

/// Whether `p − d` is exactly a float, so that adding `d` back to it restores `p` bit for bit.
///
/// # Source
/// The error term of Knuth's TwoSum (The Art of Computer Programming, volume 2, section 4.2.2, theorem B).
pub(crate) fn difference_is_exact(p: f32, d: f32) -> bool {
    let difference = p - d;
    let d_seen = p - difference;
    let p_seen = difference + d_seen;
    (p - p_seen) + (d_seen - d) == 0.0
}
