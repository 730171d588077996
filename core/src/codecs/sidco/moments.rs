//! Sums over magnitudes, in one fixed order.

use crate::kernels::scalar::total_of;
use crate::kernels::{self, Candidates, Isa, MomentSums, STRIDES};

/// The moments that the fits need, of the magnitudes that exceed a threshold, less that threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moments {
    /// Number of magnitudes.
    pub(super) count: u64,
    /// Their mean.
    pub(super) mean: f64,
    /// Their unbiased variance; 0 for fewer than two.
    pub(super) variance: f64,
}

/// Running sums of the excesses over a threshold, block by block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excesses {
    /// Magnitude bits of the smallest value that counts, never 0.
    least: u32,
    /// Subtracted from each magnitude.
    threshold: f64,
    sums: MomentSums,
}

impl Excesses {
    pub(super) fn new(least: u32, threshold: f64) -> Self {
        Self { least, threshold, sums: MomentSums::default() }
    }

    /// Adds the elements of one block of the unit, which begins at a multiple of the number of lanes.
    pub(super) fn add(&mut self, isa: Isa, p: &[u32]) {
        kernels::add_moments(isa, p, self.least, self.threshold, &mut self.sums);
    }

    /// Adds one block as [`add`](Self::add) does, if every value that is not zero counts and nothing is
    /// subtracted. Without `has_variance`, skips the sum that only the variance needs.
    pub(super) fn add_all(&mut self, isa: Isa, p: &[u32], has_variance: bool) {
        debug_assert!(self.least == 1 && self.threshold == 0.0, "some do not count");
        if has_variance {
            kernels::add_magnitudes(isa, p, &mut self.sums);
        } else {
            kernels::sum_magnitudes(isa, p, &mut self.sums);
        }
    }

    /// Adds all candidates; every one of them counts.
    pub(super) fn add_candidates(&mut self, candidates: &Candidates<'_>) {
        let (positions, values) =
            (&candidates.indices[..candidates.len], &candidates.values[..candidates.len]);
        kernels::add_moments_at(positions, values, self.threshold, &mut self.sums);
    }

    pub(super) fn moments(&self) -> Moments {
        let count: u64 = self.sums.count.iter().sum();
        let (sum, squares) = (total_of(self.sums.sum), total_of(self.sums.squares));
        let mean = if count == 0 { 0.0 } else { sum / count as f64 };
        let variance = if count < 2 { 0.0 } else { (squares - sum * mean) / (count - 1) as f64 };
        Moments { count, mean, variance }
    }
}

/// Sum of the logarithms of all magnitudes that are not zero. It keeps their product as mantissas in [1, 2)
/// and as exponents, in eight strides of each, and normalises it after every block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logarithms {
    mantissas: [f64; STRIDES],
    exponents: [i64; STRIDES],
}

impl Logarithms {
    pub(super) fn new() -> Self {
        Self { mantissas: [1.0; STRIDES], exponents: [0; STRIDES] }
    }

    /// Multiplies in one block of at most 1024 elements: a product of 128 mantissas is below 2¹²⁸.
    pub(super) fn add(&mut self, isa: Isa, p: &[u32]) {
        kernels::multiply_magnitudes(isa, p, &mut self.mantissas, &mut self.exponents);
        for (mantissa, exponent) in self.mantissas.iter_mut().zip(&mut self.exponents) {
            let (fraction, more) = kernels::mantissa_and_exponent(*mantissa);
            *mantissa = fraction;
            *exponent += more;
        }
    }

    pub(super) fn sum(&self) -> f64 {
        let exponent: i64 = self.exponents.iter().sum();
        let logarithms = self.mantissas.map(libm::log);
        exponent as f64 * core::f64::consts::LN_2 + total_of(logarithms)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::kernels::scalar::MAGNITUDE;
    use std::vec::Vec;

    fn magnitudes() -> Vec<f32> {
        (0..5000).map(|i| f32::from_bits(i * 400_000)).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().enumerate().map(|(i, value)| value.to_bits() | (i as u32 % 2) << 31).collect()
    }

    #[test]
    fn moments_are_those_of_the_excesses() {
        let values: Vec<f32> = (0..5000).map(|i| (i * 7919 % 5000) as f32 / 100.0).collect();
        for (least, threshold) in
            [(1, 0.0), (2.5f32.to_bits() + 1, 2.5), (49.99f32.to_bits(), 49.0), (60f32.to_bits(), 60.0)]
        {
            let expected: Vec<f64> = values
                .iter()
                .filter(|value| value.to_bits() >= least)
                .map(|&value| f64::from(value) - threshold)
                .collect();
            for isa in Isa::available() {
                let mut excesses = Excesses::new(least, threshold);
                bits(&values).chunks(1024).for_each(|block| excesses.add(isa, block));
                let moments = excesses.moments();
                // The kept elements have the same sums, bit for bit.
                let p = bits(&values);
                let (mut indices, mut kept): (Vec<u32>, Vec<u32>) =
                    (0..).zip(p).filter(|(_, bits)| bits & MAGNITUDE >= least).unzip();
                let len = kept.len();
                let mut kept_excesses = Excesses::new(least, threshold);
                let candidates = Candidates { indices: &mut indices, values: &mut kept, len };
                kept_excesses.add_candidates(&candidates);
                assert_eq!(kept_excesses.moments(), moments);
                assert_eq!(moments.count, expected.len() as u64);
                let n = expected.len() as f64;
                let mean = expected.iter().sum::<f64>() / n.max(1.0);
                let squares: f64 = expected.iter().map(|x| (x - mean) * (x - mean)).sum();
                assert!((moments.mean - mean).abs() <= 1e-12 * mean.abs(), "{moments:?}");
                let variance = if n < 2.0 { 0.0 } else { squares / (n - 1.0) };
                assert!(
                    (moments.variance - variance).abs() <= 1e-9 * (1.0 + variance),
                    "{moments:?} {variance}"
                );
            }
        }
    }

    #[test]
    fn all_magnitudes_have_the_sums_of_those_that_exceed_zero() {
        let p = bits(&magnitudes());
        let mut zeros = p.clone();
        zeros.iter_mut().step_by(3).for_each(|bits| *bits &= !MAGNITUDE);
        for isa in Isa::available() {
            for (p, len) in [(&p, 5000), (&p, 4999), (&zeros, 5000), (&zeros, 3)] {
                let [mut expected, mut all, mut without] = [Excesses::new(1, 0.0); 3];
                for block in p[..len].chunks(1024) {
                    expected.add(isa, block);
                    all.add_all(isa, block, true);
                    without.add_all(isa, block, false);
                }
                assert_eq!(all.moments(), expected.moments());
                let (expected, without) = (expected.moments(), without.moments());
                assert_eq!((without.count, without.mean), (expected.count, expected.mean));
            }
        }
    }

    #[test]
    fn logarithms_of_every_magnitude_add_up() {
        let values = magnitudes();
        let nonzero = values.iter().filter(|value| **value != 0.0);
        let expected: f64 = nonzero.map(|&value| libm::log(f64::from(value))).sum();
        for isa in Isa::available() {
            let mut logarithms = Logarithms::new();
            bits(&values).chunks(1024).for_each(|block| logarithms.add(isa, block));
            assert!(
                (logarithms.sum() - expected).abs() < 1e-8 * expected.abs(),
                "{} {expected}",
                logarithms.sum()
            );
        }
    }
}
