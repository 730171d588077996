//! Loops that compilers do not vectorise, written out for x86-64.

use super::scalar::MAGNITUDE;
use super::{Candidates, Isa, scalar};
use core::arch::x86_64::*;

/// CRC-32C by instruction: three streams at a time, because the instruction has three cycles of latency.
///
/// # Panics
/// When the machine has no SSE 4.2; callers ask for an [`Isa`] above the baseline first.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    assert_ne!(Isa::best(), Isa::Baseline, "SSE 4.2 comes with every instruction set above the baseline");
    // SAFETY: every `Isa` above the baseline has SSE 4.2.
    unsafe { crc32c_sse42(crc, bytes) }
}

#[target_feature(enable = "sse4.2")]
fn crc32c_sse42(crc: u32, bytes: &[u8]) -> u32 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut state = u64::from(!crc);
    for &word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(word));
    }
    let state = tail.iter().fold(state as u32, |state, &byte| _mm_crc32_u8(state, byte));
    !state
}

/// [`super::keep_from`] for AVX-512, which the caller has detected and whose room the caller has checked.
pub(super) fn keep_from(
    grad: &[f32],
    residual: Option<&[f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: `Isa::Avx512` is named only where the machine has it; `super::keep_from` checked lengths and room.
    unsafe {
        match residual {
            None => keep_from_avx512::<false>(grad, grad, first, least, candidates),
            Some(residual) => keep_from_avx512::<true>(grad, residual, first, least, candidates),
        }
    }
}

const LANES: usize = 16;

/// # Safety
/// `residual` is as long as `grad`, and both parts of the candidates have room for all of `grad` and one vector more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
unsafe fn keep_from_avx512<const ADD: bool>(
    grad: &[f32],
    residual: &[f32],
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);
    let bound = _mm512_set1_epi32(least as i32);
    let step = _mm512_set1_epi32(LANES as i32);
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut positions = _mm512_add_epi32(lanes, _mm512_set1_epi32(first as i32));
    let mut max = _mm512_setzero_si512();
    let mut len = candidates.len;
    let whole = grad.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: at + 16 ≤ whole ≤ length of both slices.
        let sum = unsafe {
            let grad = _mm512_loadu_ps(grad.as_ptr().add(at));
            if ADD { _mm512_add_ps(_mm512_loadu_ps(residual.as_ptr().add(at)), grad) } else { grad }
        };
        let bits = _mm512_castps_si512(sum);
        let magnitudes = _mm512_and_si512(bits, magnitude);
        max = _mm512_max_epu32(max, magnitudes);
        let kept = _mm512_cmpge_epu32_mask(magnitudes, bound);
        if kept != 0 {
            // SAFETY: fewer than `grad.len()` candidates were added, so a whole vector fits behind them.
            unsafe {
                let positions = _mm512_maskz_compress_epi32(kept, positions);
                _mm512_storeu_si512(candidates.indices.as_mut_ptr().add(len).cast(), positions);
                let values = _mm512_maskz_compress_epi32(kept, bits);
                _mm512_storeu_si512(candidates.values.as_mut_ptr().add(len).cast(), values);
            }
            len += kept.count_ones() as usize;
        }
        positions = _mm512_add_epi32(positions, step);
    }
    candidates.len = len;
    let tail_residual = ADD.then(|| &residual[whole..]);
    let tail_max = scalar::keep_from(&grad[whole..], tail_residual, first + whole as u32, least, candidates);
    _mm512_reduce_max_epu32(max).max(tail_max)
}
