//! Probabilities from scores, and their cross-entropy.

use super::exponential::exp;

/// Partial sums of a row, so that the processor need not wait for one to be done.
const LANES: usize = 16;

/// Turns the scores of a row into probabilities, and returns the cross-entropy of the target.
#[inline(always)]
pub(super) fn probabilities(scores: &mut [f32], target: u32) -> f64 {
    let right = scores[target as usize];
    let largest = fold(scores, f32::NEG_INFINITY, |max, score| if score > max { score } else { max });
    scores.iter_mut().for_each(|score| *score = exp(*score - largest));
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
