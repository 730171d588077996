//! Sections of every size of blocks.

extern crate std;
use super::*;
use proptest::prelude::*;
use std::{eprintln, hint::black_box, time::Instant, vec, vec::Vec};

/// Positions with these gaps between them.
fn positions(gaps: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let step = |next: &mut u32, gap: u32| {
        let position = *next + gap;
        *next = position + 1;
        Some(position)
    };
    gaps.into_iter().scan(0, step).collect()
}

/// Pseudo-random words.
fn words(mut state: u32) -> impl Iterator<Item = u32> {
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    })
}

/// The bits of a block with parameter r.
fn cost(gaps: &[u32], r: u32) -> u64 {
    gaps.iter().map(|&gap| u64::from(gap >> r) + u64::from(r) + 1).sum()
}

/// The planes in blocks of one size, by trying all parameters.
fn naive(gaps: &[u32], block_log2: u32) -> PlaneBits {
    let mut bits = PlaneBits::default();
    for block in gaps.chunks(1 << block_log2) {
        let best = (0..32).min_by_key(|&r| cost(block, r)).unwrap();
        let lows = block.len() as u64 * u64::from(best);
        bits.lows += lows;
        bits.highs += cost(block, best) - lows;
    }
    bits
}

#[test]
fn the_parameter_is_the_exactly_best_one() {
    // The sum of 300 gaps is below 2³².
    for spread in 9..32 {
        for len in [1, 2, 7, 16, 128, 129, 300] {
            let gaps: Vec<u32> = words(spread).map(|word| word >> spread).take(len).collect();
            let best = (0..32).min_by_key(|&r| cost(&gaps, r)).unwrap();
            let sum: u32 = gaps.iter().map(|gap| gap >> best).sum();
            let indices = positions(gaps.iter().copied());
            assert_eq!(best_parameter_step_by_step(&indices, 0), (best, sum));
            for isa in Isa::available() {
                assert_eq!(best_parameter(isa, &indices, 0), (best, sum));
            }
        }
    }
}

#[test]
fn parameters_of_memoryless_gaps_are_the_textbook_ones() {
    // Density 10 %, 1 %, 0.1 %: r = 3, 6, 9. Gaps at evenly spaced quantiles of the geometric distribution.
    for (density, r) in [(0.1f64, 3), (0.01, 6), (0.001, 9)] {
        let quantile = |i: usize| ((1.0 - (i as f64 + 0.5) / 128.0).ln() / (1.0 - density).ln()) as u32;
        let indices = positions((0..128).map(quantile));
        assert_eq!(best_parameter(Isa::Baseline, &indices, 0).0, r);
    }
}

/// Measuring all sizes in one pass gives the same as measuring each alone, also with gaps of all lengths,
/// blocks of all fillings and more than one block of the largest size.
#[test]
fn all_sizes_of_blocks_are_measured_exactly() {
    let scales: [fn(usize) -> u32; 4] =
        [|_| 28, |i| 20 + (i / 48 % 12) as u32, |i| if i == 77 { 5 } else { 27 }, |_| 32];
    for len in [1, 15, 16, 17, 31, 33, 128, 129, 1000, 4096, 65_536, 65_537, 65_552, 140_000] {
        for scale in scales {
            let gap = |(i, word): (usize, u32)| word.checked_shr(scale(i)).unwrap_or(0);
            let gaps: Vec<u32> = words(7).enumerate().map(gap).take(len).collect();
            if gaps.iter().map(|&gap| u64::from(gap) + 1).sum::<u64>() > u64::from(u32::MAX) {
                continue;
            }
            let indices = positions(gaps.iter().copied());
            let sizes = tally(Isa::Baseline, &indices);
            Isa::available().for_each(|isa| assert_eq!(tally(isa, &indices), sizes, "{isa:?}"));
            for (block_log2, tallied) in BLOCK_LOG2_RANGE.zip(sizes) {
                assert_eq!(tallied, naive(&gaps, block_log2), "{len} in blocks of 2^{block_log2}");
                assert_eq!(tallied, measure_blocks(&indices, block_log2));
            }
        }
    }
}

/// A section of each size, whatever would be chosen.
fn section(indices: &[u32], block_log2: u32) -> Vec<u8> {
    let planes = Planes::new(indices.len(), block_log2, measure_blocks(indices, block_log2));
    let mut section = vec![0xa5; planes.section_bytes()];
    write(indices, planes, &mut section);
    section
}

proptest! {
    #[test]
    fn blocks_of_every_size_round_trip_and_none_is_much_shorter_than_the_one_taken(
        runs in proptest::collection::vec((0u32..20, 1usize..400), 1..12),
        seed in any::<u32>(),
    ) {
        let widths = runs.iter().flat_map(|&(width, len)| std::iter::repeat_n(width, len));
        let indices = positions(widths.zip(words(seed)).map(|(width, word)| word >> 12 >> (20 - width)));
        let len = *indices.last().unwrap() as usize + 1;
        let taken = Planes::measure(&indices).section_bytes();
        let usual = section(&indices, USUAL_LOG2).len();
        for block_log2 in BLOCK_LOG2_RANGE {
            let section = section(&indices, block_log2);
            let mut decoded = vec![0; indices.len()];
            prop_assert_eq!(read(&section, len, &mut decoded), Ok(()));
            prop_assert!(decoded == indices);
            prop_assert_eq!(read(&section, len - 1, &mut decoded), Err(DecodeError::IndexOutOfRange));
            prop_assert!(taken - section.len().min(taken) <= (usual / 128).max(1), "{} and {}", taken, section.len());
        }
    }
}

#[test]
fn another_size_than_128_is_taken_only_where_it_saves_much() {
    let block_log2 = |indices: &[u32]| Planes::measure(indices).block_log2;
    assert_eq!(block_log2(&positions([9; 4000])), 7);
    assert_eq!(block_log2(&positions([0; 4000])), 12);
    let sixteens = |i: usize| [1000, 1][i / 16 % 2];
    assert_eq!(block_log2(&positions((0..4000).map(sixteens))), 4);
}

/// r = 3 of gap 13 is "10" + "101" in the textbook's unary-of-ones; here a zero and a one in the high plane.
#[test]
fn one_gap_has_the_documented_bits() {
    let (r, _) = best_parameter(Isa::Baseline, &[13], 0);
    assert_eq!(section(&[13], USUAL_LOG2), [7, r as u8, 13 & ((1 << r) - 1), 1 << (13 >> r)]);
}

#[test]
fn a_wasted_byte_behind_a_plane_is_refused() {
    let mut section = section(&[3, 70, 71], USUAL_LOG2);
    let mut decoded = [0; 3];
    assert_eq!(read(&section, 100, &mut decoded), Ok(()));
    section.push(0);
    assert_eq!(read(&section, 100, &mut decoded), Err(DecodeError::TrailingBytes));
}

/// Gaps as long as positions allow, alone and among short ones, in blocks of every size; and no entries at
/// all.
#[cfg(target_pointer_width = "64")]
#[test]
fn the_longest_gaps_round_trip_in_blocks_of_every_size() {
    let most = u32::MAX;
    let many: Vec<u32> = (0..300).chain((most - 299..=most).step_by(2)).collect();
    for indices in [&[][..], &[0], &[most], &[0, most], &[most - 1, most], &[1 << 30, 1 << 31, most], &many] {
        let mut gaps = vec![0; indices.len()];
        kernels::gaps(Isa::Baseline, indices, 0, &mut gaps);
        for (at, block_log2) in BLOCK_LOG2_RANGE.enumerate() {
            let sizes = Isa::available().map(|isa| tally(isa, indices)[at]);
            sizes
                .chain([measure_blocks(indices, block_log2)])
                .for_each(|bits| assert_eq!(bits, naive(&gaps, block_log2)));
            let mut decoded = vec![0xa5a5_a5a5; indices.len()];
            assert_eq!(read(&section(indices, block_log2), 1 << 32, &mut decoded), Ok(()));
            assert_eq!(decoded, indices);
        }
    }
}

/// Nanoseconds an entry, the least of many runs, for positions without order at each density: in the blocks
/// that are chosen, and in blocks of some sizes.
#[test]
#[ignore = "a measurement, for a release build: -- --ignored --nocapture nanoseconds_an_entry"]
fn nanoseconds_an_entry_of_measuring_writing_and_reading() {
    let least = |entries: usize, f: &mut dyn FnMut()| {
        let run = |f: &mut dyn FnMut()| {
            let start = Instant::now();
            f();
            start.elapsed().as_nanos() as f64
        };
        (0..41).map(|_| run(f)).fold(f64::INFINITY, f64::min) / entries as f64
    };
    for (len, one_in) in [(3_000_000, 10), (30_000_000, 100), (100_000_000, 1000)] {
        let is_entry = |&(_, word): &(usize, u32)| (u64::from(word) * one_in) >> 32 == 0;
        let indices: Vec<u32> =
            words(1).take(len).enumerate().filter(is_entry).map(|(i, _)| i as u32).collect();
        let k = indices.len();
        let chosen = Planes::measure(&indices);
        let measure = least(k, &mut || {
            black_box(Planes::measure(black_box(&indices)));
        });
        for block_log2 in [chosen.block_log2, 4, 5, 7] {
            let planes = Planes::new(k, block_log2, measure_blocks(&indices, block_log2));
            let (mut bytes, mut decoded) = (vec![0; planes.section_bytes()], vec![0; k]);
            let write = least(k, &mut || write(&indices, planes, &mut bytes));
            let read = least(k, &mut || read(&bytes, len, &mut decoded).unwrap());
            assert_eq!(decoded, indices);
            eprintln!(
                "1 in {one_in}, blocks of 2^{block_log2}: measure {measure:.2}, write {write:.2}, read {read:.2}"
            );
        }
    }
}
