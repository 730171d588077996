//! The best parameters of Rice codes, sixteen blocks side by side.

use crate::kernels::scalar::blocks::{LEAF, LEAVES, TALLIED, TurnBlocks, best_blocks_by, columns};
use core::arch::x86_64::*;

/// [`best_blocks`](crate::kernels::best_blocks) for AVX-512, which the caller has detected.
pub(in crate::kernels) fn best_blocks(gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    // SAFETY: `Isa::Avx512` is named only where the machine has it.
    unsafe { best_blocks_avx512(gaps, entries, blocks) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,lzcnt,popcnt,bmi1,bmi2")]
fn best_blocks_avx512(gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    best_blocks_by(
        gaps,
        entries,
        blocks,
        |gaps| {
            let leaves = gaps.as_chunks::<LEAF>().0;
            let mut rows = [_mm512_setzero_si512(); LEAF];
            for (row, leaf) in rows.iter_mut().zip(LEAVES) {
                // SAFETY: a leaf is as long as a vector.
                *row = unsafe { _mm512_loadu_si512(leaves[leaf].as_ptr().cast()) };
            }
            transposed(&rows)
        },
        |columns, r| {
            let r = _mm_cvtsi32_si128(r as i32);
            let mut sum = _mm512_setzero_si512();
            for &column in columns {
                sum = _mm512_add_epi32(sum, _mm512_srl_epi32(column, r));
            }
            let mut sums = [0; LEAF];
            // SAFETY: there is room for a vector.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum) };
            sums
        },
    );
}

/// Transposes rows to columns: lane i of each column comes from row i.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: &[__m512i; LEAF]) -> [__m512i; LEAF] {
    let mut columns = [_mm512_setzero_si512(); LEAF];
    // Quarter q of element 4·g + c holds rows 4·g to 4·g + 3 of column 4·q + c.
    let mut quarters = columns;
    for (rows, quarters) in rows.as_chunks::<4>().0.iter().zip(quarters.as_chunks_mut::<4>().0) {
        let [low, high] = [
            [_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3])],
            [_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3])],
        ];
        *quarters = [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ];
    }
    for i in 0..4 {
        let [a, b, c, d] = [quarters[i], quarters[4 + i], quarters[8 + i], quarters[12 + i]];
        let even = [_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<0b11_01_11_01>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d)];
        columns[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even[0], even[1]);
        columns[4 + i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd[0], odd[1]);
        columns[8 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even[0], even[1]);
        columns[12 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd[0], odd[1]);
    }
    columns
}

/// [`best_blocks`](crate::kernels::best_blocks) for AVX2, which the caller has detected.
pub(in crate::kernels) fn best_blocks_with_avx2(
    gaps: &[u32; TALLIED],
    entries: usize,
    blocks: &mut TurnBlocks,
) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { best_blocks_avx2(gaps, entries, blocks) }
}

#[target_feature(enable = "avx2,lzcnt,popcnt,bmi1,bmi2")]
fn best_blocks_avx2(gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    best_blocks_by(gaps, entries, blocks, columns, |columns, r| {
        let r = _mm_cvtsi32_si128(r as i32);
        let mut halves = [_mm256_setzero_si256(); 2];
        for column in columns {
            for (i, sum) in halves.iter_mut().enumerate() {
                // SAFETY: a column is two vectors.
                let gaps = unsafe { _mm256_loadu_si256(column.as_ptr().add(8 * i).cast()) };
                *sum = _mm256_add_epi32(*sum, _mm256_srl_epi32(gaps, r));
            }
        }
        let mut sums = [0u32; LEAF];
        for (i, half) in halves.into_iter().enumerate() {
            // SAFETY: there is room for two vectors.
            unsafe { _mm256_storeu_si256(sums.as_mut_ptr().add(8 * i).cast(), half) };
        }
        sums
    });
}
