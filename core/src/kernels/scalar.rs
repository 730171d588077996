//! The plain loops that define every result.

use super::Bucket;
use crate::grad::Grad;
use crate::rng::Stream;

/// Clears the sign of float bits.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;

/// Fields carry the sign in this bit.
pub(crate) const FIELD_SIGN: u8 = 0x80;

pub(super) fn fold(grad: Grad<'_>, residual: Option<&[f32]>, bound: f32, p: &mut [u32]) -> Result<(), usize> {
    match grad {
        Grad::F32(values) => fold_as(values, |&value| value, residual, bound, p),
        Grad::F16(values) => fold_as(values, |value| value.to_f32(), residual, bound, p),
        Grad::Bf16(values) => fold_as(values, |value| value.to_f32(), residual, bound, p),
    }
}

fn fold_as<T>(
    values: &[T],
    widen: impl Fn(&T) -> f32,
    residual: Option<&[f32]>,
    bound: f32,
    p: &mut [u32],
) -> Result<(), usize> {
    assert_eq!(values.len(), p.len(), "gradient and scratch differ in length");
    match residual {
        None => p.iter_mut().zip(values).for_each(|(p, value)| *p = widen(value).to_bits()),
        Some(residual) => {
            assert_eq!(residual.len(), p.len(), "gradient and residual differ in length");
            for ((p, value), residual) in p.iter_mut().zip(values).zip(residual) {
                *p = (residual + widen(value)).to_bits();
            }
        }
    }
    // Magnitude bits order like magnitudes, infinities and NaN above all: one integer maximum finds every offender.
    if max_magnitude(p) < bound.to_bits() {
        return Ok(());
    }
    Err(p.iter().position(|&bits| bits & MAGNITUDE >= bound.to_bits()).unwrap_or(0))
}

pub(super) fn max_magnitude(p: &[u32]) -> u32 {
    p.iter().fold(0, |max, &bits| max.max(bits & MAGNITUDE))
}

pub(super) fn sum_of_squares(p: &[u32]) -> f64 {
    strided_squares(p, |&bits| f32::from_bits(bits))
}

pub(crate) fn sum_of_squares_f32(values: &[f32]) -> f64 {
    strided_squares(values, |&value| value)
}

fn strided_squares<T>(values: &[T], value: impl Fn(&T) -> f32) -> f64 {
    let mut sums = [0.0f64; 8];
    for chunk in values.chunks(8) {
        for (sum, element) in sums.iter_mut().zip(chunk) {
            let value = f64::from(value(element));
            *sum += value * value;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Adding 2²³ to a float in 0 ‥ 2²³ leaves the nearest integer, ties to even, in the low mantissa bits: the rounding
/// of the vector conversions, without a library call.
const ROUND_MAGIC: f32 = 8_388_608.0;

/// Half a level in units of 2⁻¹⁶: what nearest rounding draws.
const HALF: u32 = 1 << 15;

pub(super) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    let mut draws = [0u16; 8];
    let mut block = u64::MAX;
    for (i, (field, &bits)) in fields.iter_mut().zip(p).enumerate() {
        let position = bucket.first + i as u64;
        let draw = match stream {
            None => HALF,
            Some(stream) => {
                if position / 8 != block {
                    block = position / 8;
                    draws = stream.u16x8_at(block);
                }
                u32::from(draws[(position % 8) as usize])
            }
        };
        let magnitude = f32::from_bits(bits & MAGNITUDE);
        let mut level = (fixed_point(magnitude, bucket) + draw) >> 16;
        // Nearest rounding under error feedback must leave an exact error: see `Qsgd`.
        if stream.is_none() && level == 1 && magnitude + magnitude < bucket.scale {
            level = 0;
        }
        *field = level as u8 | ((bits >> 24) as u8 & FIELD_SIGN);
    }
}

/// min(|p|·inverse, levels) in units of 2⁻¹⁶, nearest even.
fn fixed_point(magnitude: f32, bucket: &Bucket) -> u32 {
    let level = (magnitude * bucket.inverse).min(bucket.levels as f32);
    (level * 65_536.0 + ROUND_MAGIC).to_bits() & 0x007f_ffff
}
