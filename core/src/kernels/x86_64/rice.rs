//! Rice codes, sixteen gaps at a time.

use crate::bits::{BitWriter, MAX_FIELD_BITS};
use crate::kernels::rice::{put_highs, put_lows};
use core::arch::x86_64::*;

/// Gaps of a group.
const GROUP: usize = 16;

/// Zeros at which the code of a gap is too long for its group.
const LONG: i32 = MAX_FIELD_BITS as i32;

/// [`put_gaps`](crate::kernels::put_gaps) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn put_gaps(
    gaps: &[u32],
    r: u32,
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { put_gaps_avx512(gaps, r, lows, highs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn put_gaps_avx512(gaps: &[u32], r: u32, lows: &mut BitWriter<'_>, highs: &mut BitWriter<'_>) {
    // SAFETY: a group is as long as a vector.
    let load = |group: &[u32; GROUP]| unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
    put_lows_by(gaps, r, lows, |group, mask| pressed(_mm512_cvtepi32_epi8(load(group)), mask));
    put_highs_by(gaps, r, highs, |group| {
        let zeros = _mm512_srl_epi32(load(group), _mm_cvtsi32_si128(r as i32));
        let bits = _mm512_add_epi32(_mm512_min_epu32(zeros, _mm512_set1_epi32(LONG)), _mm512_set1_epi32(1));
        let none = _mm512_setzero_si512();
        let behind = _mm512_add_epi32(bits, _mm512_alignr_epi32::<15>(bits, none));
        let behind = _mm512_add_epi32(behind, _mm512_alignr_epi32::<14>(behind, none));
        let behind = _mm512_add_epi32(behind, _mm512_alignr_epi32::<12>(behind, none));
        let behind = _mm512_add_epi32(behind, _mm512_alignr_epi32::<8>(behind, none));
        let at = _mm512_sub_epi32(behind, _mm512_set1_epi32(1));
        let one = _mm512_set1_epi64(1);
        let front = _mm512_sllv_epi64(one, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(at)));
        let back = _mm512_sllv_epi64(one, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(at)));
        let total = _mm_extract_epi32::<3>(_mm512_extracti32x4_epi32::<3>(behind));
        (_mm512_reduce_or_epi64(_mm512_or_si512(front, back)) as u64, total as u32)
    });
}

/// [`put_gaps`](crate::kernels::put_gaps) for AVX2, which the caller has detected.
pub(in crate::kernels) fn put_gaps_with_avx2(
    gaps: &[u32],
    r: u32,
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { put_gaps_avx2(gaps, r, lows, highs) }
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn put_gaps_avx2(gaps: &[u32], r: u32, lows: &mut BitWriter<'_>, highs: &mut BitWriter<'_>) {
    let load = |group: &[u32; GROUP], half: usize| {
        // SAFETY: a group is two vectors.
        unsafe { _mm256_loadu_si256(group.as_ptr().add(8 * half).cast()) }
    };
    put_lows_by(gaps, r, lows, |group, mask| {
        let byte = |half| _mm256_and_si256(load(group, half), _mm256_set1_epi32(0xff));
        let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(byte(0), byte(1)));
        pressed(_mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs)), mask)
    });
    // The ones of eight gaps, and their bits.
    let codes = |group: &[u32; GROUP], half| {
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
    put_highs_by(gaps, r, highs, |group| {
        let ((front, bits), (back, more)) = (codes(group, 0), codes(group, 1));
        (front | back.checked_shl(bits).unwrap_or(0), bits + more)
    });
}

/// The bits of the mask in each half, side by side.
#[inline]
#[target_feature(enable = "sse4.1,bmi2")]
fn pressed(bytes: __m128i, mask: u64) -> [u64; 2] {
    let (front, back) = (_mm_cvtsi128_si64(bytes), _mm_extract_epi64::<1>(bytes));
    [_pext_u64(front as u64, mask), _pext_u64(back as u64, mask)]
}

/// The lower r bits of each gap; `fields(group, mask)` are the bits of the mask, which is for eight bytes, in the lowest
/// bytes of a group: of its first half and of its second.
#[inline(always)]
fn put_lows_by(
    gaps: &[u32],
    r: u32,
    lows: &mut BitWriter<'_>,
    fields: impl Fn(&[u32; GROUP], u64) -> [u64; 2],
) {
    if 8 * r > MAX_FIELD_BITS {
        return put_lows(gaps, r, lows);
    }
    let mask = 0x0101_0101_0101_0101 * ((1 << r) - 1);
    let (groups, rest) = gaps.as_chunks();
    for group in groups {
        let [front, back] = fields(group, mask);
        lows.put(front, 8 * r);
        lows.put(back, 8 * r);
    }
    put_lows(rest, r, lows);
}

/// gap >> r zeros and a one for each gap; `codes(group)` are the ones of a group and its bits, where these are at most
/// [`MAX_FIELD_BITS`], and more than that where they are more.
#[inline(always)]
fn put_highs_by(
    gaps: &[u32],
    r: u32,
    highs: &mut BitWriter<'_>,
    codes: impl Fn(&[u32; GROUP]) -> (u64, u32),
) {
    let (groups, rest) = gaps.as_chunks();
    for group in groups {
        let (ones, bits) = codes(group);
        if bits <= MAX_FIELD_BITS {
            highs.put(ones, bits);
        } else {
            put_highs(group, r, highs);
        }
    }
    put_highs(rest, r, highs);
}
