//! Rounding to levels.

use crate::kernels::scalar::fields::FIELD_SIGN;
use crate::kernels::scalar::floats::MAGNITUDE;
use crate::rng::stream::Stream;

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

/// Adding 2²³ to a float in 0 ‥ 2²³ leaves the nearest integer, ties to even, in the low mantissa bits: the
/// rounding of the vector conversions, without a library call.
pub(in crate::kernels) const ROUND_MAGIC: f32 = 8_388_608.0;

/// Half a level in units of 2⁻¹⁶: rounding to nearest uses it as the draw.
pub(in crate::kernels) const HALF: u32 = 1 << 15;

/// Draws that are made at a time: 16 blocks of the generator.
const DRAWS: usize = 128;

#[inline(always)]
pub(in crate::kernels) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    let Some(stream) = stream else {
        for (field, &bits) in fields.iter_mut().zip(p) {
            *field = nearest(bits, bucket);
        }
        return;
    };
    let mut draws = [0u16; DRAWS];
    // The first draws may begin inside a block.
    let mut skip = (bucket.first % 8) as usize;
    let mut block = bucket.first / 8;
    let (mut p, mut fields) = (p, fields);
    while !p.is_empty() {
        stream.fill_u16_plainly(block, &mut draws);
        let len = p.len().min(DRAWS - skip);
        let (now, later) = p.split_at(len);
        let (fields_now, fields_later) = fields.split_at_mut(len);
        for ((field, &bits), &draw) in fields_now.iter_mut().zip(now).zip(&draws[skip..]) {
            *field = level_field(bits, fixed_point(bits, bucket) + u32::from(draw));
        }
        (p, fields) = (later, fields_later);
        block += (DRAWS / 8) as u64;
        skip = 0;
    }
}

/// Level from a sum in units of 2⁻¹⁶, and the sign of `bits` in bit 7.
#[inline(always)]
fn level_field(bits: u32, sum: u32) -> u8 {
    (sum >> 16) as u8 | ((bits >> 24) as u8 & FIELD_SIGN)
}

#[inline(always)]
fn nearest(bits: u32, bucket: &Bucket) -> u8 {
    let magnitude = f32::from_bits(bits & MAGNITUDE);
    let sum = fixed_point(bits, bucket) + HALF;
    // Error feedback needs an exact error: a value below half of level 1 is level 0, however its product was
    // rounded.
    let is_zero = magnitude + magnitude < bucket.scale;
    level_field(bits, if is_zero { 0 } else { sum })
}

/// min(|p|·inverse, levels) in units of 2⁻¹⁶, nearest even.
#[inline(always)]
fn fixed_point(bits: u32, bucket: &Bucket) -> u32 {
    let level = f32::from_bits(bits & MAGNITUDE) * bucket.inverse;
    let largest = bucket.levels as f32;
    let level = if level < largest { level } else { largest };
    (level * 65_536.0 + ROUND_MAGIC).to_bits() & 0x007f_ffff
}

#[inline(always)]
pub(in crate::kernels) fn keep_rounding(p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) {
    for ((residual, &bits), &field) in residual.iter_mut().zip(p).zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        let decoded = f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
        *residual = f32::from_bits(bits) - decoded;
    }
}
