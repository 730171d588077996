//! Values as bytes: f32, half precision and bfloat16.

#[cfg(target_arch = "aarch64")]
use crate::kernels::aarch64::cast as aarch64;
use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::cast as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::cast as x86_64;

compile_for_each_isa! {
    /// The largest magnitude bits of little-endian f32; 0 for no elements.
    pub(crate) fn max_magnitude_bytes(isa, values: &[[u8; 4]]) -> u32 = scalar::max_magnitude_bytes;
}

compile_for_each_isa! {
    /// The largest magnitude bits of little-endian half-precision or bfloat16 values; 0 for no elements.
    pub(crate) fn max_magnitude_narrow(isa, values: &[[u8; 2]]) -> u16 = scalar::max_magnitude_narrow;
}

compile_for_each_isa! {
    /// acc[i] += weight · value[i] for little-endian f32.
    pub(crate) fn add_f32(isa, values: &[[u8; 4]], weight: f32, acc: &mut [f32]) = scalar::add_f32;
}

compile_for_each_isa! {
    /// acc[i] += weight · value[i] for little-endian bfloat16.
    pub(crate) fn add_bf16(isa, values: &[[u8; 2]], weight: f32, acc: &mut [f32]) = scalar::add_bf16;
}

/// acc[i] += weight · value[i] for little-endian half precision.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn add_f16(isa: Isa, values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    assert_eq!(values.len(), acc.len(), "values and accumulator differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::add_f16(values, weight, acc),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::add_f16(values, weight, acc),
        Isa::Baseline => scalar::add_f16(values, weight, acc),
    }
}

compile_for_each_isa! {
    /// Writes bits as little-endian f32.
    pub(crate) fn put_f32(isa, p: &[u32], out: &mut [[u8; 4]]) = scalar::put_f32;
}

compile_for_each_isa! {
    /// Writes bits rounded to bfloat16, nearest even. Infinities and NaN do not occur.
    pub(crate) fn put_bf16(isa, p: &[u32], out: &mut [[u8; 2]]) = scalar::put_bf16;
}

/// Writes bits rounded to half precision, nearest even. A NaN becomes quiet and keeps the upper bits of its
/// payload.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn put_f16(isa: Isa, p: &[u32], out: &mut [[u8; 2]]) {
    assert_eq!(p.len(), out.len(), "values and their casts differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::put_f16(p, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::put_f16_with_avx2(p, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::put_f16(p, out),
        Isa::Baseline => scalar::put_f16(p, out),
    }
}
