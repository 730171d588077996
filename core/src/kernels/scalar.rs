//! The plain loops that define every result. Inlined into one function for each instruction set; see
//! [`compile_for_each_isa`](super::isa).

use super::{Bucket, Candidates};
use crate::rng::Stream;
use half::f16;

/// Clears the sign of float bits.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;

/// Fields carry the sign in this bit.
pub(crate) const FIELD_SIGN: u8 = 0x80;

#[inline(always)]
pub(super) fn add_to(residual: &[f32], grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for ((p, residual), grad) in p.iter_mut().zip(residual).zip(grad) {
        *p = (residual + grad).to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(super) fn copy_to(grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for (p, grad) in p.iter_mut().zip(grad) {
        *p = grad.to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

pub(super) fn keep_from(
    grad: &[f32],
    mut residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let mut max = 0;
    for (i, &grad) in grad.iter().enumerate() {
        let mut p = grad;
        if let Some(residual) = &mut residual {
            residual[i] += grad;
            p = residual[i];
        }
        let bits = p.to_bits();
        max = max.max(bits & MAGNITUDE);
        if bits & MAGNITUDE >= least {
            candidates.indices[candidates.len] = first + i as u32;
            candidates.values[candidates.len] = bits;
            candidates.len += 1;
        }
    }
    max
}

#[inline(always)]
pub(super) fn max_magnitude(p: &[u32]) -> u32 {
    p.iter().fold(0, |max, &bits| max.max(bits & MAGNITUDE))
}

#[inline(always)]
pub(super) fn max_magnitude_bytes(values: &[[u8; 4]]) -> u32 {
    values.iter().fold(0, |max, &bytes| max.max(u32::from_le_bytes(bytes) & MAGNITUDE))
}

#[inline(always)]
pub(super) fn max_magnitude_narrow(values: &[[u8; 2]]) -> u16 {
    values.iter().fold(0, |max, &bytes| max.max(u16::from_le_bytes(bytes) & (MAGNITUDE >> 16) as u16))
}

#[inline(always)]
pub(super) fn add_f32(values: &[[u8; 4]], weight: f32, acc: &mut [f32]) {
    acc.iter_mut().zip(values).for_each(|(acc, &bytes)| *acc += weight * f32::from_le_bytes(bytes));
}

#[inline(always)]
pub(super) fn add_bf16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

#[inline(always)]
pub(super) fn add_f16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * widen_f16(u16::from_le_bytes(bytes));
    }
}

/// A finite half-precision value as f32, without branches: the mantissa and exponent bits are read as a float 2¹¹²
/// times too small, which subnormals survive as well as normals.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[inline(always)]
pub(super) fn put_f32(p: &[u32], out: &mut [[u8; 4]]) {
    out.iter_mut().zip(p).for_each(|(out, bits)| *out = bits.to_le_bytes());
}

#[inline(always)]
pub(super) fn put_bf16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        // Half of the last place, less one where the kept part is even: ties go to even.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        *out = ((rounded >> 16) as u16).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn put_f16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        *out = f16::from_f32_const(f32::from_bits(bits)).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn sum_of_squares(p: &[u32]) -> f64 {
    strided_squares(p, |&bits| f32::from_bits(bits))
}

#[inline(always)]
pub(super) fn sum_of_squares_f32(values: &[f32]) -> f64 {
    strided_squares(values, |&value| value)
}

#[inline(always)]
fn strided_squares<T>(values: &[T], value: impl Fn(&T) -> f32) -> f64 {
    let mut sums = [0.0f64; 8];
    let (chunks, tail) = values.as_chunks::<8>();
    for chunk in chunks {
        for (sum, element) in sums.iter_mut().zip(chunk) {
            let value = f64::from(value(element));
            *sum += value * value;
        }
    }
    for (sum, element) in sums.iter_mut().zip(tail) {
        let value = f64::from(value(element));
        *sum += value * value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Adding 2²³ to a float in 0 ‥ 2²³ leaves the nearest integer, ties to even, in the low mantissa bits: the rounding
/// of the vector conversions, without a library call.
pub(super) const ROUND_MAGIC: f32 = 8_388_608.0;

/// Half a level in units of 2⁻¹⁶: what nearest rounding draws.
const HALF: u32 = 1 << 15;

/// Draws that are made at a time: 16 blocks of the generator.
const DRAWS: usize = 128;

#[inline(always)]
pub(super) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
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
        stream.fill_u16(block, &mut draws);
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
    // Error feedback needs an exact error: a value below half of level 1 is level 0, however its product was rounded.
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
pub(super) fn keep_rounding(p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) {
    for ((residual, &bits), &field) in residual.iter_mut().zip(p).zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        let decoded = f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
        *residual = f32::from_bits(bits) - decoded;
    }
}

#[inline(always)]
pub(super) fn pack_nibbles(fields: &[[u8; 2]], out: &mut [u8]) {
    let nibble = |field: u8| field & 7 | field >> 4 & 8;
    out.iter_mut().zip(fields).for_each(|(out, &[low, high])| *out = nibble(low) | nibble(high) << 4);
}

#[inline(always)]
pub(super) fn add_nibbles(packed: &[u8], scale: f32, weight: f32, acc: &mut [[f32; 2]]) {
    let value = |nibble: u32| {
        let magnitude = scale * (nibble & 7) as f32;
        f32::from_bits(magnitude.to_bits() | (nibble & 8) << 28)
    };
    for (acc, &byte) in acc.iter_mut().zip(packed) {
        acc[0] += weight * value(u32::from(byte));
        acc[1] += weight * value(u32::from(byte) >> 4);
    }
}

/// Cost(r) = Σ (gap >> r) + len·(r + 1) is convex in r: Cost(r + 1) − Cost(r) = len − Σ ⌈(gap >> r) / 2⌉, which does not
/// fall with r. The best r is therefore the first at which it is not negative, found by walking from a guess.
#[inline(always)]
pub(super) fn rice_parameter(gaps: &[u32]) -> (u32, u64) {
    let high_parts = |r: u32| gaps.iter().map(|&gap| u64::from(gap >> r)).sum::<u64>();
    let halved = |r: u32| gaps.iter().map(|&gap| u64::from((gap >> r >> 1) + (gap >> r & 1))).sum::<u64>();
    let cheaper_above = |r: u32| halved(r) > gaps.len() as u64;
    let mean = high_parts(0) / gaps.len().max(1) as u64;
    let mut r = (64 - mean.leading_zeros()).saturating_sub(1).min(31);
    while r < 31 && cheaper_above(r) {
        r += 1;
    }
    while r > 0 && !cheaper_above(r - 1) {
        r -= 1;
    }
    (r, high_parts(r) + gaps.len() as u64)
}

#[inline(always)]
pub(super) fn add_bytes(fields: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    for (acc, &field) in acc.iter_mut().zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        *acc += weight * f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
    }
}
