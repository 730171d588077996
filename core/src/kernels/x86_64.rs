//! Loops that compilers do not vectorise, written out for x86-64.

pub(super) mod cast;
pub(super) mod checksum;
pub(super) mod fields;
pub(super) mod gaps;
pub(super) mod rans;
pub(super) mod select;
pub(super) mod symbols;

use super::scalar::MAGNITUDE;
use super::{Bucket, scalar};
use crate::rng::Stream;
use core::arch::x86_64::*;

const LANES: usize = 16;

/// Draws, and so elements, of one turn of [`quantize_avx512`]: eight blocks of the generator.
const TURN: usize = 64;

/// Stochastic [`super::quantize`] for AVX-512, which the caller has detected: the draws stay in registers.
pub(super) fn quantize(p: &[u32], bucket: &Bucket, stream: &Stream, fields: &mut [u8]) {
    // Elsewhere a turn would begin inside a block of the generator.
    let whole = if bucket.first.is_multiple_of(8) { p.len() / TURN * TURN } else { 0 };
    let (p, p_tail) = p.split_at(whole);
    let (fields, fields_tail) = fields.split_at_mut(whole);
    // SAFETY: `Isa::Avx512` is named only where the machine has it; both slices hold whole turns and are of one length.
    unsafe { quantize_avx512(p, bucket, stream, fields) }
    let tail = Bucket { first: bucket.first + whole as u64, ..*bucket };
    scalar::quantize(p_tail, &tail, Some(stream), fields_tail);
}

/// # Safety
/// `p` and `fields` have the same length, a multiple of [`TURN`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn quantize_avx512(p: &[u32], bucket: &Bucket, stream: &Stream, fields: &mut [u8]) {
    let mut block = bucket.first / 8;
    for at in (0..p.len()).step_by(TURN) {
        let draws = draws_avx512(stream, block);
        block += (TURN / 8) as u64;
        for (group, draws) in draws.into_iter().enumerate() {
            let at = at + LANES * group;
            // SAFETY: at + 16 ≤ length of both slices, by the loops' bounds.
            unsafe {
                let bits = _mm512_loadu_si512(p.as_ptr().add(at).cast());
                let levels = levels_avx512(bits, draws, bucket);
                _mm_storeu_si128(fields.as_mut_ptr().add(at).cast(), levels);
            }
        }
    }
}

/// Sixteen fields: level from the fixed-point sum, and the sign in bit 7.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn levels_avx512(bits: __m512i, draws: __m512i, bucket: &Bucket) -> __m128i {
    let magnitude = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(MAGNITUDE as i32)));
    let level = _mm512_mul_ps(magnitude, _mm512_set1_ps(bucket.inverse));
    let level = _mm512_min_ps(level, _mm512_set1_ps(bucket.levels as f32));
    let scaled = _mm512_mul_ps(level, _mm512_set1_ps(65_536.0));
    let rounded = _mm512_castps_si512(_mm512_add_ps(scaled, _mm512_set1_ps(scalar::ROUND_MAGIC)));
    let fixed = _mm512_and_si512(rounded, _mm512_set1_epi32(0x007f_ffff));
    let level = _mm512_srli_epi32::<16>(_mm512_add_epi32(fixed, draws));
    let sign = _mm512_and_si512(_mm512_srli_epi32::<24>(bits), _mm512_set1_epi32(0x80));
    _mm512_cvtepi32_epi8(_mm512_or_si512(level, sign))
}

/// The 64 draws of eight blocks, in order, as four vectors of sixteen 32-bit lanes.
///
/// Words sit in the lower halves of 64-bit lanes; the upper halves hold what a product left there, which the next
/// product ignores.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn draws_avx512(stream: &Stream, block: u64) -> [__m512i; 4] {
    let ([key, upper], [multiplier, weyl]) = (stream.words(), crate::rng::CONSTANTS);
    let set = |word: u32| _mm512_set1_epi64(i64::from(word));
    let lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    let mut w0 = _mm512_add_epi64(_mm512_set1_epi64(block as i64), lanes);
    let mut w1 = _mm512_srli_epi64::<32>(w0);
    let (mut w2, mut w3) = (set(upper[0]), set(upper[1]));
    let (mut k0, mut k1) = (key[0], key[1]);
    for _ in 0..crate::rng::DRAW_ROUNDS {
        let a = _mm512_mul_epu32(w0, set(multiplier[0]));
        let b = _mm512_mul_epu32(w2, set(multiplier[1]));
        w0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64::<32>(b), w1), set(k0));
        w2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64::<32>(a), w3), set(k1));
        (w1, w3) = (b, a);
        (k0, k1) = (k0.wrapping_add(weyl[0]), k1.wrapping_add(weyl[1]));
    }
    let low = _mm512_set1_epi64(0xffff_ffff);
    let first = _mm512_or_si512(_mm512_and_si512(w0, low), _mm512_slli_epi64::<32>(w1));
    let second = _mm512_or_si512(_mm512_and_si512(w2, low), _mm512_slli_epi64::<32>(w3));
    let front = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), second);
    let back = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), second);
    let widen = |half: __m256i| _mm512_cvtepu16_epi32(half);
    [
        widen(_mm512_castsi512_si256(front)),
        widen(_mm512_extracti64x4_epi64::<1>(front)),
        widen(_mm512_castsi512_si256(back)),
        widen(_mm512_extracti64x4_epi64::<1>(back)),
    ]
}
