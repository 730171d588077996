//! Signs times the mean magnitude.

use super::decode::{Bytes, Checked, ensure, finite};

/// The scale of a unit: its magnitudes added up in f64 by position mod 8, the eight sums halves to halves,
/// divided by their number.
#[must_use]
pub fn scale(p: &[f32]) -> f32 {
    let mut sums: Vec<f64> =
        (0..8).map(|lane| p.iter().skip(lane).step_by(8).map(|p| f64::from(p.abs())).sum()).collect();
    while sums.len() > 1 {
        let half = sums.split_off(sums.len() / 2);
        sums.iter_mut().zip(half).for_each(|(sum, other)| *sum += other);
    }
    if p.is_empty() { 0.0 } else { (sums[0] / p.len() as f64) as f32 }
}

/// A body with that scale.
#[must_use]
pub fn signs(scale: f32, p: &[f32]) -> Vec<u8> {
    let mut bytes = scale.to_le_bytes().to_vec();
    let mut signs = vec![0u8; p.len().div_ceil(8)];
    p.iter().enumerate().filter(|(_, p)| **p < 0.0).for_each(|(i, _)| signs[i / 8] |= 1 << (i % 8));
    if scale != 0.0 {
        bytes.extend(signs);
    }
    bytes
}

/// The body of a unit, and what it decodes to.
#[must_use]
pub fn body(p: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let scale = scale(p);
    (signs(scale, p), p.iter().map(|&p| if p < 0.0 { -scale } else { scale }).collect())
}

/// The values of a unit of `len` coordinates.
///
/// # Errors
/// What is wrong with the body.
pub fn read(bytes: &mut Bytes<'_>, len: usize) -> Checked<Vec<f32>> {
    let scale = finite(f32::from_bits(bytes.u32()?))?;
    ensure(scale.is_sign_positive(), "a negative scale")?;
    if scale == 0.0 {
        return Ok(vec![0.0; len]);
    }
    let signs = bytes.take(len.div_ceil(8))?;
    let is_negative = |i: usize| signs[i / 8] & 1 << (i % 8) != 0;
    ensure((len..8 * signs.len()).all(|i| !is_negative(i)), "padding")?;
    Ok((0..len).map(|i| if is_negative(i) { -scale } else { scale }).collect())
}
