//! The loops that touch every element, behind one dispatch point. This file only chooses; [`scalar`] defines every
//! result, and any other kernel has to match it bit for bit.

pub(crate) mod scalar;

use crate::grad::Grad;
use crate::rng::Stream;

/// CRC-32C of `bytes`, continuing `crc`.
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    crate::wire::checksum::crc32c_scalar(crc, bytes)
}

/// Writes the bits of p = residual + gradient (or of the gradient alone) to `p`.
///
/// # Errors
/// The first element whose magnitude is not below `bound` (an infinite bound finds NaN and infinities).
///
/// # Panics
/// When the lengths differ.
pub(crate) fn fold(grad: Grad<'_>, residual: Option<&[f32]>, bound: f32, p: &mut [u32]) -> Result<(), usize> {
    scalar::fold(grad, residual, bound, p)
}

/// What [`quantize`] needs to know of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Position of the first element in the unit: draw `first + i` belongs to element `i`.
    pub(crate) first: u64,
    /// Levels per unit of magnitude: levels / norm.
    pub(crate) inverse: f32,
    /// Norm / levels: the value of level 1.
    pub(crate) scale: f32,
    /// Largest level.
    pub(crate) levels: u32,
}

/// Rounds the values whose bits are `p` to levels, one byte each: the level, and the sign in bit 7.
///
/// With a stream, stochastic: level ⌊a + u⌋ for a = min(|p|·inverse, levels) and u a 16-bit draw, both as multiples
/// of 2⁻¹⁶ (a rounded to nearest, so the bias of one element is at most 2⁻¹⁷ levels). Without, nearest, halves up.
pub(crate) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    scalar::quantize(p, bucket, stream, fields);
}

/// Sum of squares in f64: eight strided partial sums, then halves added to halves (0+4, 1+5, …; 0+2, 1+3; 0+1).
pub(crate) fn sum_of_squares(p: &[u32]) -> f64 {
    scalar::sum_of_squares(p)
}

/// The largest magnitude bits; 0 for no elements.
pub(crate) fn max_magnitude(p: &[u32]) -> u32 {
    scalar::max_magnitude(p)
}
