//! Values as bytes: f32, half precision and bfloat16.

use crate::kernels::scalar::floats::{INFINITY, MAGNITUDE};

#[inline(always)]
pub(in crate::kernels) fn max_magnitude_bytes(values: &[[u8; 4]]) -> u32 {
    values.iter().fold(0, |max, &bytes| max.max(u32::from_le_bytes(bytes) & MAGNITUDE))
}

#[inline(always)]
pub(in crate::kernels) fn max_magnitude_narrow(values: &[[u8; 2]]) -> u16 {
    values.iter().fold(0, |max, &bytes| max.max(u16::from_le_bytes(bytes) & (MAGNITUDE >> 16) as u16))
}

#[inline(always)]
pub(in crate::kernels) fn add_f32(values: &[[u8; 4]], weight: f32, acc: &mut [f32]) {
    acc.iter_mut().zip(values).for_each(|(acc, &bytes)| *acc += weight * f32::from_le_bytes(bytes));
}

#[inline(always)]
pub(in crate::kernels) fn add_bf16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

#[inline(always)]
pub(in crate::kernels) fn add_f16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * widen_f16(u16::from_le_bytes(bytes));
    }
}

/// A half-precision value as f32, without branches: the mantissa and exponent bits are read as a float 2¹¹²
/// times too small, which is right for subnormals and normals alike. Infinities and NaN get their exponent
/// afterwards.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let exponent = if bits & 0x7c00 == 0x7c00 { INFINITY } else { 0 };
    f32::from_bits(magnitude.to_bits() | exponent | u32::from(bits & 0x8000) << 16)
}

#[inline(always)]
pub(in crate::kernels) fn put_f32(p: &[u32], out: &mut [[u8; 4]]) {
    out.iter_mut().zip(p).for_each(|(out, bits)| *out = bits.to_le_bytes());
}

#[inline(always)]
pub(in crate::kernels) fn put_bf16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        // Half of the last place, less one where the kept part is even: ties go to even.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        *out = ((rounded >> 16) as u16).to_le_bytes();
    }
}

#[inline(always)]
pub(in crate::kernels) fn put_f16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        *out = narrow_f16(bits).to_le_bytes();
    }
}

/// Bits of a value as half precision, without branches. Normal results round as [`put_bf16`] does; those that
/// are too large become infinity. Adding ½ rounds the others, because the last place of the sum is the
/// smallest half-precision value.
#[inline(always)]
fn narrow_f16(bits: u32) -> u16 {
    let magnitude = bits & MAGNITUDE;
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    let normal = (rounded.wrapping_sub(112 << 23) >> 13).min(0x7c00);
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let half = if magnitude < 113 << 23 { subnormal } else { normal };
    let half = if magnitude > INFINITY { 0x7e00 | magnitude >> 13 & 0x3ff } else { half };
    half as u16 | (bits >> 16) as u16 & 0x8000
}
