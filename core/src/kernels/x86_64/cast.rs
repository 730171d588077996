//! Casts by instruction: the vector conversions round to nearest, ties to even, as the plain loop does.

use crate::kernels::scalar::cast as scalar;
use core::arch::x86_64::*;

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;

/// [`put_f16`](crate::kernels::put_f16) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn put_f16(p: &[u32], out: &mut [[u8; 2]]) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { put_f16_avx512(p, out) }
}

#[target_feature(enable = "avx512f")]
fn put_f16_avx512(p: &[u32], out: &mut [[u8; 2]]) {
    let ((whole, tail), (out, out_tail)) = (p.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (p, out) in whole.iter().zip(out) {
        // SAFETY: the arrays hold sixteen floats and sixteen halves.
        unsafe {
            let narrow = _mm512_cvtps_ph::<ROUND>(_mm512_loadu_ps(p.as_ptr().cast()));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), narrow);
        }
    }
    scalar::put_f16(tail, out_tail);
}

/// [`put_f16`](crate::kernels::put_f16) for AVX2 with F16C, which the caller has detected.
pub(in crate::kernels) fn put_f16_with_avx2(p: &[u32], out: &mut [[u8; 2]]) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it, and F16C with it.
    unsafe { put_f16_avx2(p, out) }
}

#[target_feature(enable = "avx2,f16c")]
fn put_f16_avx2(p: &[u32], out: &mut [[u8; 2]]) {
    let ((whole, tail), (out, out_tail)) = (p.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (p, out) in whole.iter().zip(out) {
        // SAFETY: the arrays hold eight floats and eight halves.
        unsafe {
            let narrow = _mm256_cvtps_ph::<ROUND>(_mm256_loadu_ps(p.as_ptr().cast()));
            _mm_storeu_si128(out.as_mut_ptr().cast(), narrow);
        }
    }
    scalar::put_f16(tail, out_tail);
}

/// [`add_f16`](crate::kernels::add_f16) for an instruction set above the baseline, which the caller has
/// detected.
pub(in crate::kernels) fn add_f16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    // SAFETY: `Isa` names an instruction set only where the machine has it, and every one above the baseline
    // has AVX2 and F16C.
    unsafe { add_f16_avx2(values, weight, acc) }
}

#[target_feature(enable = "avx2,f16c")]
fn add_f16_avx2(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    let ((whole, tail), (acc, acc_tail)) = (values.as_chunks::<8>(), acc.as_chunks_mut::<8>());
    for (values, acc) in whole.iter().zip(acc) {
        // SAFETY: the arrays hold eight halves and eight floats.
        unsafe {
            let wide = _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast()));
            let sum =
                _mm256_add_ps(_mm256_loadu_ps(acc.as_ptr()), _mm256_mul_ps(wide, _mm256_set1_ps(weight)));
            _mm256_storeu_ps(acc.as_mut_ptr(), sum);
        }
    }
    scalar::add_f16(tail, weight, acc_tail);
}
