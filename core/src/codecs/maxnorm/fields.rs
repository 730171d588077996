//! Sums of levels in fields of an i32.

use super::MaxNorm;
use super::scales::{Scales, signed};
use crate::corrected::BLOCK;
use crate::rng::Stream;

/// Bits of an i32 that fields may fill: the sign stays clear.
const WORD_BITS: u32 = 31;

impl MaxNorm {
    /// The most workers whose sum of levels fits a word.
    pub(super) fn most_workers(self) -> u32 {
        i32::MAX as u32 / (2 * self.levels())
    }

    /// Bits of a field in which `workers` levels are summed.
    ///
    /// # Panics
    /// If there are more workers than [`most_workers`](Self::most_workers).
    fn field_bits(self, workers: u32) -> u32 {
        let largest = 2 * u64::from(workers) * u64::from(self.levels());
        let bits = u64::BITS - largest.leading_zeros();
        assert!(bits <= WORD_BITS, "{workers} workers: the sum of their levels does not fit a word");
        bits
    }

    /// Rounds the values and packs their levels into words; returns how many.
    pub(super) fn pack(
        self,
        values: &[u32],
        scales: &Scales<'_>,
        stream: Option<&Stream>,
        workers: u32,
        words: &mut [i32],
    ) -> usize {
        let field_bits = self.field_bits(workers);
        let per_word = (WORD_BITS / field_bits) as usize;
        let bias = self.levels() as i32;
        let mut fields = [0; BLOCK];
        let mut count = 0;
        // Each block fills whole words.
        let block = BLOCK / per_word * per_word;
        for (first, values) in (0..).step_by(block).zip(values.chunks(block)) {
            let fields = &mut fields[..values.len()];
            scales.quantize(first, values, stream, fields);
            for fields in fields.chunks(per_word) {
                let shifts = (0..).step_by(field_bits as usize);
                let word = fields.iter().zip(shifts).map(|(&field, shift)| (bias + signed(field)) << shift);
                words[count] = word.sum::<i32>();
                count += 1;
            }
        }
        count
    }

    /// Calls `f` with the position and the sum of each of `len` levels of `workers` workers.
    pub(super) fn for_each_sum(self, sums: &[i32], len: usize, workers: u32, mut f: impl FnMut(usize, i32)) {
        let field_bits = self.field_bits(workers);
        let per_word = (WORD_BITS / field_bits) as usize;
        let (bias, mask) = ((workers * self.levels()) as i32, ((1u32 << field_bits) - 1) as i32);
        for (first, &sum) in (0..len).step_by(per_word).zip(sums) {
            for (i, shift) in (first..len.min(first + per_word)).zip((0..).step_by(field_bits as usize)) {
                f(i, (sum >> shift & mask) - bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    #[test]
    fn the_largest_sum_of_any_number_of_workers_fits_its_field() {
        let by_bits = (2..=8).map(|bits| (bits, MaxNorm::new(bits).unwrap()));
        let counted = [1, 4, 5, 16, 64, 100, 127].map(|levels| (levels, MaxNorm::of_levels(levels).unwrap()));
        for (bits, codec) in by_bits.chain(counted) {
            for workers in (1..2000).chain([1 << 16, (1 << 22) - 1, codec.most_workers()]) {
                let largest = u64::from(2 * codec.levels()) * u64::from(workers);
                let field_bits = codec.field_bits(workers);
                assert!(largest < 1 << field_bits, "{bits}, {workers} workers");
                assert!(largest >= 1 << (field_bits - 1), "{bits}, {workers} workers: too wide");
            }
        }
    }

    #[test]
    #[should_panic(expected = "does not fit a word")]
    fn one_worker_more_than_the_most_does_not_fit() {
        let codec = MaxNorm::of_levels(100).unwrap();
        codec.field_bits(codec.most_workers() + 1);
    }

    /// All workers send the largest level of either sign, on either scale.
    #[test]
    fn sums_of_extreme_levels_come_back() {
        for (bits, fine) in [2, 4, 8].into_iter().flat_map(|bits| [(bits, None), (bits, Some(16))]) {
            let codec = MaxNorm::new(bits).unwrap();
            for workers in [1u32, 2, 3, 16, 1000, codec.most_workers()] {
                let spanning = fine.map_or(codec.levels(), |bits| (1 << (bits - 1)) - 1);
                let largest = codec.levels() as f32 / spanning as f32;
                let values: Vec<u32> = (0..2500).map(|i| [largest, -largest][i % 2].to_bits()).collect();
                let mask = [u32::MAX; 2500usize.div_ceil(32)];
                let scales = Scales::new(1.0, codec.levels(), fine.map(|_| (spanning, &mask[..])));
                let stream = Stream::new(1, 2, 3, 4, crate::rng::Purpose::Rounding);
                let mut words = vec![0; values.len()];
                let count = codec.pack(&values, &scales, Some(&stream), workers, &mut words);
                let sums: Vec<i32> =
                    words[..count].iter().map(|word| word.checked_mul(workers as i32).unwrap()).collect();
                let mut seen = 0;
                codec.for_each_sum(&sums, values.len(), workers, |i, sum| {
                    let mean = scales.scale_at(i) * sum as f32 / workers as f32;
                    assert!(
                        (mean - f32::from_bits(values[i])).abs() < 1e-6,
                        "{bits} bits, {workers} workers"
                    );
                    seen += 1;
                });
                assert_eq!(seen, values.len());
            }
        }
    }
}
