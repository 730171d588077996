//! Probabilities from scores, and their cross-entropy.

use super::exponential::exp;
use super::tiny::zero_if_tiny;

/// Partial sums of a row, so that the processor need not wait for one to be done.
const LANES: usize = 16;

/// Turns the scores of a row into probabilities, and returns the cross-entropy of the target.
#[inline(always)]
pub(super) fn probabilities(scores: &mut [f32], target: u32) -> f64 {
    let right = scores[target as usize];
    let largest = fold(scores, f32::NEG_INFINITY, |max, score| if score > max { score } else { max });
    scores.iter_mut().for_each(|score| *score = zero_if_tiny(exp(*score - largest)));
    let sum = fold(scores, 0.0, |sum, score| sum + score);
    let scale = 1.0 / sum;
    scores.iter_mut().for_each(|score| *score *= scale);
    f64::from(sum).ln() + f64::from(largest) - f64::from(right)
}

/// Turns the scores of a row into `share` times the gradient of the cross-entropy, which is returned.
#[inline(always)]
pub(super) fn gradient(scores: &mut [f32], target: u32, share: f32) -> f64 {
    let loss = probabilities(scores, target);
    scores[target as usize] -= 1.0;
    scores.iter_mut().for_each(|score| *score *= share);
    loss
}

/// Folds lane by lane, then the lanes, then what is left over.
#[inline(always)]
fn fold(values: &[f32], start: f32, with: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = with(*lane, value));
    }
    lanes.iter().chain(rest).fold(start, |so_far, &value| with(so_far, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_far_apart_leave_no_subnormal_numbers() {
        for spread in [1.0, 40.0, 50.0, 60.0, 87.0, 200.0, 1e30] {
            let start: Vec<f32> = (0..1000).map(|at| -spread * at as f32 / 1000.0).collect();
            let mut scores = start.clone();
            let loss = gradient(&mut scores, 7, 1.0 / 8960.0);
            let exact =
                start.iter().map(|&score| f64::from(score).exp()).sum::<f64>().ln() - f64::from(start[7]);
            assert!((loss - exact).abs() <= 1e-5 * exact.abs().max(1.0), "{spread}: {loss} {exact}");
            assert!(!scores.iter().any(|score| score.is_subnormal()), "{spread}");
            // What is left out is nothing beside the other entries.
            let sum: f64 = scores.iter().map(|&score| f64::from(score)).sum();
            assert!(sum.abs() < 1e-9, "{spread}: {sum}");
        }
    }

    #[test]
    fn a_score_that_is_no_number_stays_one() {
        let mut scores = [0.0, f32::NAN, -100.0];
        assert!(probabilities(&mut scores, 0).is_nan() && scores[1].is_nan());
    }
}
