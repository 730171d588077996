//! From a sum of decoded frames to their mean.

use crate::kernels::{self, Isa};

/// Sets a sum to +0.0 before frames are added to it. `of` is the number of values that are written before
/// these are read again: all that are cleared in the step. If they are many, the zeros go past the caches,
/// where they would drive out what is read meanwhile.
///
/// # Examples
/// ```
/// let mut sum = [1.0, f32::NAN];
/// gradwire::arithmetic::clear(&mut sum, 2);
/// assert_eq!(sum, [0.0, 0.0]);
/// ```
pub fn clear(sum: &mut [f32], of: usize) {
    if of < kernels::NON_TEMPORAL_LEN {
        sum.fill(0.0);
    } else {
        kernels::clear(Isa::best(), sum);
    }
}

/// Divides a sum by the number of its contributors, each coordinate once and rounded once. Returns the first
/// coordinate of the result that is not finite, if there is one; the whole sum is divided even then.
///
/// # Examples
/// ```
/// let mut sum = [1.0, -6.0, f32::INFINITY];
/// assert_eq!(gradwire::arithmetic::divide(&mut sum, 4), Some(2));
/// assert_eq!(sum[..2], [0.25, -1.5]);
/// ```
#[must_use = "a mean that is not finite must not reach the parameters"]
pub fn divide(sum: &mut [f32], contributors: usize) -> Option<usize> {
    if kernels::divide(Isa::best(), sum, contributors as f32) { None } else { first_non_finite(sum) }
}

/// Divides each coordinate of a sum by its own count, rounded once. If the count is 0, the mean is +0.0.
/// Returns the first coordinate of the result that is not finite, if there is one. If each count is the
/// number of frames that held the coordinate, the result is the mean over senders
/// ([`Divisor::Senders`](crate::format::Divisor::Senders)).
///
/// # Panics
/// When sum and counts differ in length.
///
/// # Examples
/// ```
/// let mut sum = [1.0, -6.0, 7.0];
/// assert_eq!(gradwire::arithmetic::divide_by_counts(&mut sum, &[1, 4, 0]), None);
/// assert_eq!(sum, [1.0, -1.5, 0.0]);
/// ```
#[must_use = "a mean that is not finite must not reach the parameters"]
pub fn divide_by_counts(sum: &mut [f32], counts: &[u32]) -> Option<usize> {
    assert_eq!(sum.len(), counts.len(), "sum and counts differ in length");
    for (sum, &count) in sum.iter_mut().zip(counts) {
        *sum = if count == 0 { 0.0 } else { *sum / count as f32 };
    }
    first_non_finite(sum)
}

/// The first coordinate that is NaN or infinite, if there is one.
#[must_use]
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    /// Coordinates in a block, which is checked as a whole, several at once.
    const BLOCK: usize = 1024;
    let isa = Isa::best();
    let at = BLOCK * values.chunks(BLOCK).position(|block| !kernels::are_finite(isa, block))?;
    Some(at + values[at..].iter().position(|value| !value.is_finite())?)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn everything_is_cleared_and_nothing_beside_it() {
        for isa in Isa::available() {
            for (first, len) in (0..17).flat_map(|first| (0..70).map(move |len| (first, len))) {
                let mut values: Vec<f32> = (0..100).map(|i| i as f32 - 0.5).collect();
                kernels::clear(isa, &mut values[first..first + len]);
                let is_inside = |at: usize| (first..first + len).contains(&at);
                let expected = |at: usize| if is_inside(at) { 0.0f32 } else { at as f32 - 0.5 };
                assert!((0..100).all(|at| values[at].to_bits() == expected(at).to_bits()), "{first}, {len}");
            }
        }
        let mut values = [f32::NAN; 9];
        for of in [9, usize::MAX] {
            clear(&mut values, of);
            assert_eq!(core::mem::replace(&mut values, [f32::NAN; 9]), [0.0; 9]);
        }
    }

    #[test]
    fn the_first_broken_coordinate_is_found_wherever_it_is() {
        for len in [0, 1, 1023, 1024, 1025, 3000] {
            let whole: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut mean = whole.clone();
            assert_eq!((first_non_finite(&mean), divide(&mut mean, 3)), (None, None));
            assert!(mean.iter().zip(&whole).all(|(mean, sum)| *mean == sum / 3.0));
            for at in [0, 1, 1022, 1023, 1024, 2999].into_iter().filter(|at| *at < len) {
                for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut sum = whole.clone();
                    (sum[at], sum[len - 1]) = (broken, broken);
                    assert_eq!((first_non_finite(&sum), divide(&mut sum, 3)), (Some(at), Some(at)));
                }
            }
        }
    }

    /// All exponents, including subnormal numbers and both zeros, with digits that have to be rounded away.
    #[test]
    fn every_count_divides_as_the_operator_does() {
        let values: Vec<f32> =
            (0..1 << 16).map(|high| f32::from_bits(high << 16 | 0x5a5b)).filter(|x| x.is_finite()).collect();
        for contributors in (1..=17).chain([64, 100, 1 << 16, 1 << 24]) {
            for isa in Isa::available() {
                let mut divided = values.clone();
                assert!(kernels::divide(isa, &mut divided, contributors as f32));
                let expected = values.iter().map(|value| value / contributors as f32);
                assert!(
                    divided.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{contributors}"
                );
            }
        }
    }
}
