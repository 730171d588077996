//! QSGD with one range for all workers: what the sum of integers has to come to.

use super::draws::{Draws, Purpose};
use super::levels::{bucket_norm, level};
use gradwire::codecs::Norm;
use gradwire::{Source, StepKey};

/// The mean of the workers' levels of at most `s`, where worker `i` has rank `i`.
#[must_use]
pub fn mean(s: u32, key: StepKey, unit: u32, grads: &[Vec<f32>]) -> Vec<f32> {
    let range = grads.iter().map(|grad| bucket_norm(Norm::Max, grad)).fold(0.0, f32::max);
    let mut sums = vec![0i64; grads[0].len()];
    for (rank, grad) in grads.iter().enumerate().filter(|_| range != 0.0) {
        let draws = Draws::new(StepKey { source: Source::Rank(rank as u32), ..key }, unit, Purpose::Rounding);
        for (i, (sum, &value)) in sums.iter_mut().zip(grad).enumerate() {
            let (level, is_negative) = level(value, range, s, Some(draws.u16_at(i as u64)));
            *sum += if is_negative { -i64::from(level) } else { i64::from(level) };
        }
    }
    sums.iter().map(|&sum| range / s as f32 * sum as f32 / grads.len() as f32).collect()
}
