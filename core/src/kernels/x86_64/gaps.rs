//! Finds the bits of words that are one, and turns gaps into positions, a vector at a time.

use crate::bits::{MAX_FIELD_BITS, load_padded};
use crate::kernels::scalar::gaps::{ONES, TURN, ones_by, positions_of_block};
use crate::kernels::x86_64::select::lanes_of;
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
                let numbers = _mm256_add_epi32(lanes_of(bits), first);
                _mm256_storeu_si256(out.as_mut_ptr().add(found).cast(), numbers);
            }
            found += bits.count_ones() as usize;
        }
        found
    })
}

/// [`positions`](crate::kernels::positions) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn positions(
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    blocks: (usize, &[u32]),
    next: u32,
    out: &mut [u32],
) -> u64 {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { positions_avx512(ones, lows, first_bit, blocks, next, out) }
}

const LANES: usize = 16;

/// Fields of at most this many bits are summed in 32 bits, over a whole turn: each lane adds `TURN / LANES`
/// of them.
const NARROW: u32 = u32::BITS - (TURN / LANES).next_power_of_two().ilog2();

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn positions_avx512(
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    (block, parameters): (usize, &[u32]),
    next: u32,
    out: &mut [u32],
) -> u64 {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let last = _mm512_set1_epi32(LANES as i32 - 1);
    let one = _mm512_set1_epi32(1);
    // Blocks are whole vectors except at the end of the last. Each vector begins after the one before.
    let groups_log2 = (block / LANES).ilog2();
    let ((groups, rest), (slots, rest_slots)) = (ones.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    let (mut bit, mut wide_sum, mut sums) = (first_bit, 0, _mm512_setzero_si512());
    let (mut start, mut first) = (_mm512_setzero_si512(), _mm512_set1_epi32(next as i32));
    for (i, (group, slots)) in groups.iter().zip(slots).enumerate() {
        let r = parameters[i >> groups_log2];
        let fields = fields(lows, bit, r);
        if r > NARROW {
            wide_sum += sum_of(fields);
        } else {
            sums = _mm512_add_epi32(sums, fields);
        }
        bit += LANES as u64 * u64::from(r);
        // SAFETY: the array holds sixteen words.
        let ones = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
        let zeros = _mm512_sub_epi32(_mm512_sub_epi32(ones, start), lanes);
        let gaps =
            _mm512_add_epi32(_mm512_sll_epi32(zeros, _mm_cvtsi32_si128(r as i32)), running_sums(fields));
        let positions = _mm512_add_epi32(_mm512_add_epi32(first, lanes), gaps);
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(slots.as_mut_ptr().cast(), positions) };
        first = _mm512_add_epi32(_mm512_permutexvar_epi32(last, positions), one);
        start = _mm512_add_epi32(_mm512_permutexvar_epi32(last, ones), one);
    }
    let sum = wide_sum + sum_of(sums);
    let Some(&r) = parameters.get(groups.len() >> groups_log2) else { return sum };
    let (start, next) = (_mm512_cvtsi512_si32(start) as u32, _mm512_cvtsi512_si32(first) as u32);
    sum + positions_of_block(rest, lows, bit, r, next.wrapping_sub(start << r), rest_slots)
}

/// Sixteen fields of r bits from `first_bit` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn fields(lows: &[u8], first_bit: u64, r: u32) -> __m512i {
    // The word that begins with a field.
    let word = |field: u32| {
        let bit = first_bit + u64::from(field * r);
        load_padded(lows, (bit / 8) as usize) >> (bit % 8)
    };
    let digits = (1 << r) - 1;
    if 8 * r <= MAX_FIELD_BITS {
        let mask = 0x0101_0101_0101_0101 * digits;
        let (front, back) = (_pdep_u64(word(0), mask), _pdep_u64(word(8), mask));
        _mm512_cvtepu8_epi32(_mm_set_epi64x(back as i64, front as i64))
    } else if 4 * r <= MAX_FIELD_BITS {
        let mask = 0x0001_0001_0001_0001 * digits;
        let (a, b) = (_pdep_u64(word(0), mask), _pdep_u64(word(4), mask));
        let (c, d) = (_pdep_u64(word(8), mask), _pdep_u64(word(12), mask));
        _mm512_cvtepu16_epi32(_mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64))
    } else {
        let mut fields = [0; LANES];
        for (i, field) in fields.iter_mut().enumerate() {
            *field = (word(i as u32) & digits) as u32;
        }
        // SAFETY: the array holds sixteen words.
        unsafe { _mm512_loadu_si512(fields.as_ptr().cast()) }
    }
}

/// Each lane plus all lanes before it, modulo 2³².
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn running_sums(lanes: __m512i) -> __m512i {
    let none = _mm512_setzero_si512();
    let sums = _mm512_add_epi32(lanes, _mm512_alignr_epi32::<15>(lanes, none));
    let sums = _mm512_add_epi32(sums, _mm512_alignr_epi32::<14>(sums, none));
    let sums = _mm512_add_epi32(sums, _mm512_alignr_epi32::<12>(sums, none));
    _mm512_add_epi32(sums, _mm512_alignr_epi32::<8>(sums, none))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sum_of(lanes: __m512i) -> u64 {
    let front = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(lanes));
    let back = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(lanes));
    _mm512_reduce_add_epi64(_mm512_add_epi64(front, back)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_fields_that_are_summed_in_32_bits_just_fit() {
        let most = |r: u32| (TURN / LANES) as u64 * ((1 << r) - 1);
        assert!(most(NARROW) <= u64::from(u32::MAX));
        assert!(most(NARROW + 1) > u64::from(u32::MAX));
    }
}
