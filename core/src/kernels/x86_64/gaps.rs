//! The numbers of the bits of words that are one, a vector at a time.

use crate::kernels::gaps::{ONES, ones_by};
use core::arch::x86_64::*;

/// [`ones`](crate::kernels::ones) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn ones(plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { ones_avx512(plane, start, wanted, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn ones_avx512(plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ones_by(plane, start, wanted, out, |word, first, out| {
        assert!(out.len() >= 64 + 16, "room for a word and a vector");
        let mut found = 0;
        for part in 0..4 {
            let bits = (word >> (16 * part)) as u16;
            let numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(first.wrapping_add(16 * part) as i32));
            // SAFETY: at most 48 were found so far, and there is room for 64 and a vector.
            unsafe {
                let kept = _mm512_maskz_compress_epi32(bits, numbers);
                _mm512_storeu_si512(out.as_mut_ptr().add(found).cast(), kept);
            }
            found += bits.count_ones() as usize;
        }
        found
    })
}

/// [`ones`](crate::kernels::ones) for AVX2, which the caller has detected.
pub(in crate::kernels) fn ones_with_avx2(
    plane: &[u8],
    start: u64,
    wanted: usize,
    out: &mut [u32; ONES],
) -> usize {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { ones_avx2(plane, start, wanted, out) }
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn ones_avx2(plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    ones_by(plane, start, wanted, out, |word, first, out| {
        assert!(out.len() >= 64 + 16, "room for a word and a vector");
        let mut found = 0;
        for (part, bits) in word.to_le_bytes().into_iter().enumerate() {
            let first = _mm256_set1_epi32(first.wrapping_add(8 * part as u32) as i32);
            // SAFETY: at most 56 were found so far, and there is room for 64 and a vector.
            unsafe {
                let numbers = _mm256_add_epi32(super::select::lanes_of(bits), first);
                _mm256_storeu_si256(out.as_mut_ptr().add(found).cast(), numbers);
            }
            found += bits.count_ones() as usize;
        }
        found
    })
}
