//! How far a decoded mean is from the mean that nobody has: estimated from sums.

use gradwire::random::Stream;

/// Cells of a sketch. An estimated energy is off by a factor of about 1 ± √(2/32).
pub(crate) const CELLS: usize = 32;

/// A sketch of values: value i is added to cell i modulo 32 with the sign of draw i. The sketch of a sum is
/// the sum of the sketches, and the expected energy of a sketch is that of the values.
///
/// # Source
/// Alon, Matias, Szegedy: The Space Complexity of Approximating the Frequency Moments (STOC 1996), with a
/// cell for each value as in Charikar, Chen, Farach-Colton (ICALP 2002).
pub(crate) fn sketch(values: &[f32], signs: &Stream) -> [f32; CELLS] {
    let mut cells = [0.0; CELLS];
    for (number, block) in values.chunks(64).enumerate() {
        let signs = signs.u64_at(number as u64);
        for (at, value) in block.iter().enumerate() {
            let is_negative = signs >> at & 1 == 1;
            cells[at % CELLS] += if is_negative { -value } else { *value };
        }
    }
    cells
}

/// The sum of the squares.
pub(crate) fn energy(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::{Source, StepKey};

    fn stream(step: u64) -> Stream {
        StepKey { seed: 1, step, source: Source::Shared }.experiment(0)
    }

    #[test]
    fn the_sketch_of_a_sum_is_the_sum_of_the_sketches() {
        let [a, b]: [Vec<f32>; 2] =
            [3, 5].map(|by| (0..1000).map(|at| (at * by % 17) as f32 - 8.0).collect());
        let sum: Vec<_> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let [of_a, of_b, of_sum] = [&a, &b, &sum].map(|values| sketch(values, &stream(0)));
        assert!((0..CELLS).all(|cell| of_a[cell] + of_b[cell] == of_sum[cell]));
    }

    #[test]
    fn the_mean_energy_of_sketches_is_that_of_the_values() {
        let values: Vec<f32> = (0..1000).map(|at| (at * at % 89) as f32 - 44.0).collect();
        let estimates = (0..400).map(|step| f64::from(energy(&sketch(&values, &stream(step)))));
        let mean = estimates.sum::<f64>() / 400.0 / f64::from(energy(&values));
        // Four standard errors of √(2/32) over √400.
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }
}
