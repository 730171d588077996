//! Count-sketches: a block of 16 is two vectors, which one permutation each puts in order.

use crate::kernels::fetch::fetch;
use crate::kernels::scalar::sketch::{self as scalar, MAX_SKETCH_ROWS, Place, SKETCH_BLOCK};
use core::arch::x86_64::*;

/// [`insert`](crate::kernels::sketch::insert) for AVX2, which the caller has detected.
pub(in crate::kernels) fn insert(p: &[u32], keys: &[u64], table: &mut [f32]) {
    // SAFETY: `Isa::Avx2` is named only where the machine has it.
    unsafe { insert_avx2(p, keys, table) }
}

/// [`estimate`](crate::kernels::sketch::estimate) for AVX2, which the caller has detected.
pub(in crate::kernels) fn estimate(table: &[f32], keys: &[u64], out: &mut [u32]) {
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match keys.len() {
                // SAFETY: `Isa::Avx2` is named only where the machine has it.
                $($rows => unsafe { estimate_avx2::<$rows>(table, keys, out) },)*
                _ => scalar::estimate(table, keys, out),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9);
}

/// What puts the vectors of a block in order.
struct Turned {
    /// The first cell of the lower and of the upper half.
    halves: [usize; 2],
    /// Where in a vector each lane is.
    lanes: __m256i,
    /// The signs of both halves, as the highest bits.
    signs: [__m256i; 2],
}

#[target_feature(enable = "avx2")]
#[inline]
fn turned(place: &Place) -> Turned {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let signs = _mm256_set1_epi32(place.signs as i32);
    let of_half = |first| {
        let bits = _mm256_srlv_epi32(signs, _mm256_add_epi32(lanes, _mm256_set1_epi32(first)));
        _mm256_slli_epi32::<31>(bits)
    };
    let upper = place.turn & 8;
    Turned {
        halves: [place.first + upper, place.first + (upper ^ 8)],
        lanes: _mm256_xor_si256(lanes, _mm256_set1_epi32((place.turn & 7) as i32)),
        signs: [of_half(0), of_half(8)],
    }
}

/// Blocks whose cells are fetched before the first of them is read. Each is anywhere in a table that is
/// larger than the fastest caches, and a processor looks no further ahead than one block.
const TOGETHER: usize = 16;

/// Where a row keeps the blocks from this one on. Their cells begin to be fetched.
#[inline(always)]
fn fetch_places(key: u64, first: u64, row: &[f32], places: &mut [Place]) {
    for (block, place) in (first..).zip(places) {
        *place = scalar::place(key, block, row.len());
        // A block may begin anywhere in a cache line.
        fetch(row, place.first);
        fetch(row, place.first + SKETCH_BLOCK - 1);
    }
}

#[target_feature(enable = "avx2")]
fn insert_avx2(p: &[u32], keys: &[u64], table: &mut [f32]) {
    let columns = table.len() / keys.len();
    let (blocks, rest) = p.as_chunks::<SKETCH_BLOCK>();
    let mut places = [[Place::default(); TOGETHER]; MAX_SKETCH_ROWS];
    for (first, blocks) in (0..).step_by(TOGETHER).zip(blocks.chunks(TOGETHER)) {
        for ((places, row), &key) in places.iter_mut().zip(table.chunks_exact(columns)).zip(keys) {
            fetch_places(key, first, row, &mut places[..blocks.len()]);
        }
        for (row, places) in table.chunks_exact_mut(columns).zip(&places) {
            for (values, place) in blocks.iter().zip(places) {
                add_block(values, place, row);
            }
        }
    }
    scalar::insert_from(blocks.len() as u64, rest, keys, table);
}

#[target_feature(enable = "avx2")]
#[inline]
fn add_block(values: &[u32; SKETCH_BLOCK], place: &Place, row: &mut [f32]) {
    let of = turned(place);
    let (halves, _) = values.as_chunks::<8>();
    for ((values, first), signs) in halves.iter().zip(of.halves).zip(of.signs) {
        let cells = &mut row[first..][..8];
        // SAFETY: both hold 8 values.
        unsafe {
            let values = _mm256_xor_si256(_mm256_loadu_si256(values.as_ptr().cast()), signs);
            let values = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(values, of.lanes));
            let sums = _mm256_add_ps(_mm256_loadu_ps(cells.as_ptr()), values);
            _mm256_storeu_ps(cells.as_mut_ptr(), sums);
        }
    }
}

#[target_feature(enable = "avx2")]
fn estimate_avx2<const ROWS: usize>(table: &[f32], keys: &[u64], out: &mut [u32]) {
    const { assert!(ROWS <= MAX_SKETCH_ROWS) }
    let columns = table.len() / ROWS;
    let (blocks, rest) = out.as_chunks_mut::<SKETCH_BLOCK>();
    let whole = blocks.len() as u64;
    let mut places = [[Place::default(); TOGETHER]; ROWS];
    for (first, blocks) in (0..).step_by(TOGETHER).zip(blocks.chunks_mut(TOGETHER)) {
        for ((places, cells), &key) in places.iter_mut().zip(table.chunks_exact(columns)).zip(keys) {
            fetch_places(key, first, cells, &mut places[..blocks.len()]);
        }
        for (number, out) in blocks.iter_mut().enumerate() {
            let mut rows = [[_mm256_setzero_ps(); ROWS]; 2];
            for row in 0..ROWS {
                let of = turned(&places[row][number]);
                let cells = &table[row * columns..][..columns];
                for ((rows, first), signs) in rows.iter_mut().zip(of.halves).zip(of.signs) {
                    let cells = &cells[first..][..8];
                    // SAFETY: there are 8 cells.
                    let cells = unsafe { _mm256_loadu_si256(cells.as_ptr().cast()) };
                    let values = _mm256_permutevar8x32_epi32(cells, of.lanes);
                    rows[row] = _mm256_castsi256_ps(_mm256_xor_si256(values, signs));
                }
            }
            for (out, rows) in out.as_chunks_mut::<8>().0.iter_mut().zip(rows) {
                // SAFETY: there is room for 8 values.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), median(rows)) };
            }
        }
    }
    scalar::estimate_from(whole, table, keys, rest);
}

/// The lower median of each lane, by the comparisons of [`scalar`].
#[target_feature(enable = "avx2")]
#[inline]
fn median<const ROWS: usize>(mut rows: [__m256; ROWS]) -> __m256 {
    for pass in 0..ROWS {
        for low in (pass % 2..ROWS.saturating_sub(1)).step_by(2) {
            let (a, b) = (rows[low], rows[low + 1]);
            // Each is its second operand where neither is smaller.
            (rows[low], rows[low + 1]) = (_mm256_min_ps(b, a), _mm256_max_ps(a, b));
        }
    }
    rows[(ROWS - 1) / 2]
}
