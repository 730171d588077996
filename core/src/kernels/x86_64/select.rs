//! Selection without a branch on every element: each step keeps elements of a whole vector.

use crate::kernels::scalar::floats::MAGNITUDE;
use crate::kernels::scalar::select as scalar;
use crate::kernels::scalar::select::{Candidates, Sums};
use core::arch::x86_64::*;

/// [`keep_from`](crate::kernels::keep_from) for AVX-512, which the caller has detected and whose room the
/// caller has checked.
pub(in crate::kernels) fn keep_from(
    grad: &[f32],
    sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: `Isa::Avx512` is named only where the machine has it; the caller checked lengths and room.
    unsafe {
        match sums {
            Sums::None => keep_from_avx512::<GRADIENT>(grad, sums, first, least, candidates),
            Sums::Beside { non_temporal: true, ref p, .. } if is_aligned::<__m512>(p) => {
                keep_from_avx512::<NON_TEMPORAL>(grad, sums, first, least, candidates)
            }
            _ => keep_from_avx512::<SUMS>(grad, sums, first, least, candidates),
        }
    }
}

const LANES: usize = 16;

/// p is the gradient; p is the sum with the residual, which may be where p goes; the same, past the caches.
const GRADIENT: u8 = 0;
const SUMS: u8 = 1;
const NON_TEMPORAL: u8 = 2;

/// Where the residual is, and where p goes.
fn places(sums: &mut Sums<'_>) -> (*const f32, *mut f32) {
    match sums {
        Sums::None => (core::ptr::null(), core::ptr::null_mut()),
        Sums::InPlace(residual) => {
            let p = residual.as_mut_ptr();
            (p.cast_const(), p)
        }
        Sums::Beside { residual, p, .. } => (residual.as_ptr(), p.as_mut_ptr()),
    }
}

fn is_aligned<V>(values: &[f32]) -> bool {
    values.as_ptr().cast::<V>().is_aligned()
}

/// Vectors that are compared before the kept elements of any are appended. Finding a vector that holds one is
/// then a search for a bit; a branch for each vector would be mispredicted.
const VECTORS: usize = 64;

/// # Safety
/// `sums` fit `grad`, and there are none only with `GRADIENT`. With `NON_TEMPORAL`, p is aligned for vectors.
/// Both parts of the candidates have room for all of `grad` and one vector more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
unsafe fn keep_from_avx512<const WAY: u8>(
    grad: &[f32],
    mut sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);
    let bound = _mm512_set1_epi32(least as i32);
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut max = _mm512_setzero_si512();
    let mut len = candidates.len;
    let whole = grad.len() / LANES * LANES;
    let (residual, p) = places(&mut sums);
    let gradient_at = |at: usize| {
        // SAFETY: at + 16 ≤ whole ≤ length of `grad`.
        unsafe { _mm512_loadu_ps(grad.as_ptr().add(at)) }
    };
    let sum_at = |at: usize| {
        // SAFETY: at + 16 ≤ whole ≤ length of `grad`, and so of the residual.
        _mm512_add_ps(unsafe { _mm512_loadu_ps(residual.add(at)) }, gradient_at(at))
    };
    for turn in (0..whole).step_by(VECTORS * LANES) {
        let end = whole.min(turn + VECTORS * LANES);
        let mut kept = [0u16; VECTORS];
        for (kept, at) in kept.iter_mut().zip((turn..end).step_by(LANES)) {
            let values = if WAY == GRADIENT { gradient_at(at) } else { sum_at(at) };
            // SAFETY: at + 16 ≤ whole ≤ length of `grad`, and so of p; what bypasses the caches is aligned.
            unsafe {
                match WAY {
                    SUMS => _mm512_storeu_ps(p.add(at), values),
                    NON_TEMPORAL => _mm512_stream_ps(p.add(at), values),
                    _ => (),
                }
            }
            let magnitudes = _mm512_and_si512(_mm512_castps_si512(values), magnitude);
            max = _mm512_max_epu32(max, magnitudes);
            *kept = _mm512_cmpge_epu32_mask(magnitudes, bound);
        }
        // SAFETY: the array holds two vectors of 32.
        let (low, high) = unsafe {
            let kept = kept.as_ptr().cast::<__m512i>();
            (_mm512_loadu_si512(kept), _mm512_loadu_si512(kept.add(1)))
        };
        let holds = |kept| u64::from(_mm512_test_epi16_mask(kept, kept));
        let mut holding = holds(low) | holds(high) << 32;
        while holding != 0 {
            let vector = holding.trailing_zeros() as usize;
            holding &= holding - 1;
            let (kept, at) = (kept[vector], turn + vector * LANES);
            let values = match WAY {
                GRADIENT => gradient_at(at),
                // SAFETY: at + 16 ≤ whole ≤ length of p, where the sum was written.
                SUMS => unsafe { _mm512_loadu_ps(p.add(at)) },
                // What bypassed the caches is not in them, and what it was made of is.
                _ => sum_at(at),
            };
            let bits = _mm512_castps_si512(values);
            // SAFETY: fewer than `grad.len()` candidates were added, so a whole vector fits behind them.
            unsafe {
                let positions = _mm512_add_epi32(lanes, _mm512_set1_epi32((first + at as u32) as i32));
                let positions = _mm512_maskz_compress_epi32(kept, positions);
                _mm512_storeu_si512(candidates.indices.as_mut_ptr().add(len).cast(), positions);
                let values = _mm512_maskz_compress_epi32(kept, bits);
                _mm512_storeu_si512(candidates.values.as_mut_ptr().add(len).cast(), values);
            }
            len += kept.count_ones() as usize;
        }
    }
    if WAY == NON_TEMPORAL {
        _mm_sfence();
    }
    candidates.len = len;
    let tail_max =
        scalar::keep_from(&grad[whole..], sums.from(whole), first + whole as u32, least, candidates);
    _mm512_reduce_max_epu32(max).max(tail_max)
}

/// [`keep_from`](crate::kernels::keep_from) for AVX2, which the caller has detected and whose room the caller
/// has checked.
pub(in crate::kernels) fn keep_from_with_avx2(
    grad: &[f32],
    sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: `Isa::Avx2` is named only where the machine has it; the caller checked lengths and room.
    unsafe {
        match sums {
            Sums::None => keep_from_avx2::<GRADIENT>(grad, sums, first, least, candidates),
            Sums::Beside { non_temporal: true, ref p, .. } if is_aligned::<__m256>(p) => {
                keep_from_avx2::<NON_TEMPORAL>(grad, sums, first, least, candidates)
            }
            _ => keep_from_avx2::<SUMS>(grad, sums, first, least, candidates),
        }
    }
}

const AVX2_LANES: usize = 8;

/// # Safety
/// As [`keep_from_avx512`].
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
unsafe fn keep_from_avx2<const WAY: u8>(
    grad: &[f32],
    mut sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let magnitude = _mm256_set1_epi32(MAGNITUDE as i32);
    let bound = _mm256_set1_epi32(least as i32);
    let mut max = _mm256_setzero_si256();
    let mut len = candidates.len;
    let whole = grad.len() / AVX2_LANES * AVX2_LANES;
    let (residual, p) = places(&mut sums);
    let gradient_at = |at: usize| {
        // SAFETY: at + 8 ≤ whole ≤ length of `grad`.
        unsafe { _mm256_loadu_ps(grad.as_ptr().add(at)) }
    };
    let sum_at = |at: usize| {
        // SAFETY: at + 8 ≤ whole ≤ length of `grad`, and so of the residual.
        _mm256_add_ps(unsafe { _mm256_loadu_ps(residual.add(at)) }, gradient_at(at))
    };
    for turn in (0..whole).step_by(VECTORS * AVX2_LANES) {
        let end = whole.min(turn + VECTORS * AVX2_LANES);
        let mut kept = [0u8; VECTORS];
        for (kept, at) in kept.iter_mut().zip((turn..end).step_by(AVX2_LANES)) {
            let values = if WAY == GRADIENT { gradient_at(at) } else { sum_at(at) };
            // SAFETY: at + 8 ≤ whole ≤ length of `grad`, and so of p; what bypasses the caches is aligned.
            unsafe {
                match WAY {
                    SUMS => _mm256_storeu_ps(p.add(at), values),
                    NON_TEMPORAL => _mm256_stream_ps(p.add(at), values),
                    _ => (),
                }
            }
            let magnitudes = _mm256_and_si256(_mm256_castps_si256(values), magnitude);
            max = _mm256_max_epu32(max, magnitudes);
            *kept = reaching(magnitudes, bound);
        }
        // SAFETY: the array holds two vectors of 32.
        let (low, high) = unsafe {
            let kept = kept.as_ptr().cast::<__m256i>();
            (_mm256_loadu_si256(kept), _mm256_loadu_si256(kept.add(1)))
        };
        let lacks = |kept| _mm256_movemask_epi8(_mm256_cmpeq_epi8(kept, _mm256_setzero_si256())) as u32;
        let mut holding = !(u64::from(lacks(low)) | u64::from(lacks(high)) << 32);
        while holding != 0 {
            let vector = holding.trailing_zeros() as usize;
            holding &= holding - 1;
            let (kept, at) = (kept[vector], turn + vector * AVX2_LANES);
            let values = match WAY {
                GRADIENT => gradient_at(at),
                // SAFETY: at + 8 ≤ whole ≤ length of p, where the sum was written.
                SUMS => unsafe { _mm256_loadu_ps(p.add(at)) },
                // What bypassed the caches is not in them, and what it was made of is.
                _ => sum_at(at),
            };
            let lanes = lanes_of(kept);
            let positions = _mm256_add_epi32(lanes, _mm256_set1_epi32((first + at as u32) as i32));
            // SAFETY: fewer than `grad.len()` candidates were added, so a whole vector fits behind them.
            unsafe {
                _mm256_storeu_si256(candidates.indices.as_mut_ptr().add(len).cast(), positions);
                let values = _mm256_permutevar8x32_epi32(_mm256_castps_si256(values), lanes);
                _mm256_storeu_si256(candidates.values.as_mut_ptr().add(len).cast(), values);
            }
            len += kept.count_ones() as usize;
        }
    }
    if WAY == NON_TEMPORAL {
        _mm_sfence();
    }
    candidates.len = len;
    let mut lanes = [0u32; AVX2_LANES];
    // SAFETY: the array holds eight words.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), max) };
    let tail_max =
        scalar::keep_from(&grad[whole..], sums.from(whole), first + whole as u32, least, candidates);
    lanes.into_iter().fold(tail_max, u32::max)
}

/// The numbers of the lanes whose bits are set, packed to the front.
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn lanes_of(kept: u8) -> __m256i {
    let bytes = _pdep_u64(u64::from(kept), 0x0101_0101_0101_0101).wrapping_mul(0xff);
    let lanes = _pext_u64(0x0706_0504_0302_0100, bytes);
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(lanes as i64))
}

/// A bit for each lane that is at least the bound. AVX2 has no unsigned comparison; such a lane is the
/// maximum of itself and the bound.
#[target_feature(enable = "avx2")]
fn reaching(magnitudes: __m256i, bound: __m256i) -> u8 {
    let is_kept = _mm256_cmpeq_epi32(_mm256_max_epu32(magnitudes, bound), magnitudes);
    _mm256_movemask_ps(_mm256_castsi256_ps(is_kept)) as u8
}

/// [`compact`](crate::kernels::compact) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn compact(candidates: &mut Candidates<'_>, least: u32) {
    let len = candidates.len;
    let parts = (&mut candidates.indices[..len], &mut candidates.values[..len]);
    // SAFETY: `Isa::Avx512` is named only where the machine has it; both parts have the same length.
    candidates.len = unsafe { compact_avx512(parts.0, parts.1, least) };
}

/// # Safety
/// Both parts have the same length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
unsafe fn compact_avx512(indices: &mut [u32], values: &mut [u32], least: u32) -> usize {
    let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);
    let bound = _mm512_set1_epi32(least as i32);
    let mut len = 0;
    let whole = values.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: at + 16 ≤ whole ≤ length of both, and len ≤ at: what is overwritten was read.
        unsafe {
            let positions = _mm512_loadu_si512(indices.as_ptr().add(at).cast());
            let bits = _mm512_loadu_si512(values.as_ptr().add(at).cast());
            let kept = _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, magnitude), bound);
            let positions = _mm512_maskz_compress_epi32(kept, positions);
            _mm512_storeu_si512(indices.as_mut_ptr().add(len).cast(), positions);
            let bits = _mm512_maskz_compress_epi32(kept, bits);
            _mm512_storeu_si512(values.as_mut_ptr().add(len).cast(), bits);
            len += kept.count_ones() as usize;
        }
    }
    scalar::compact(indices, values, whole, len, least)
}

/// [`compact`](crate::kernels::compact) for AVX2, which the caller has detected.
pub(in crate::kernels) fn compact_with_avx2(candidates: &mut Candidates<'_>, least: u32) {
    let len = candidates.len;
    let parts = (&mut candidates.indices[..len], &mut candidates.values[..len]);
    // SAFETY: `Isa::Avx2` is named only where the machine has it; both parts have the same length.
    candidates.len = unsafe { compact_avx2(parts.0, parts.1, least) };
}

/// # Safety
/// Both parts have the same length.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
unsafe fn compact_avx2(indices: &mut [u32], values: &mut [u32], least: u32) -> usize {
    let magnitude = _mm256_set1_epi32(MAGNITUDE as i32);
    let bound = _mm256_set1_epi32(least as i32);
    let mut len = 0;
    let whole = values.len() / AVX2_LANES * AVX2_LANES;
    for at in (0..whole).step_by(AVX2_LANES) {
        // SAFETY: at + 8 ≤ whole ≤ length of both, and len ≤ at: what is overwritten was read.
        unsafe {
            let positions = _mm256_loadu_si256(indices.as_ptr().add(at).cast());
            let bits = _mm256_loadu_si256(values.as_ptr().add(at).cast());
            let kept = reaching(_mm256_and_si256(bits, magnitude), bound);
            let lanes = lanes_of(kept);
            let positions = _mm256_permutevar8x32_epi32(positions, lanes);
            _mm256_storeu_si256(indices.as_mut_ptr().add(len).cast(), positions);
            let bits = _mm256_permutevar8x32_epi32(bits, lanes);
            _mm256_storeu_si256(values.as_mut_ptr().add(len).cast(), bits);
            len += kept.count_ones() as usize;
        }
    }
    scalar::compact(indices, values, whole, len, least)
}

/// [`keep_between`](crate::kernels::keep_between) for AVX-512, which the caller has detected and whose room
/// the caller has checked.
pub(in crate::kernels) fn keep_between(p: &[u32], range: (u32, u32), out: &mut [u32]) -> (usize, usize) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it; the caller checked the room.
    unsafe { keep_between_avx512(p, range, out) }
}

/// # Safety
/// `out` has room for all of `p` and one vector more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
unsafe fn keep_between_avx512(p: &[u32], (low, high): (u32, u32), out: &mut [u32]) -> (usize, usize) {
    let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);
    let (least, most) = (_mm512_set1_epi32(low as i32), _mm512_set1_epi32(high as i32));
    let (mut above, mut inside) = (0, 0);
    let (whole, tail) = p.as_chunks::<LANES>();
    for p in whole {
        // SAFETY: the array holds sixteen words.
        let magnitudes = unsafe { _mm512_and_si512(_mm512_loadu_si512(p.as_ptr().cast()), magnitude) };
        above += _mm512_cmpgt_epu32_mask(magnitudes, most).count_ones() as usize;
        let kept = _mm512_mask_cmple_epu32_mask(_mm512_cmpge_epu32_mask(magnitudes, least), magnitudes, most);
        // SAFETY: fewer than `p.len()` words were kept, so a whole vector fits behind them.
        unsafe {
            let kept = _mm512_maskz_compress_epi32(kept, magnitudes);
            _mm512_storeu_si512(out.as_mut_ptr().add(inside).cast(), kept);
        }
        inside += kept.count_ones() as usize;
    }
    let (tail_above, tail_inside) = scalar::keep_between(tail, (low, high), &mut out[inside..]);
    (above + tail_above, inside + tail_inside)
}

/// [`keep_between`](crate::kernels::keep_between) for AVX2, which the caller has detected and whose room the
/// caller has checked.
pub(in crate::kernels) fn keep_between_with_avx2(
    p: &[u32],
    range: (u32, u32),
    out: &mut [u32],
) -> (usize, usize) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it; the caller checked the room.
    unsafe { keep_between_avx2(p, range, out) }
}

/// # Safety
/// `out` has room for all of `p` and one vector more.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
unsafe fn keep_between_avx2(p: &[u32], (low, high): (u32, u32), out: &mut [u32]) -> (usize, usize) {
    let magnitude = _mm256_set1_epi32(MAGNITUDE as i32);
    let least = _mm256_set1_epi32(low as i32);
    let next = _mm256_set1_epi32((high.min(MAGNITUDE) + 1) as i32);
    let (mut above, mut inside) = (0, 0);
    let (whole, tail) = p.as_chunks::<AVX2_LANES>();
    for p in whole {
        // SAFETY: the array holds eight words.
        let magnitudes = unsafe { _mm256_and_si256(_mm256_loadu_si256(p.as_ptr().cast()), magnitude) };
        let over = reaching(magnitudes, next);
        above += over.count_ones() as usize;
        let kept = reaching(magnitudes, least) & !over;
        // SAFETY: fewer than `p.len()` words were kept, so a whole vector fits behind them.
        unsafe {
            let kept = _mm256_permutevar8x32_epi32(magnitudes, lanes_of(kept));
            _mm256_storeu_si256(out.as_mut_ptr().add(inside).cast(), kept);
        }
        inside += kept.count_ones() as usize;
    }
    let (tail_above, tail_inside) = scalar::keep_between(tail, (low, high), &mut out[inside..]);
    (above + tail_above, inside + tail_inside)
}
