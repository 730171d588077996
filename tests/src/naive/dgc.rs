//! Deep Gradient Compression: momentum ahead of the residual, and the sampled threshold.

use super::draws::{Draws, Purpose};
use super::encode::{billionths, count, largest};
use gradwire::codecs::{Dgc, Momentum};
use gradwire::{Density, StepKey};

/// Momentum after the gradient, and the step.
#[must_use]
pub fn advance(rule: Momentum, momentum: &[f32], grad: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let advanced: Vec<f32> = momentum
        .iter()
        .zip(grad)
        .map(|(u, g)| if rule.is_nesterov() { rule.factor() * (u + g) } else { rule.factor() * u + g })
        .collect();
    let step = advanced.iter().zip(grad).map(|(u, g)| if rule.is_nesterov() { u + g } else { *u });
    let step = step.collect();
    (advanced, step)
}

/// ⌈numerator / denominator⌉
fn ceiling(numerator: u128, denominator: u128) -> usize {
    usize::try_from(numerator.div_ceil(denominator)).unwrap_or(usize::MAX)
}

/// Positions of the sample, and the magnitude that its ⌈density·s⌉ largest reach.
#[must_use]
pub fn threshold(density: Density, sample: Density, draws: &Draws, p: &[f32]) -> f32 {
    let two = ceiling(2_000_000_000, billionths(density));
    let s = count(sample, p.len()).max(two).min(p.len());
    let offset = draws.below_at(0, p.len() as u64) as usize;
    let mut sampled: Vec<f32> = (0..s).map(|i| p[(i * p.len() + offset) / s].abs()).collect();
    sampled.sort_by(|a, b| b.total_cmp(a));
    sampled[ceiling(s as u128 * billionths(density), 1_000_000_000) - 1]
}

/// Positions of what is sent, before the value coder.
#[must_use]
pub fn select(dgc: &Dgc, key: StepKey, unit: u32, p: &[f32]) -> Vec<usize> {
    if p.is_empty() {
        return Vec::new();
    }
    let draws = Draws::new(key, unit, Purpose::Selection);
    let k = count(dgc.density(), p.len());
    let mut threshold = threshold(dgc.density(), dgc.sample(), &draws, p);
    let reaching = |threshold: f32| -> Vec<usize> {
        (0..p.len()).filter(|&i| p[i].abs() >= threshold && p[i] != 0.0).collect()
    };
    let mut selected = reaching(threshold);
    for _ in 0..10 {
        if selected.len() * 10 < 8 * k {
            threshold *= 0.8;
            selected = reaching(threshold);
        }
    }
    if selected.len() * 10 > 13 * k { largest(p, k) } else { selected }
}
