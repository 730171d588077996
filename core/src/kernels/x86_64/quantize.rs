//! Rounding to levels: draws stay in registers, from the generator to the levels.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::fields::FIELD_SIGN;
use crate::kernels::scalar::floats::MAGNITUDE;
use crate::kernels::scalar::quantize as scalar;
use crate::kernels::scalar::quantize::Bucket;
use crate::kernels::x86_64::philox::{Avx2Blocks, Avx512Blocks};
use crate::rng::stream::Stream;
use core::arch::x86_64::*;

/// Draws of one turn, one an element: four blocks of the generator with AVX2, eight with AVX-512.
const AVX2_TURN: usize = 32;
const AVX512_TURN: usize = 64;

/// Units of the fixed-point sum in one level.
const UNITS: f32 = 65_536.0;

/// [`quantize`](crate::kernels::quantize) for an instruction set above the baseline, which the caller has
/// detected.
pub(in crate::kernels) fn quantize(
    isa: Isa,
    p: &[u32],
    bucket: &Bucket,
    stream: Option<&Stream>,
    fields: &mut [u8],
) {
    let turn = if isa == Isa::Avx512 { AVX512_TURN } else { AVX2_TURN };
    // If the first element is at another position, turns begin inside a block of the generator.
    let whole = if stream.is_none() || bucket.first.is_multiple_of(8) { p.len() / turn * turn } else { 0 };
    let (p, p_tail) = p.split_at(whole);
    let (fields, fields_tail) = fields.split_at_mut(whole);
    // SAFETY: `Isa` names an instruction set only where the machine has it, and every one above the baseline
    // has AVX2.
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
        Some(stream) => {
            let mut blocks = Avx512Blocks::from(stream, bucket.first / 8);
            turns_avx512::<false>(p, bucket, fields, || draws_avx512(&mut blocks));
        }
        None => turns_avx512::<true>(p, bucket, fields, || [_mm512_set1_epi32(scalar::HALF as i32); 4]),
    }
}

/// Whole turns, each with its draws.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turns_avx512<const NEAREST: bool>(
    p: &[u32],
    bucket: &Bucket,
    fields: &mut [u8],
    mut draws: impl FnMut() -> [__m512i; 4],
) {
    for (p, fields) in p.as_chunks::<AVX512_TURN>().0.iter().zip(fields.as_chunks_mut::<AVX512_TURN>().0) {
        let groups = p.as_chunks::<16>().0.iter().zip(fields.as_chunks_mut::<16>().0);
        for ((p, fields), draws) in groups.zip(draws()) {
            // SAFETY: the arrays hold sixteen words and sixteen bytes.
            unsafe {
                let levels = levels_avx512::<NEAREST>(_mm512_loadu_si512(p.as_ptr().cast()), draws, bucket);
                _mm_storeu_si128(fields.as_mut_ptr().cast(), levels);
            }
        }
    }
}

/// Sixteen fields: level from the fixed-point sum, and the sign in bit 7. Scaling by powers of two is exact,
/// so one product gives the same bits as two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn levels_avx512<const NEAREST: bool>(bits: __m512i, draws: __m512i, bucket: &Bucket) -> __m128i {
    let magnitude = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(MAGNITUDE as i32)));
    let scaled = _mm512_mul_ps(magnitude, _mm512_set1_ps(bucket.inverse * UNITS));
    let scaled = _mm512_min_ps(scaled, _mm512_set1_ps(bucket.levels as f32 * UNITS));
    let rounded = _mm512_castps_si512(_mm512_add_ps(scaled, _mm512_set1_ps(scalar::ROUND_MAGIC)));
    let mut sum = _mm512_add_epi32(rounded, draws);
    if NEAREST {
        // As the plain loop: a value below half of level 1 is level 0.
        let doubled = _mm512_add_ps(magnitude, magnitude);
        let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(doubled, _mm512_set1_ps(bucket.scale));
        sum = _mm512_maskz_mov_epi32(counts, sum);
    }
    // The exponent is above the byte that is kept.
    let level = _mm512_srli_epi32::<16>(sum);
    let sign = _mm512_and_si512(_mm512_srli_epi32::<24>(bits), _mm512_set1_epi32(0x80));
    _mm512_cvtepi32_epi8(_mm512_or_si512(level, sign))
}

/// The 64 draws of the next eight blocks, in order, as four vectors of sixteen 32-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn draws_avx512(blocks: &mut Avx512Blocks) -> [__m512i; 4] {
    let [front, back] = in_order_avx512(blocks.turn());
    let widen = |half: __m256i| _mm512_cvtepu16_epi32(half);
    [
        widen(_mm512_castsi512_si256(front)),
        widen(_mm512_extracti64x4_epi64::<1>(front)),
        widen(_mm512_castsi512_si256(back)),
        widen(_mm512_extracti64x4_epi64::<1>(back)),
    ]
}

/// Eight blocks, one after the other, from both halves of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn in_order_avx512([first, second]: [__m512i; 2]) -> [__m512i; 2] {
    [_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second)]
}

#[target_feature(enable = "avx2")]
fn quantize_avx2(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    match stream {
        Some(stream) => {
            let mut blocks = Avx2Blocks::from(stream, bucket.first / 8);
            turns_avx2::<false>(p, bucket, fields, || draws_avx2(&mut blocks));
        }
        None => turns_avx2::<true>(p, bucket, fields, || [_mm256_set1_epi32(scalar::HALF as i32); 4]),
    }
}

/// Whole turns, each with its draws.
///
/// The upper half of a vector holds elements eight places after those of the lower half, because unpacking
/// leaves the draws in that order.
#[inline]
#[target_feature(enable = "avx2")]
fn turns_avx2<const NEAREST: bool>(
    p: &[u32],
    bucket: &Bucket,
    fields: &mut [u8],
    mut draws: impl FnMut() -> [__m256i; 4],
) {
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
    for (p, fields) in p.as_chunks::<AVX2_TURN>().0.iter().zip(fields.as_chunks_mut::<AVX2_TURN>().0) {
        // SAFETY: the array holds 32 words, and the last that is loaded is 20 + 8 + 3.
        let bits = [0, 4, 16, 20].map(|at| unsafe {
            let p = p.as_ptr().add(at);
            _mm256_loadu2_m128i(p.add(8).cast(), p.cast())
        });
        let mut bytes = signs_avx2(bits);
        for ((bits, draws), pick) in bits.into_iter().zip(draws()).zip(picks) {
            let levels = _mm256_shuffle_epi8(levels_avx2::<NEAREST>(bits, draws, bucket), pick);
            bytes = _mm256_or_si256(bytes, levels);
        }
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
        // SAFETY: the array holds 32 bytes.
        unsafe { _mm256_storeu_si256(fields.as_mut_ptr().cast(), bytes) };
    }
}

/// The signs of 32 elements, each in the highest bit of a byte, which saturation keeps.
#[inline]
#[target_feature(enable = "avx2")]
fn signs_avx2([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_and_si256(packed, _mm256_set1_epi8(FIELD_SIGN as i8))
}

/// Eight levels, each in byte 2 of its fixed-point sum.
#[inline]
#[target_feature(enable = "avx2")]
fn levels_avx2<const NEAREST: bool>(bits: __m256i, draws: __m256i, bucket: &Bucket) -> __m256i {
    let magnitude = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(MAGNITUDE as i32)));
    let scaled = _mm256_mul_ps(magnitude, _mm256_set1_ps(bucket.inverse * UNITS));
    let scaled = _mm256_min_ps(scaled, _mm256_set1_ps(bucket.levels as f32 * UNITS));
    let rounded = _mm256_castps_si256(_mm256_add_ps(scaled, _mm256_set1_ps(scalar::ROUND_MAGIC)));
    let sum = _mm256_add_epi32(rounded, draws);
    if !NEAREST {
        return sum;
    }
    // As the plain loop: a value below half of level 1 is level 0.
    let doubled = _mm256_add_ps(magnitude, magnitude);
    let is_zero = _mm256_cmp_ps::<_CMP_LT_OQ>(doubled, _mm256_set1_ps(bucket.scale));
    _mm256_andnot_si256(_mm256_castps_si256(is_zero), sum)
}

/// The 32 draws of the next four blocks, in 32-bit lanes, those of odd blocks in the upper halves.
#[inline]
#[target_feature(enable = "avx2")]
fn draws_avx2(blocks: &mut Avx2Blocks) -> [__m256i; 4] {
    let ([first, second], zero) = (blocks.turn(), _mm256_setzero_si256());
    [
        _mm256_unpacklo_epi16(first, zero),
        _mm256_unpacklo_epi16(second, zero),
        _mm256_unpackhi_epi16(first, zero),
        _mm256_unpackhi_epi16(second, zero),
    ]
}

/// [`fill_u16`](crate::kernels::fill_u16) for an instruction set above the baseline, which the caller has
/// detected.
pub(in crate::kernels) fn fill_u16(isa: Isa, stream: &Stream, block: u64, draws: &mut [u16]) {
    // SAFETY: `Isa` names an instruction set only where the machine has it, and every one above the baseline
    // has AVX2.
    unsafe {
        match isa {
            Isa::Avx512 => fill_avx512(stream, block, draws),
            _ => fill_avx2(stream, block, draws),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fill_avx512(stream: &Stream, block: u64, draws: &mut [u16]) {
    let (turns, rest) = draws.as_chunks_mut::<AVX512_TURN>();
    let behind = block.wrapping_add((turns.len() * AVX512_TURN / 8) as u64);
    let mut blocks = Avx512Blocks::from(stream, block);
    for turn in turns {
        for (draws, blocks) in turn.as_chunks_mut::<32>().0.iter_mut().zip(in_order_avx512(blocks.turn())) {
            // SAFETY: the array holds a vector.
            unsafe { _mm512_storeu_si512(draws.as_mut_ptr().cast(), blocks) };
        }
    }
    stream.fill_u16_plainly(behind, rest);
}

#[target_feature(enable = "avx2")]
fn fill_avx2(stream: &Stream, block: u64, draws: &mut [u16]) {
    let (turns, rest) = draws.as_chunks_mut::<AVX2_TURN>();
    let behind = block.wrapping_add((turns.len() * AVX2_TURN / 8) as u64);
    let mut blocks = Avx2Blocks::from(stream, block);
    for turn in turns {
        let [first, second] = blocks.turn();
        let in_order = [_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second)];
        for (draws, blocks) in turn.as_chunks_mut::<16>().0.iter_mut().zip(in_order) {
            // SAFETY: the array holds a vector.
            unsafe { _mm256_storeu_si256(draws.as_mut_ptr().cast(), blocks) };
        }
    }
    stream.fill_u16_plainly(behind, rest);
}
