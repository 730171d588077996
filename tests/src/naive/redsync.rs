//! Redsync: a threshold between the mean and the largest magnitude, found by halving.

use super::encode::{count, largest};
use gradwire::codecs::Redsync;

/// Positions of what is sent, before the value coder.
#[must_use]
pub fn select(redsync: &Redsync, p: &[f32]) -> Vec<usize> {
    let magnitudes: Vec<f64> = p.iter().map(|value| f64::from(value.abs())).collect();
    let k = count(redsync.density(), p.len());
    let most = magnitudes.iter().copied().fold(0.0, f64::max);
    if most == 0.0 {
        return Vec::new();
    }
    // Sums by stride, and their tree.
    let q: Vec<f64> =
        (0..8).map(|j| magnitudes.iter().skip(j).step_by(8).fold(0.0, |sum, x| sum + x)).collect();
    let sum = ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
    let mean = sum / p.len() as f64;
    let (mut low, mut high) = (0.0, 1.0);
    loop {
        let r: f64 = (low + high) / 2.0;
        let threshold = mean + r * (most - mean);
        let mut sent: Vec<usize> = (0..p.len()).filter(|&i| magnitudes[i] > threshold).collect();
        if sent.is_empty() {
            sent = (0..p.len()).filter(|&i| magnitudes[i] == most).collect();
        }
        let found = sent.len();
        if (k..=2 * k).contains(&found) {
            return sent;
        }
        if found < k {
            high = r;
        } else {
            low = r;
        }
        if high - low <= redsync.width() {
            return if found > 2 * k { largest(p, k) } else { sent };
        }
    }
}
