//! Rice codes, sixteen gaps at a time.

use crate::bits::{BitWriter, MAX_FIELD_BITS};
use crate::kernels::scalar::rice::{put_highs, put_lows};
use crate::kernels::x86_64::gaps::running_sums;
use core::arch::x86_64::*;

/// Gaps of a group.
const GROUP: usize = 16;

/// Number of zeros from which on the code of a gap is too long for its group.
const LONG: i32 = MAX_FIELD_BITS as i32;

/// [`put_gaps`](crate::kernels::put_gaps) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn put_gaps(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { put_gaps_avx512(gaps, block, parameters, lows, highs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn put_gaps_avx512(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    // SAFETY: a group is as long as a vector.
    let load = |group: &[u32; GROUP]| unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
    let bytes = |group: &[u32; GROUP], mask| pressed(_mm512_cvtepi32_epi8(load(group)), mask);
    let words = |group: &[u32; GROUP], mask| {
        let words = _mm512_cvtepi32_epi16(load(group));
        let (front, back) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        [pressed(front, mask), pressed(back, mask)]
    };
    let codes = |group: &[u32; GROUP], r: u32| {
        let zeros = _mm512_srl_epi32(load(group), _mm_cvtsi32_si128(r as i32));
        let bits = _mm512_add_epi32(_mm512_min_epu32(zeros, _mm512_set1_epi32(LONG)), _mm512_set1_epi32(1));
        let behind = running_sums(bits);
        let at = _mm512_sub_epi32(behind, _mm512_set1_epi32(1));
        let one = _mm512_set1_epi64(1);
        let front = _mm512_sllv_epi64(one, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(at)));
        let back = _mm512_sllv_epi64(one, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(at)));
        let total = _mm_extract_epi32::<3>(_mm512_extracti32x4_epi32::<3>(behind));
        (_mm512_reduce_or_epi64(_mm512_or_si512(front, back)) as u64, total as u32)
    };
    put_groups(gaps, block, parameters, (lows, highs), bytes, words, codes);
}

/// [`put_gaps`](crate::kernels::put_gaps) for AVX2, which the caller has detected.
pub(in crate::kernels) fn put_gaps_with_avx2(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { put_gaps_avx2(gaps, block, parameters, lows, highs) }
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn put_gaps_avx2(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    let load = |group: &[u32; GROUP], half: usize| {
        // SAFETY: a group is two vectors.
        unsafe { _mm256_loadu_si256(group.as_ptr().add(8 * half).cast()) }
    };
    // Each lane under the mask, packed to 16 bits.
    let halves = |group: &[u32; GROUP], mask| {
        let half = |half| _mm256_and_si256(load(group, half), _mm256_set1_epi32(mask));
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(half(0), half(1)));
        (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
    };
    let bytes = |group: &[u32; GROUP], mask| {
        let (front, back) = halves(group, 0xff);
        pressed(_mm_packus_epi16(front, back), mask)
    };
    let words = |group: &[u32; GROUP], mask| {
        let (front, back) = halves(group, 0xffff);
        [pressed(front, mask), pressed(back, mask)]
    };
    // The codes of eight gaps: their ones, each in its place, and the number of bits.
    let half_codes = |group: &[u32; GROUP], half, r: u32| {
        let zeros = _mm256_srl_epi32(load(group, half), _mm_cvtsi32_si128(r as i32));
        let bits = _mm256_add_epi32(_mm256_min_epu32(zeros, _mm256_set1_epi32(LONG)), _mm256_set1_epi32(1));
        let behind = _mm256_add_epi32(bits, _mm256_slli_si256::<4>(bits));
        let behind = _mm256_add_epi32(behind, _mm256_slli_si256::<8>(behind));
        let front = _mm256_permutevar8x32_epi32(behind, _mm256_set1_epi32(3));
        let front = _mm256_blend_epi32::<0b1111_0000>(_mm256_setzero_si256(), front);
        let behind = _mm256_add_epi32(behind, front);
        let at = _mm256_sub_epi32(behind, _mm256_set1_epi32(1));
        let one = _mm256_set1_epi64x(1);
        let front = _mm256_sllv_epi64(one, _mm256_cvtepu32_epi64(_mm256_castsi256_si128(at)));
        let back = _mm256_sllv_epi64(one, _mm256_cvtepu32_epi64(_mm256_extracti128_si256::<1>(at)));
        let ones = _mm256_or_si256(front, back);
        let ones = _mm_or_si128(_mm256_castsi256_si128(ones), _mm256_extracti128_si256::<1>(ones));
        let ones = _mm_cvtsi128_si64(ones) | _mm_extract_epi64::<1>(ones);
        (ones as u64, _mm256_extract_epi32::<7>(behind) as u32)
    };
    let codes = |group: &[u32; GROUP], r| {
        let ((front, bits), (back, more)) = (half_codes(group, 0, r), half_codes(group, 1, r));
        (front | back.checked_shl(bits).unwrap_or(0), bits + more)
    };
    put_groups(gaps, block, parameters, (lows, highs), bytes, words, codes);
}

/// The bits of each half that the mask selects, packed together.
#[inline]
#[target_feature(enable = "sse4.1,bmi2")]
fn pressed(fields: __m128i, mask: u64) -> [u64; 2] {
    let (front, back) = (_mm_cvtsi128_si64(fields), _mm_extract_epi64::<1>(fields));
    [_pext_u64(front as u64, mask), _pext_u64(back as u64, mask)]
}

/// See [`put_gaps`](crate::kernels::put_gaps). `bytes(group, mask)` and `words(group, mask)` take the lowest
/// 8 and 16 bits of each gap, as many gaps as eight bytes hold at a time. They pack the bits that the mask,
/// which is for eight bytes, selects. `codes(group, r)` gives the ones of a group and the number of its bits,
/// if that is at most [`MAX_FIELD_BITS`]; otherwise it gives a larger number.
///
/// Pass these functions on as they are. This function is compiled for no instruction set of its own, so a
/// closure in it could call them, but not inline them.
#[inline(always)]
fn put_groups(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    (lows, highs): (&mut BitWriter<'_>, &mut BitWriter<'_>),
    bytes: impl Fn(&[u32; GROUP], u64) -> [u64; 2] + Copy,
    words: impl Fn(&[u32; GROUP], u64) -> [[u64; 2]; 2] + Copy,
    codes: impl Fn(&[u32; GROUP], u32) -> (u64, u32) + Copy,
) {
    // Blocks are whole groups except at the end of the last.
    let groups_log2 = (block / GROUP).ilog2();
    let (groups, rest) = gaps.as_chunks();
    for (i, group) in groups.iter().enumerate() {
        let r = parameters[i >> groups_log2];
        put_group_lows(group, r, lows, bytes, words);
        let (ones, bits) = codes(group, r);
        if bits <= MAX_FIELD_BITS {
            highs.put(ones, bits);
        } else {
            put_rest_of_highs(group, r, highs);
        }
    }
    if !rest.is_empty() {
        let r = parameters[groups.len() >> groups_log2];
        put_rest_of_lows(rest, r, lows);
        put_rest_of_highs(rest, r, highs);
    }
}

/// The lower r bits of each gap of a group.
#[inline(always)]
fn put_group_lows(
    group: &[u32; GROUP],
    r: u32,
    lows: &mut BitWriter<'_>,
    bytes: impl Fn(&[u32; GROUP], u64) -> [u64; 2],
    words: impl Fn(&[u32; GROUP], u64) -> [[u64; 2]; 2],
) {
    let digits = (1 << r) - 1;
    if 8 * r <= MAX_FIELD_BITS {
        let [front, back] = bytes(group, 0x0101_0101_0101_0101 * digits);
        if 16 * r <= MAX_FIELD_BITS {
            lows.put(front | back << (8 * r), 16 * r);
        } else {
            lows.put(front, 8 * r);
            lows.put(back, 8 * r);
        }
    } else if 4 * r <= MAX_FIELD_BITS {
        let fields = words(group, 0x0001_0001_0001_0001 * digits);
        fields.into_iter().flatten().for_each(|fields| lows.put(fields, 4 * r));
    } else {
        put_rest_of_lows(group, r, lows);
    }
}

/// Not inlined, so that the loop over groups stays small.
#[inline(never)]
fn put_rest_of_lows(gaps: &[u32], r: u32, lows: &mut BitWriter<'_>) {
    put_lows(gaps, r, lows);
}

/// As [`put_rest_of_lows`].
#[inline(never)]
fn put_rest_of_highs(gaps: &[u32], r: u32, highs: &mut BitWriter<'_>) {
    put_highs(gaps, r, highs);
}
