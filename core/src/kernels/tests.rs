//! Every kernel that this machine has gives the bits of the plain loop.

extern crate std;

use super::dispatch::fields::pack_nibbles;
use super::plain::{mixing as plain_mixing, shares as plain_shares};
use super::scalar::MAGNITUDE;
use super::scalar::mixing::{COUNT_BITS, COUNT_MASK, INPUTS, LEAST, MOST, P_BITS, Weights, Word};
use super::scalar::shares::{SYMBOLS, Shares};
use super::*;
use crate::bits::BitWriter;
use crate::{Source, StepKey};
use core::ops::Range;
use half::{bf16, f16};
use proptest::prelude::*;
use std::{vec, vec::Vec};

/// Lengths around every vector width, around the turns of selections, and their remainders. Miri takes
/// minutes for a thousand elements, so under Miri only the turns of AVX2.
const LENGTHS: [usize; 19] = if cfg!(miri) {
    [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 130, 530]
} else {
    [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 130, 511, 512, 1000, 1024, 1041, 2100]
};

fn floats(len: usize) -> Vec<f32> {
    let stream = StepKey { seed: 3, step: 0, source: Source::Shared }.stream(0);
    (0..len as u64).map(|i| (stream.u64_at(i) as i32 as f32) * 1e-9).collect()
}

/// Runs `kernel` for every instruction set and compares the result with the baseline's.
fn same_everywhere<T: PartialEq + core::fmt::Debug>(kernel: impl Fn(Isa) -> T) {
    let expected = kernel(Isa::Baseline);
    Isa::available().for_each(|isa| assert_eq!(kernel(isa), expected, "{isa:?}"));
}

/// Writes past the test harness, which hides the output of a test that passes.
#[test]
fn instruction_sets_that_are_not_tested_here_are_named() {
    use std::io::Write;
    let available: Vec<_> = Isa::available().map(|isa| std::format!("{isa:?}")).collect();
    let absent: Vec<_> = ["Avx2", "Avx512", "Neon"]
        .into_iter()
        .filter(|name| !available.iter().any(|has| has == name))
        .collect();
    let mut stderr = std::io::stderr();
    writeln!(stderr, "kernels of {} tested, not run: {}", available.join(", "), absent.join(", ")).unwrap();
    assert!(available.contains(&std::format!("{:?}", Isa::best())));
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn additions_and_maxima_are_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let (grad, residual) = (floats(len), floats(2 * len)[len..].to_vec());
        same_everywhere(|isa| {
            let mut sum = vec![0xa5a5_a5a5; len];
            let max = add_to(isa, &residual, &grad, &mut sum);
            let mut p = vec![0xa5a5_a5a5; len];
            let copied = copy_to(isa, &grad, &mut p);
            assert_eq!(copied, max_magnitude(isa, &p));
            let (mut squares, mut values) = ([0.0; 8], [0.0; 8]);
            add_squares(isa, &p, &mut squares);
            add_values(isa, &p, &mut values);
            (sum, max, copied, squares.map(f64::to_bits), values.map(f64::to_bits))
        });
    }
}

#[test]
fn squares_and_values_are_added_in_the_written_order_on_every_instruction_set() {
    for len in LENGTHS {
        let values = floats(len);
        let sum = |lane: usize| values.iter().skip(lane).step_by(8).fold(0.0, |sum, &x| sum + f64::from(x));
        let sums: [f64; 8] = core::array::from_fn(sum);
        let strided = |first: usize, strides: usize| {
            let squares = values.iter().skip(first).step_by(strides).map(|&x| f64::from(x) * f64::from(x));
            squares.fold(0.0, |sum, square| sum + square)
        };
        let narrow = core::array::from_fn(|i| strided(i, 8));
        let wide = |i| (0..4).map(|part| strided(8 * part + i, 32)).fold(0.0, |sum, part| sum + part);
        let expected = [narrow, core::array::from_fn(wide)].map(scalar::total_of).map(f64::to_bits);
        same_everywhere(|isa| {
            let (mut squares, mut added) = ([0.0; 8], [0.0; 8]);
            add_squares(isa, &bits(&values), &mut squares);
            add_values(isa, &bits(&values), &mut added);
            assert_eq!(added.map(f64::to_bits), sums.map(f64::to_bits));
            let sums = [scalar::total_of(squares), sum_of_squares_f32(isa, &values)].map(f64::to_bits);
            assert_eq!(sums, expected);
            sums
        });
    }
}

#[cfg(feature = "full")]
#[test]
fn momentum_is_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let (grad, before) = (floats(len), floats(2 * len)[len..].to_vec());
        for rule in [false, true].map(|nesterov| crate::codecs::Momentum::new(0.9, nesterov).unwrap()) {
            same_everywhere(|isa| {
                let (mut step, mut momentum) = (grad.clone(), before.clone());
                peek_momentum(isa, rule, &momentum, &mut step);
                let mut residual: Vec<f32> = grad.iter().rev().map(|value| value * 0.75).collect();
                let sums: Vec<f32> = residual.iter().zip(&step).map(|(kept, step)| kept + step).collect();
                let largest = add_steps(isa, rule, &mut momentum, &grad, &mut residual);
                assert_eq!(bits(&residual), bits(&sums));
                let moved = before.iter().zip(&grad).map(|(&before, &grad)| rule.apply(before, grad).0);
                assert_eq!(bits(&momentum), bits(&moved.collect::<Vec<_>>()));
                let max = |values: &[f32]| values.iter().map(|value| value.to_bits() & MAGNITUDE).max();
                assert_eq!(largest.momentum, max(&momentum).unwrap_or(0));
                assert_eq!(largest.residual, max(&residual).unwrap_or(0));
                (bits(&step), bits(&momentum), bits(&residual))
            });
        }
    }
}

#[test]
fn products_with_factors_are_the_same_on_every_instruction_set() {
    for (rows, cols, rank) in [(1, 1, 1), (3, 7, 2), (9, 33, 4), (17, 64, 1), (5, 130, 3)] {
        let m: Vec<u32> = bits(&floats(rows * cols));
        let (p, q) = (floats(rows * rank), floats(cols * rank));
        same_everywhere(|isa| {
            let (mut left, mut right, mut all) = (vec![7.0; p.len()], vec![7.0; q.len()], vec![7.0; m.len()]);
            multiply(isa, &m, cols, &q, &mut left);
            multiply_transposed(isa, &m, cols, &p, &mut right);
            multiply_out(isa, &p, &q, cols, &mut all);
            (bits(&left), bits(&right), bits(&all))
        });
    }
}

#[test]
fn sketches_are_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let p: Vec<u32> = floats(len).iter().map(|value| value.to_bits()).collect();
        for (rows, columns) in [(1, 16), (2, 48), (3, 32), (5, 160), (9, 16)] {
            let keys: Vec<u64> = (0..rows).map(|row| 77 * row as u64 + len as u64).collect();
            same_everywhere(|isa| {
                let mut table = vec![0.0; rows * columns];
                sketch::insert(isa, &p, &keys, &mut table);
                let mut estimates = vec![0xa5a5_a5a5; len];
                sketch::estimate(isa, &table, &keys, &mut estimates);
                (bits(&table), estimates)
            });
        }
    }
}

/// Over 20 000 hashes, the mean of one row's estimates is the value, and their variance is at most that of
/// independent hashes, ‖v‖²/columns.
#[test]
fn what_a_sketch_says_is_unbiased_and_as_exact_as_independent_hashes_are() {
    let (len, columns, trials) = (100, 48, 20_000);
    let values = floats(len);
    let p: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    let energy: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    let (mut sums, mut squares) = (vec![0.0; len], vec![0.0; len]);
    for key in 0..trials {
        let (mut row, mut estimates) = (vec![0.0; columns], vec![0; len]);
        sketch::insert(Isa::best(), &p, &[key], &mut row);
        sketch::estimate(Isa::best(), &row, &[key], &mut estimates);
        for (i, &estimate) in estimates.iter().enumerate() {
            let error = f64::from(f32::from_bits(estimate)) - f64::from(values[i]);
            sums[i] += error;
            squares[i] += error * error;
        }
    }
    let (variance, trials) = (energy / columns as f64, trials as f64);
    for i in 0..len {
        assert!((sums[i] / trials).abs() < 5.0 * (variance / trials).sqrt(), "coordinate {i} is off");
        assert!(
            squares[i] / trials < 1.1 * variance,
            "coordinate {i}: {} of {variance}",
            squares[i] / trials
        );
    }
}

#[test]
fn candidates_are_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let (grad, residual) = (floats(len), floats(2 * len)[len..].to_vec());
        // A bound equal to the magnitude of a value, with or without the residual, keeps that value.
        let alone = grad.first().map_or(0, |value| value.abs().to_bits());
        let sum = grad.first().map_or(0, |value| (value + residual[0]).abs().to_bits());
        for least in [1, 0.5f32.to_bits(), 2.0f32.to_bits(), 3.0f32.to_bits(), u32::MAX, alone, sum] {
            let keep = |isa, sums: Sums<'_>| {
                let (mut indices, mut values) =
                    (vec![0; len + CANDIDATE_SLACK + 1], vec![0; len + CANDIDATE_SLACK + 1]);
                let mut candidates = Candidates { indices: &mut indices, values: &mut values, len: 1 };
                let max = keep_from(isa, &grad, sums, 77, least, &mut candidates);
                let kept = candidates.len;
                (max, indices[..kept].to_vec(), values[..kept].to_vec())
            };
            same_everywhere(|isa| keep(isa, Sums::None));
            same_everywhere(|isa| {
                let mut sum = residual.clone();
                let in_place = keep(isa, Sums::InPlace(&mut sum));
                // At every place within a cache line, so that non-temporal stores are aligned, and are not.
                let places = if cfg!(feature = "full") { 0..16 } else { 0..0 };
                for (first, non_temporal) in places.flat_map(|first| [(first, false), (first, true)]) {
                    let mut room = vec![7.0; first + len + 1];
                    let p = &mut room[first..first + len];
                    assert_eq!(keep(isa, Sums::Beside { residual: &residual, p, non_temporal }), in_place);
                    assert_eq!(bits(&room[first..first + len]), bits(&sum));
                    assert!(room[..first].iter().chain(room.last()).all(|&value| value == 7.0));
                }
                (in_place, bits(&sum))
            });
        }
    }
}

#[test]
fn what_is_left_of_candidates_is_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let p = bits(&floats(len));
        let exact = p.first().map_or(0, |bits| bits & MAGNITUDE);
        for low in [0, 0.5f32.to_bits(), 1.0f32.to_bits(), 3.0f32.to_bits(), u32::MAX, exact] {
            same_everywhere(|isa| {
                let (mut indices, mut values): (Vec<u32>, Vec<u32>) = ((0..len as u32).collect(), p.clone());
                let mut candidates = Candidates { indices: &mut indices, values: &mut values, len };
                compact(isa, &mut candidates, low);
                let kept = candidates.len;
                (indices[..kept].to_vec(), values[..kept].to_vec())
            });
            for high in
                [low, exact, 1.5f32.to_bits(), u32::MAX - 1, u32::MAX].into_iter().filter(|&high| high >= low)
            {
                same_everywhere(|isa| {
                    let mut out = vec![0; len + CANDIDATE_SLACK];
                    let (above, inside) = keep_between(isa, &p, (low, high), &mut out);
                    (above, out[..inside].to_vec())
                });
            }
        }
    }
}

#[test]
fn ones_and_positions_are_the_same_on_every_instruction_set() {
    let words = floats(if cfg!(miri) { 12 } else { 400 });
    let dense: Vec<u8> = words.iter().flat_map(|value| value.to_le_bytes()).collect();
    let sparse: Vec<u8> = dense.iter().map(|byte| byte & byte >> 4 & byte >> 2).collect();
    for plane in [&dense, &sparse, &vec![0; 70], &vec![0xff; 70], &vec![]] {
        let naive: Vec<u64> = (0..8 * plane.len() as u64)
            .filter(|&bit| plane[(bit / 8) as usize] >> (bit % 8) & 1 == 1)
            .collect();
        for start in (0..8 * plane.len() as u64 + 20).step_by(13) {
            for wanted in [1, 2, 15, 16, 17, 63, 64, 65, TURN] {
                let mut out = [0; ONES];
                let found = ones(Isa::Baseline, plane, start, wanted, &mut out);
                let expected: Vec<u32> =
                    naive.iter().filter(|&&bit| bit >= start).map(|&bit| (bit - start) as u32).collect();
                assert!(found >= wanted.min(expected.len()));
                assert_eq!(out[..found], expected[..found]);
                same_everywhere(|isa| {
                    let mut out = [0; ONES];
                    let found = ones(isa, plane, start, wanted, &mut out);
                    let next = start as u32;
                    let mut indices = [0; TURN];
                    let n = found.min(TURN);
                    let blocks = (32, &[11, 3, 29, 14][..]);
                    let sum = positions(isa, &out[..n], &dense, 5 * start, blocks, next, &mut indices[..n]);
                    let mut back = [0; TURN];
                    gaps(isa, &indices[..n], next, &mut back[..n]);
                    (out[..found].to_vec(), sum, indices, back)
                });
            }
        }
    }
}

#[test]
fn the_largest_fields_of_a_turn_are_added_up_on_every_instruction_set() {
    let (lows, ones) = ([0xff; 4 * TURN + 8], std::array::from_fn::<u32, TURN, _>(|i| i as u32));
    for r in 0..=31 {
        same_everywhere(|isa| {
            let mut indices = [0; TURN];
            let sum = positions(isa, &ones, &lows, 0, (TURN, &[r]), 0, &mut indices);
            assert_eq!(sum, TURN as u64 * ((1 << r) - 1), "{r} bits");
            indices
        });
    }
}

/// Rice codes of gaps of every scale, with every parameter, in blocks of every filling.
#[test]
fn rice_codes_are_the_same_on_every_instruction_set() {
    let words = bits(&floats(TALLIED));
    let stride = if cfg!(miri) { 5 } else { 1 };
    for spread in [0, 8, 12, 20, 24, 26, 27, 29, 31].into_iter().step_by(stride) {
        // One gap in seven is longer than the others.
        let gaps: Vec<u32> =
            (0..TALLIED).map(|i| words[i] >> spread.max(4) >> (4 * u32::from(i % 7 != 0))).collect();
        for entries in [1, 15, 16, 17, 31, 33, 127, 128, 130, 255, 256].into_iter().step_by(stride) {
            let mut filled = [0; TALLIED];
            filled[..entries].copy_from_slice(&gaps[..entries]);
            if filled.iter().map(|&gap| u64::from(gap)).sum::<u64>() <= u64::from(u32::MAX) {
                same_everywhere(|isa| {
                    let (mut blocks, mut tally) = (TurnBlocks::default(), BlockTally::new());
                    best_blocks(isa, &filled, entries, &mut blocks);
                    tally_blocks(isa, &blocks, &mut tally);
                    (blocks, tally.finish())
                });
            }
            for r in (28 - spread.min(28))..32 {
                same_everywhere(|isa| {
                    let mut planes = [vec![0xa5; 4 * TALLIED], vec![0xa5; 4 * TALLIED]];
                    let [lows, highs] = &mut planes;
                    let (mut lows, mut highs) = (BitWriter::new(lows), BitWriter::new(highs));
                    put_gaps(isa, &gaps[..entries], TALLIED, &[r], &mut lows, &mut highs);
                    let lens = [lows.finish(), highs.finish()];
                    planes
                        .into_iter()
                        .zip(lens)
                        .map(|(plane, len)| plane[..len.unwrap()].to_vec())
                        .collect::<Vec<_>>()
                });
            }
        }
    }
}

#[test]
fn levels_are_the_same_on_every_instruction_set() {
    let stream = StepKey { seed: 3, step: 1, source: Source::Rank(2) }.stream(4);
    for len in LENGTHS {
        let p = bits(&floats(len));
        for (levels, first, stream) in [(7, 0, Some(&stream)), (127, 13, Some(&stream)), (1, 512, None)] {
            let norm = 2.2f32;
            let (inverse, scale) = (levels as f32 / norm, norm / levels as f32);
            let bucket = Bucket { first, inverse, scale, levels };
            same_everywhere(|isa| {
                let mut fields = vec![0xa5; len];
                quantize(isa, &p, &bucket, stream, &mut fields);
                let mut residual = vec![0.0; len];
                keep_rounding(isa, &p, &fields, scale, &mut residual);
                let (pairs, _) = fields.as_chunks();
                let mut packed = vec![0xa5; pairs.len()];
                pack_nibbles(isa, pairs, &mut packed);
                let mut sum = vec![[1.0f32; 2]; packed.len()];
                add_nibbles(isa, &packed, scale, 0.5, &mut sum);
                let mut bytewise = vec![1.0f32; len];
                add_bytes(isa, &fields, scale, 0.5, &mut bytewise);
                (fields, bits(&residual), packed, bits(sum.as_flattened()), bits(&bytewise))
            });
        }
    }
}

#[test]
fn draws_are_the_same_on_every_instruction_set_and_of_any_number() {
    let stream = StepKey { seed: 5, step: 1, source: Source::Rank(0) }.stream(0);
    // Positions whose lowest word wraps around: at once, between the turns of a vector, and inside a turn.
    let blocks = [0, u64::from(u32::MAX), (1 << 32) - 32, (5 << 32) - 21, u64::MAX - 3];
    for (len, block) in LENGTHS.into_iter().flat_map(|len| blocks.map(|block| (len, block))) {
        let blocks = (0..len as u64).map(|i| stream.u16x8_at(block.wrapping_add(i / 8))[i as usize % 8]);
        let expected: Vec<u16> = blocks.collect();
        for isa in Isa::available() {
            let mut draws = vec![0xa5a5; len];
            fill_u16(isa, &stream, block, &mut draws);
            assert_eq!(draws, expected, "{isa:?}");
        }
    }
}

/// Buckets with the smallest norm that is ever a divisor, the largest that occurs, and a common one.
#[test]
fn levels_next_to_every_border_are_the_same_on_every_instruction_set() {
    let stream = StepKey { seed: 5, step: 1, source: Source::Rank(0) }.stream(0);
    for (norm, levels) in [crate::codecs::qsgd::LEAST_NORM, 0.37, f32::MAX / 4.0]
        .into_iter()
        .flat_map(|norm| [(norm, 1), (norm, 7), (norm, 127)])
    {
        let (inverse, scale) = (levels as f32 / norm, norm / levels as f32);
        let borders = (0..2 * levels).map(|half| half as f32 * 0.5 * scale);
        let near = borders.flat_map(|value| [value, value.next_up(), -value.next_down(), -value]);
        let tiny = [f32::from_bits(1), f32::MIN_POSITIVE, norm, -norm];
        let p = bits(&near.chain(tiny).chain([0.0; 64]).collect::<Vec<f32>>());
        for stream in [Some(&stream), None] {
            let bucket = Bucket { first: 8, inverse, scale, levels };
            same_everywhere(|isa| {
                let mut fields = vec![0xa5; p.len()];
                quantize(isa, &p, &bucket, stream, &mut fields);
                fields
            });
        }
    }
}

/// Fields of random levels of up to `levels`, some of them with a sign.
fn fields(len: usize, levels: u8) -> Vec<u8> {
    let draws = bits(&floats(len));
    draws.iter().map(|&draw| (draw % (u32::from(levels) + 1)) as u8 | (draw >> 24) as u8 & 0x80).collect()
}

#[test]
fn fields_of_every_width_are_packed_as_the_definition_says() {
    for (bits, len) in (2..=8).flat_map(|bits| LENGTHS.map(|len| (bits, len))) {
        let fields = fields(len, (1 << (bits - 1)) - 1);
        // The definition: fields from the lowest bit up, the sign above the level.
        let mut expected = vec![0u8; (len * bits as usize).div_ceil(8)];
        for (i, &field) in fields.iter().enumerate() {
            let packed = u32::from(field & 0x7f) | u32::from(field >> 7) << (bits - 1);
            for bit in 0..bits as usize {
                let at = i * bits as usize + bit;
                expected[at / 8] |= ((packed >> bit & 1) as u8) << (at % 8);
            }
        }
        for isa in Isa::available() {
            let mut packed = vec![0xa5; expected.len()];
            pack_fields(isa, bits, &fields, &mut packed);
            assert_eq!(packed, expected, "{isa:?}, {len} fields of {bits} bits");
            let mut unpacked = vec![0xa5; len];
            unpack_fields(isa, bits, &packed, &mut unpacked);
            assert_eq!(unpacked, fields, "{isa:?}, {len} fields of {bits} bits");
        }
    }
}

#[test]
fn ternary_levels_are_digits_of_base_3() {
    for len in LENGTHS {
        let fields = fields(len, 1);
        let digit = |field: &u8| [0, 1, 0, 2][usize::from(field & 1 | field >> 6)];
        let byte = |five: &[u8]| five.iter().rev().fold(0, |sum, field| sum * 3 + digit(field));
        let expected: Vec<u8> = fields.chunks(5).map(byte).collect();
        for isa in Isa::available() {
            let mut packed = vec![0xa5; expected.len()];
            pack_ternary(isa, &fields, &mut packed);
            assert_eq!(packed, expected);
            let mut unpacked = vec![0xa5; len];
            unpack_ternary(isa, &packed, &mut unpacked);
            // A zero has no sign here.
            let without = fields.iter().map(|&field| if field & 1 == 0 { 0 } else { field });
            assert_eq!(unpacked, without.collect::<Vec<u8>>());
        }
    }
}

#[test]
fn signs_of_any_number_are_bits_that_add_up_on_every_instruction_set() {
    let edges = [0, 1, 1 << 31, 1 << 31 | 1, 0x7f7f_ffff, 0xff7f_ffff];
    for len in LENGTHS.into_iter().chain(24..40).chain(56..72) {
        let values = bits(&floats(len));
        let p: Vec<u32> =
            (0..len).map(|i| if i % 5 == 2 { edges[i / 5 % edges.len()] } else { values[i] }).collect();
        let is_below = |i: usize| p[i] >> 31 == 1 && p[i] != 1 << 31;
        let mut expected = vec![0; len.div_ceil(8)];
        (0..len).filter(|&i| is_below(i)).for_each(|i| expected[i / 8] |= 1 << (i % 8));
        let (scale, weight, before) = (0.37f32, -0.6f32, floats(2 * len)[len..].to_vec());
        let sent: Vec<f32> = (0..len).map(|i| if is_below(i) { -scale } else { scale }).collect();
        let kept: Vec<f32> = p.iter().zip(&sent).map(|(&p, sent)| f32::from_bits(p) - sent).collect();
        let sums: Vec<u32> =
            before.iter().zip(&sent).map(|(x, sent)| (x + weight * sent).to_bits()).collect();
        for isa in Isa::available() {
            let mut packed = vec![0xa5; expected.len()];
            pack_signs(isa, &p, &mut packed);
            assert_eq!(packed, expected, "{isa:?}, {len} signs");
            let mut residual = before.clone();
            let largest = keep_signs(isa, &p, scale, &mut residual);
            assert_eq!(bits(&residual), bits(&kept), "{isa:?}, {len} signs");
            assert_eq!(largest, residual.iter().map(|x| x.to_bits() & MAGNITUDE).max().unwrap_or(0));
            let mut sum = before.clone();
            add_signs(isa, &packed, scale, weight, &mut sum);
            assert_eq!(bits(&sum), sums, "{isa:?}, {len} signs");
        }
    }
}

#[test]
fn symbols_are_the_same_on_every_instruction_set() {
    for (len, levels) in LENGTHS.into_iter().flat_map(|len| [(len, 1), (len, 7), (len, 15), (len, 127)]) {
        let fields = fields(len, levels);
        same_everywhere(|isa| {
            let mut symbols = vec![0xa5; len];
            symbols_of(isa, &fields, &mut symbols);
            let mut counts = vec![3; 2 * usize::from(levels) + 1];
            let mut occurs = counts.clone();
            histogram(isa, &symbols, &mut counts);
            symbols.iter().for_each(|&symbol| occurs[usize::from(symbol)] += 1);
            assert_eq!(counts, occurs);
            let (mut sum, mut expected) = (vec![1.0f32; len], vec![1.0f32; len]);
            add_symbols(isa, &symbols, 0.3, 0.5, &mut sum);
            add_bytes(isa, &fields, 0.3, 0.5, &mut expected);
            assert_eq!(bits(&sum), bits(&expected));
            (symbols, bits(&sum))
        });
    }
}

#[test]
fn more_symbols_of_one_kind_are_counted_than_a_byte_holds() {
    let len = if cfg!(miri) { 20_000 } else { 100_000 };
    for alphabet in [15, 256] {
        same_everywhere(|isa| {
            let mut counts = vec![0; alphabet];
            histogram(isa, &vec![3; len], &mut counts);
            assert_eq!(counts[3] as usize, len);
            counts
        });
    }
}

#[test]
fn stochastic_draws_belong_to_coordinates_and_not_to_calls() {
    let stream = StepKey { seed: 3, step: 1, source: Source::Rank(2) }.stream(4);
    let p = bits(&floats(700));
    let levels = |range: Range<usize>| {
        let bucket = Bucket { first: range.start as u64, inverse: 7.0 / 2.2, scale: 2.2 / 7.0, levels: 7 };
        let mut fields = vec![0; range.len()];
        quantize(Isa::best(), &p[range], &bucket, Some(&stream), &mut fields);
        fields
    };
    let whole = levels(0..700);
    for cut in [1, 5, 8, 127, 128, 129, 511] {
        assert_eq!([levels(0..cut), levels(cut..700)].concat(), whole, "cut at {cut}");
    }
}

/// All half-precision values, including infinities and NaN, their neighbours in f32, the midpoints between
/// two, and one of every few thousand of all f32.
#[test]
fn casts_are_those_of_the_half_crate() {
    let halves = (0..=u16::MAX).map(f16::from_bits);
    let near = |value: f32| [value, value.next_up(), value.next_down()];
    let midpoint =
        |value: f16| (value.to_f32() + f16::from_bits(value.to_bits().wrapping_add(1)).to_f32()) / 2.0;
    let values = halves.flat_map(|value| near(value.to_f32()).into_iter().chain(near(midpoint(value))));
    let p: Vec<u32> = values.map(f32::to_bits).chain((0..=u32::MAX).step_by(4093)).collect();
    same_everywhere(|isa| {
        let (mut narrow, mut brain) = (vec![[0; 2]; p.len()], vec![[0; 2]; p.len()]);
        put_f16(isa, &p, &mut narrow);
        put_bf16(isa, &p, &mut brain);
        for ((&bits, narrow), brain) in p.iter().zip(&narrow).zip(&brain) {
            let value = f32::from_bits(bits);
            assert_eq!(*narrow, f16::from_f32(value).to_le_bytes(), "{value:e}");
            // Frames hold no NaN; as bfloat16 some would become infinities.
            assert!(value.is_nan() || *brain == bf16::from_f32(value).to_le_bytes(), "{value:e}");
        }
        brain
    });
}

#[test]
fn casts_of_any_number_are_the_same_on_every_instruction_set() {
    for len in LENGTHS {
        let (p, before) = (bits(&floats(len)), floats(2 * len)[len..].to_vec());
        same_everywhere(|isa| {
            let (mut narrow, mut brain) = (vec![[0xa5; 2]; len], vec![[0xa5; 2]; len]);
            put_f16(isa, &p, &mut narrow);
            put_bf16(isa, &p, &mut brain);
            let (mut sum, mut brain_sum) = (before.clone(), before.clone());
            add_f16(isa, &narrow, 0.3, &mut sum);
            add_bf16(isa, &brain, 0.3, &mut brain_sum);
            (narrow, brain, bits(&sum), bits(&brain_sum))
        });
    }
}

#[test]
fn every_narrow_value_widens_as_in_the_half_crate() {
    let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
    same_everywhere(|isa| {
        let (mut half, mut brain) = (vec![-0.0f32; all.len()], vec![-0.0f32; all.len()]);
        add_f16(isa, &all, 1.0, &mut half);
        add_bf16(isa, &all, 1.0, &mut brain);
        for ((half, brain), bytes) in half.iter().zip(&brain).zip(&all) {
            assert_eq!(canonical(half), canonical(&f16::from_le_bytes(*bytes).to_f32()));
            assert_eq!(canonical(brain), canonical(&bf16::from_le_bytes(*bytes).to_f32()));
        }
    });
}

/// The bits of a value. A NaN in a sum may come out with another payload. That does not matter, because
/// frames with a NaN are refused earlier.
fn canonical(value: &f32) -> u32 {
    if value.is_nan() { u32::MAX } else { value.to_bits() }
}

proptest! {
    #[test]
    fn additions_of_received_values_are_the_same_on_every_instruction_set(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        weight in -2.0f32..2.0,
    ) {
        same_everywhere(|isa| {
            let (words, pairs) = (bytes.as_chunks().0, bytes.as_chunks().0);
            let (mut single, mut brain) = (vec![1.0f32; words.len()], vec![1.0f32; pairs.len()]);
            let mut half = brain.clone();
            add_f32(isa, words, weight, &mut single);
            add_bf16(isa, pairs, weight, &mut brain);
            add_f16(isa, pairs, weight, &mut half);
            let bits = |values: &[f32]| values.iter().map(canonical).collect::<Vec<_>>();
            (bits(&single), bits(&brain), bits(&half), max_magnitude_bytes(isa, words), max_magnitude_narrow(isa, pairs))
        });
    }
}

/// Words that were updated, and one that never was.
fn word() -> impl Strategy<Value = Word> {
    let p = prop_oneof![LEAST..=MOST, LEAST..LEAST + 5000, MOST - 5000..=MOST];
    let seen = (p, 1..=COUNT_MASK).prop_map(|(p, count)| p << COUNT_BITS | count);
    prop_oneof![8 => seen, 1 => Just(0)]
}

proptest! {
    #[test]
    fn mixtures_in_vectors_are_those_of_the_plain_loop(
        words in [word(), word(), word()],
        unseen in LEAST..=MOST,
        log_odds in -2047..=2047,
        weights in prop_oneof![any::<[i32; 4]>(), [-3_000_000..3_000_000, -99..99, 0..9, 367_002..367_003]],
        error in -32_768..=32_767,
        bit in any::<bool>(),
    ) {
        prop_assert!(unseen < 1 << P_BITS);
        let mut weights = [Weights(weights); 2];
        let unseen = unseen << COUNT_BITS;
        let (here, its_sum) = mixing::weigh(words, mixing::PriorLanes::new(log_odds, unseen), &weights[0]);
        let (expected, sum) = plain_mixing::weigh(words, plain_mixing::PriorLanes::new(log_odds, unseen), &weights[1]);
        prop_assert_eq!(its_sum, sum);
        mixing::Change::none().apply(&mut weights[0]);
        here.change(error).apply(&mut weights[0]);
        plain_mixing::Change::none().apply(&mut weights[1]);
        expected.change(error).apply(&mut weights[1]);
        prop_assert_eq!(&weights[0].0[..INPUTS], &weights[1].0[..INPUTS]);
        prop_assert_eq!(here.learn(bit), expected.learn(bit));
    }

    #[test]
    fn shares_in_vectors_are_those_of_the_plain_loop(
        shares in any::<[Shares; 3]>(),
        weights in any::<[u16; 3]>(),
        base in any::<Shares>(),
        symbol in 0..SYMBOLS,
        most in prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)],
    ) {
        let all = shares.each_ref();
        prop_assert_eq!(shares::mix(&base, all, weights), plain_shares::mix(&base, all, weights));
        let mut ascending = base;
        ascending.sort_unstable();
        for most in ascending.into_iter().chain([most]) {
            prop_assert_eq!(shares::count_up_to(&ascending, most), plain_shares::count_up_to(&ascending, most));
        }
        let mut learnt = [base; 2];
        shares::learn(&mut learnt[0], weights[0], weights[1], symbol);
        plain_shares::learn(&mut learnt[1], weights[0], weights[1], symbol);
        prop_assert_eq!(learnt[0], learnt[1]);
    }
}
