//! Rounding to levels: draws stay in registers, from the generator to the levels.

use crate::kernels::scalar::{self, MAGNITUDE};
use crate::kernels::{Bucket, Isa};
use crate::rng::{CONSTANTS, DRAW_ROUNDS, Stream};
use core::arch::x86_64::*;

/// Draws, and so elements, of one turn: four blocks of the generator with AVX2, eight with AVX-512.
const AVX2_TURN: usize = 32;
const AVX512_TURN: usize = 64;

/// Units of a level: what the fixed-point sum counts.
const UNITS: f32 = 65_536.0;

/// [`quantize`](crate::kernels::quantize) for an instruction set above the baseline, which the caller has detected.
pub(in crate::kernels) fn quantize(
    isa: Isa,
    p: &[u32],
    bucket: &Bucket,
    stream: Option<&Stream>,
    fields: &mut [u8],
) {
    let turn = if isa == Isa::Avx512 { AVX512_TURN } else { AVX2_TURN };
    // Elsewhere a turn would begin inside a block of the generator.
    let whole = if stream.is_none() || bucket.first.is_multiple_of(8) { p.len() / turn * turn } else { 0 };
    let (p, p_tail) = p.split_at(whole);
    let (fields, fields_tail) = fields.split_at_mut(whole);
    // SAFETY: `Isa` names an instruction set only where the machine has it, and every one above the baseline has AVX2.
    unsafe {
        match isa {
            Isa::Avx512 => quantize_avx512(p, bucket, stream, fields),
            _ => quantize_avx2(p, bucket, stream, fields),
        }
    }
    let tail = Bucket { first: bucket.first + whole as u64, ..*bucket };
    scalar::quantize(p_tail, &tail, stream, fields_tail);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn quantize_avx512(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    match stream {
        Some(stream) => turns_avx512::<false>(p, bucket, fields, |first| draws_avx512(stream, first)),
        None => turns_avx512::<true>(p, bucket, fields, |_| [_mm512_set1_epi32(scalar::HALF as i32); 4]),
    }
}

/// Whole turns, each with the draws that begin with a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turns_avx512<const NEAREST: bool>(
    p: &[u32],
    bucket: &Bucket,
    fields: &mut [u8],
    draws: impl Fn(u64) -> [__m512i; 4],
) {
    let turns = p.as_chunks::<AVX512_TURN>().0.iter().zip(fields.as_chunks_mut::<AVX512_TURN>().0);
    for (first, (p, fields)) in (bucket.first / 8..).step_by(AVX512_TURN / 8).zip(turns) {
        let groups = p.as_chunks::<16>().0.iter().zip(fields.as_chunks_mut::<16>().0);
        for ((p, fields), draws) in groups.zip(draws(first)) {
            // SAFETY: the arrays hold sixteen words and sixteen bytes.
            unsafe {
                let levels = levels_avx512::<NEAREST>(_mm512_loadu_si512(p.as_ptr().cast()), draws, bucket);
                _mm_storeu_si128(fields.as_mut_ptr().cast(), levels);
            }
        }
    }
}

/// Sixteen fields: level from the fixed-point sum, and the sign in bit 7. Scaling by powers of two is exact, so one product
/// is as good as two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn levels_avx512<const NEAREST: bool>(bits: __m512i, draws: __m512i, bucket: &Bucket) -> __m128i {
    let magnitude = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(MAGNITUDE as i32)));
    let scaled = _mm512_mul_ps(magnitude, _mm512_set1_ps(bucket.inverse * UNITS));
    let scaled = _mm512_min_ps(scaled, _mm512_set1_ps(bucket.levels as f32 * UNITS));
    let rounded = _mm512_castps_si512(_mm512_add_ps(scaled, _mm512_set1_ps(scalar::ROUND_MAGIC)));
    let mut sum = _mm512_add_epi32(rounded, draws);
    if NEAREST {
        // As the plain loop: what is below half of level 1 is level 0.
        let doubled = _mm512_add_ps(magnitude, magnitude);
        let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(doubled, _mm512_set1_ps(bucket.scale));
        sum = _mm512_maskz_mov_epi32(counts, sum);
    }
    // The exponent is above the byte that is kept.
    let level = _mm512_srli_epi32::<16>(sum);
    let sign = _mm512_and_si512(_mm512_srli_epi32::<24>(bits), _mm512_set1_epi32(0x80));
    _mm512_cvtepi32_epi8(_mm512_or_si512(level, sign))
}

/// The 64 draws of eight blocks, in order, as four vectors of sixteen 32-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn draws_avx512(stream: &Stream, block: u64) -> [__m512i; 4] {
    let [front, back] = blocks_avx512(stream, block);
    let widen = |half: __m256i| _mm512_cvtepu16_epi32(half);
    [
        widen(_mm512_castsi512_si256(front)),
        widen(_mm512_extracti64x4_epi64::<1>(front)),
        widen(_mm512_castsi512_si256(back)),
        widen(_mm512_extracti64x4_epi64::<1>(back)),
    ]
}

/// Eight blocks, in order.
///
/// Words sit in the lower halves of 64-bit lanes; the upper halves hold what a product left there, which the next
/// product ignores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn blocks_avx512(stream: &Stream, block: u64) -> [__m512i; 2] {
    let ([key, upper], [multiplier, weyl]) = (stream.words(), CONSTANTS);
    let set = |word: u32| _mm512_set1_epi64(i64::from(word));
    let lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    let mut w0 = _mm512_add_epi64(_mm512_set1_epi64(block as i64), lanes);
    let mut w1 = _mm512_srli_epi64::<32>(w0);
    let (mut w2, mut w3) = (set(upper[0]), set(upper[1]));
    let (mut k0, mut k1) = (key[0], key[1]);
    for _ in 0..DRAW_ROUNDS {
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
    [
        _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), second),
        _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), second),
    ]
}

#[target_feature(enable = "avx2")]
fn quantize_avx2(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    match stream {
        Some(stream) => turns_avx2::<false>(p, bucket, fields, |first| draws_avx2(stream, first)),
        None => turns_avx2::<true>(p, bucket, fields, |_| [_mm256_set1_epi32(scalar::HALF as i32); 4]),
    }
}

/// Whole turns, each with the draws that begin with a block.
#[inline]
#[target_feature(enable = "avx2")]
fn turns_avx2<const NEAREST: bool>(
    p: &[u32],
    bucket: &Bucket,
    fields: &mut [u8],
    draws: impl Fn(u64) -> [__m256i; 4],
) {
    let turns = p.as_chunks::<AVX2_TURN>().0.iter().zip(fields.as_chunks_mut::<AVX2_TURN>().0);
    // Byte 2 of each word, to word `group` of its half.
    let picks = [
        [2, 6, 10, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1],
        [-1, -1, -1, -1, 2, 6, 10, 14, -1, -1, -1, -1, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1, -1, -1, -1, 2, 6, 10, 14, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 6, 10, 14i8],
    ];
    // SAFETY: each array holds sixteen bytes.
    let picks =
        picks.map(|pick| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(pick.as_ptr().cast()) }));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (first, (p, fields)) in (bucket.first / 8..).step_by(AVX2_TURN / 8).zip(turns) {
        let mut bytes = _mm256_setzero_si256();
        for ((p, draws), pick) in p.as_chunks::<8>().0.iter().zip(draws(first)).zip(picks) {
            // SAFETY: the array holds eight words.
            let bits = unsafe { _mm256_loadu_si256(p.as_ptr().cast()) };
            let picked = _mm256_shuffle_epi8(levels_avx2::<NEAREST>(bits, draws, bucket), pick);
            bytes = _mm256_or_si256(bytes, picked);
        }
        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
        // SAFETY: the array holds 32 bytes.
        unsafe { _mm256_storeu_si256(fields.as_mut_ptr().cast(), bytes) };
    }
}

/// Eight fields, each in byte 2 of its word: level from the fixed-point sum, and the sign in the highest bit.
#[inline]
#[target_feature(enable = "avx2")]
fn levels_avx2<const NEAREST: bool>(bits: __m256i, draws: __m256i, bucket: &Bucket) -> __m256i {
    let magnitude = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(MAGNITUDE as i32)));
    let scaled = _mm256_mul_ps(magnitude, _mm256_set1_ps(bucket.inverse * UNITS));
    let scaled = _mm256_min_ps(scaled, _mm256_set1_ps(bucket.levels as f32 * UNITS));
    let rounded = _mm256_castps_si256(_mm256_add_ps(scaled, _mm256_set1_ps(scalar::ROUND_MAGIC)));
    let mut sum = _mm256_add_epi32(rounded, draws);
    if NEAREST {
        // As the plain loop: what is below half of level 1 is level 0.
        let doubled = _mm256_add_ps(magnitude, magnitude);
        let is_zero = _mm256_cmp_ps::<_CMP_LT_OQ>(doubled, _mm256_set1_ps(bucket.scale));
        sum = _mm256_andnot_si256(_mm256_castps_si256(is_zero), sum);
    }
    let sign = _mm256_and_si256(_mm256_srli_epi32::<8>(bits), _mm256_set1_epi32(0x80 << 16));
    _mm256_or_si256(sum, sign)
}

/// The 32 draws of four blocks, in order, as four vectors of eight 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn draws_avx2(stream: &Stream, block: u64) -> [__m256i; 4] {
    let [even, odd] = blocks_avx2(stream, block);
    let widen = |block: __m128i| _mm256_cvtepu16_epi32(block);
    [
        widen(_mm256_castsi256_si128(even)),
        widen(_mm256_castsi256_si128(odd)),
        widen(_mm256_extracti128_si256::<1>(even)),
        widen(_mm256_extracti128_si256::<1>(odd)),
    ]
}

/// Blocks 0 and 2, and 1 and 3, of four; words sit as in [`blocks_avx512`].
#[inline]
#[target_feature(enable = "avx2")]
fn blocks_avx2(stream: &Stream, block: u64) -> [__m256i; 2] {
    let ([key, upper], [multiplier, weyl]) = (stream.words(), CONSTANTS);
    let set = |word: u32| _mm256_set1_epi64x(i64::from(word));
    let mut w0 = _mm256_add_epi64(_mm256_set1_epi64x(block as i64), _mm256_setr_epi64x(0, 1, 2, 3));
    let mut w1 = _mm256_srli_epi64::<32>(w0);
    let (mut w2, mut w3) = (set(upper[0]), set(upper[1]));
    let (mut k0, mut k1) = (key[0], key[1]);
    for _ in 0..DRAW_ROUNDS {
        let a = _mm256_mul_epu32(w0, set(multiplier[0]));
        let b = _mm256_mul_epu32(w2, set(multiplier[1]));
        w0 = _mm256_xor_si256(_mm256_srli_epi64::<32>(b), _mm256_xor_si256(w1, set(k0)));
        w2 = _mm256_xor_si256(_mm256_srli_epi64::<32>(a), _mm256_xor_si256(w3, set(k1)));
        (w1, w3) = (b, a);
        (k0, k1) = (k0.wrapping_add(weyl[0]), k1.wrapping_add(weyl[1]));
    }
    let first = _mm256_blend_epi32::<0xaa>(w0, _mm256_slli_epi64::<32>(w1));
    let second = _mm256_blend_epi32::<0xaa>(w2, _mm256_slli_epi64::<32>(w3));
    [_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second)]
}

/// [`fill_u16`](crate::kernels::fill_u16) for an instruction set above the baseline, which the caller has detected.
pub(in crate::kernels) fn fill_u16(isa: Isa, stream: &Stream, block: u64, draws: &mut [u16]) {
    // SAFETY: `Isa` names an instruction set only where the machine has it, and every one above the baseline has AVX2.
    unsafe {
        match isa {
            Isa::Avx512 => fill_avx512(stream, block, draws),
            _ => fill_avx2(stream, block, draws),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fill_avx512(stream: &Stream, mut block: u64, draws: &mut [u16]) {
    let (turns, rest) = draws.as_chunks_mut::<AVX512_TURN>();
    for turn in turns {
        for (draws, blocks) in turn.as_chunks_mut::<32>().0.iter_mut().zip(blocks_avx512(stream, block)) {
            // SAFETY: the array holds a vector.
            unsafe { _mm512_storeu_si512(draws.as_mut_ptr().cast(), blocks) };
        }
        block = block.wrapping_add((AVX512_TURN / 8) as u64);
    }
    stream.fill_u16_plainly(block, rest);
}

#[target_feature(enable = "avx2")]
fn fill_avx2(stream: &Stream, mut block: u64, draws: &mut [u16]) {
    let (turns, rest) = draws.as_chunks_mut::<AVX2_TURN>();
    for turn in turns {
        let [even, odd] = blocks_avx2(stream, block);
        let halves =
            [_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd)];
        for (draws, blocks) in turn.as_chunks_mut::<16>().0.iter_mut().zip(halves) {
            // SAFETY: the array holds a vector.
            unsafe { _mm256_storeu_si256(draws.as_mut_ptr().cast(), blocks) };
        }
        block = block.wrapping_add((AVX2_TURN / 8) as u64);
    }
    stream.fill_u16_plainly(block, rest);
}
