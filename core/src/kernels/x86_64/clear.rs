//! Zeros that go past the caches.

use core::arch::x86_64::*;

/// [`clear`](crate::kernels::clear) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn clear(values: &mut [f32]) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { clear_avx512(values) }
}

#[target_feature(enable = "avx512f")]
fn clear_avx512(values: &mut [f32]) {
    // SAFETY: zeros are f32, and any bits of f32 are a vector.
    let (head, vectors, tail) = unsafe { values.align_to_mut::<__m512>() };
    head.fill(0.0);
    // SAFETY: a reference is aligned.
    unsafe {
        for vector in vectors {
            _mm512_stream_ps((&raw mut *vector).cast(), _mm512_setzero_ps());
        }
        _mm_sfence();
    }
    tail.fill(0.0);
}

/// [`clear`](crate::kernels::clear) for AVX2, which the caller has detected.
pub(in crate::kernels) fn clear_with_avx2(values: &mut [f32]) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { clear_avx2(values) }
}

#[target_feature(enable = "avx2")]
fn clear_avx2(values: &mut [f32]) {
    // SAFETY: zeros are f32, and any bits of f32 are a vector.
    let (head, vectors, tail) = unsafe { values.align_to_mut::<__m256>() };
    head.fill(0.0);
    // SAFETY: a reference is aligned.
    unsafe {
        for vector in vectors {
            _mm256_stream_ps((&raw mut *vector).cast(), _mm256_setzero_ps());
        }
        _mm_sfence();
    }
    tail.fill(0.0);
}
