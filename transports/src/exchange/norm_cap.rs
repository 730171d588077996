//! A bound on the influence of one member on the mean: frames with a much larger norm than the others' are
//! scaled down.

use std::fmt;

use super::error::ExchangeError;
use super::message::Message;
use crate::rank::Rank;

/// Number of norms over which the running median is taken.
const WINDOW: usize = 64;
/// The fewest norms for which the median is used.
const ENOUGH: usize = 8;

/// A frame whose norm was too large, and which was scaled down to the cap. The rest is lost; its sender is
/// not told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capped {
    /// The sender of the frame.
    pub rank: Rank,
    /// Its Euclidean norm as it was decoded.
    pub norm: f64,
    /// The running median with which it was compared.
    pub median: f64,
    /// Norm of the part that did not enter the sum.
    pub lost_norm: f64,
}

impl fmt::Display for Capped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, norm, median, lost_norm } = self;
        write!(f, "frame of {rank} scaled down: its norm is {norm:.6}, the median {median:.6}; ")?;
        write!(f, "lost: norm {lost_norm:.6}")
    }
}

/// The norms of the last frames, and the frames that were scaled down.
#[derive(Debug)]
pub(super) struct NormCap {
    multiple: f64,
    /// A ring, once it is full.
    norms: Vec<f64>,
    oldest: usize,
    sorted: Vec<f64>,
    capped: Vec<Capped>,
}

impl NormCap {
    /// Fails for a multiple that would scale down the median itself.
    pub(super) fn new(multiple: f32) -> Result<Self, ExchangeError> {
        if !(multiple.is_finite() && multiple >= 1.0) {
            return Err(ExchangeError::NormCap { multiple });
        }
        let [norms, sorted] = [(); 2].map(|()| Vec::with_capacity(WINDOW));
        Ok(Self { multiple: multiple.into(), norms, oldest: 0, sorted, capped: Vec::new() })
    }

    /// The norms over which the median is taken, oldest first.
    pub(super) fn norms(&self) -> Vec<f64> {
        let (newer, older) = self.norms.split_at(self.oldest);
        [older, newer].concat()
    }

    /// Continues from [`norms`](Self::norms). Values that cannot be norms are left out.
    pub(super) fn restore(&mut self, norms: &[f64]) {
        self.norms.clear();
        self.oldest = 0;
        norms.iter().filter(|norm| norm.is_finite() && **norm > 0.0).for_each(|&norm| self.keep(norm));
    }

    pub(super) fn begin_step(&mut self) {
        self.capped.clear();
    }

    /// The frames that were scaled down in this step.
    pub(super) fn capped(&self) -> &[Capped] {
        &self.capped
    }

    /// The weight of a message in the sum: 1 unless its norm is too large. Its own norm counts from the next
    /// frame on.
    pub(super) fn weigh(&mut self, rank: Rank, message: &Message<'_>) -> f32 {
        self.weigh_norm(rank, norm(message))
    }

    fn weigh_norm(&mut self, rank: Rank, norm: f64) -> f32 {
        let median = self.median();
        // Empty frames do not count: a median of zero would scale all other frames down to zero.
        if norm > 0.0 {
            self.keep(norm);
        }
        let Some(median) = median.filter(|median| norm > self.multiple * median) else { return 1.0 };
        let weight = (self.multiple * median / norm) as f32;
        let lost_norm = norm * (1.0 - f64::from(weight));
        self.capped.push(Capped { rank, norm, median, lost_norm });
        weight
    }

    fn keep(&mut self, norm: f64) {
        if self.norms.len() < WINDOW {
            return self.norms.push(norm);
        }
        self.norms[self.oldest] = norm;
        self.oldest = (self.oldest + 1) % WINDOW;
    }

    /// The median; of an even number of norms the lower of the two, so that a rank that sends half of all
    /// frames does not choose it.
    fn median(&mut self) -> Option<f64> {
        if self.norms.len() < ENOUGH {
            return None;
        }
        self.sorted.clone_from(&self.norms);
        let middle = (self.sorted.len() - 1) / 2;
        Some(*self.sorted.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

/// The Euclidean norm of a decoded message, summed in f64: frames in their order, coordinates ascending.
fn norm(message: &Message<'_>) -> f64 {
    let mut squares = 0.0;
    for unit in message.units() {
        unit.for_each(|_, value| squares += f64::from(value) * f64::from(value));
    }
    squares.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median_of(norms: &[f64]) -> f64 {
        let mut last: Vec<f64> = norms.iter().copied().filter(|&norm| norm > 0.0).rev().take(64).collect();
        last.sort_by(f64::total_cmp);
        last[(last.len() - 1) / 2]
    }

    #[test]
    fn a_norm_is_held_against_the_median_of_the_last_64_before_it() {
        let mut cap = NormCap::new(2.0).unwrap();
        let mut norms = Vec::new();
        for at in 0..300u32 {
            let norm = f64::from(at * 37 % 101) * if at % 3 == 0 { 9.0 } else { 0.5 };
            let weight = cap.weigh_norm(Rank(1), norm);
            let kept = norms.iter().filter(|&&norm| norm > 0.0).count();
            let bound = if kept < 8 { f64::INFINITY } else { 2.0 * median_of(&norms) };
            let expected = if norm > bound { (bound / norm) as f32 } else { 1.0 };
            assert_eq!(weight, expected, "frame {at}");
            norms.push(norm);
        }
        assert!((50..150).contains(&cap.capped().len()), "{}", cap.capped().len());
        for Capped { norm, median, lost_norm, .. } in cap.capped() {
            assert!(
                (norm - 2.0 * median - lost_norm).abs() < 1e-4,
                "{norm} - 2 * {median} is not {lost_norm}"
            );
        }
        cap.begin_step();
        assert_eq!(cap.capped(), []);
    }

    #[test]
    fn a_restored_cap_goes_on_as_the_one_that_was_saved() {
        let norm = |at: u32| f64::from(at * 37 % 101) + 0.1;
        for before in [0, 3, 64, 90, 128] {
            let [mut first, mut second] = [(); 2].map(|()| NormCap::new(1.5).unwrap());
            for at in 0..before {
                first.weigh_norm(Rank(1), norm(at));
            }
            second.restore(&[&[f64::NAN, -1.0, 0.0][..], &first.norms()].concat());
            for at in before..before + 100 {
                let weights = [&mut first, &mut second].map(|cap| cap.weigh_norm(Rank(1), norm(at)));
                assert_eq!(weights[0], weights[1], "frame {at} after {before}");
            }
        }
    }

    #[test]
    fn half_of_all_frames_do_not_lift_the_median_and_empty_ones_do_not_lower_it() {
        let mut cap = NormCap::new(3.0).unwrap();
        for _ in 0..100 {
            for (norm, is_capped) in [(1.0, false), (0.0, false), (1000.0, true)] {
                let weight = cap.weigh_norm(Rank(0), norm);
                assert_eq!(weight < 1.0, is_capped && cap.norms.len() > 8, "{norm}");
            }
        }
        assert!(cap.capped().iter().all(|capped| capped.median == 1.0));
    }

    #[test]
    fn a_multiple_is_finite_and_at_least_1() {
        assert!(NormCap::new(1.0).is_ok());
        for multiple in [0.999, 0.0, -2.0, f32::INFINITY, f32::NAN] {
            assert!(matches!(NormCap::new(multiple), Err(ExchangeError::NormCap { .. })), "{multiple}");
        }
    }
}
