//! Masks of dropout, from the run's own draws.

use super::network::Moment;
use crate::rng::{Draws, Purpose};

/// One mask after the other, of one step and worker.
pub(super) struct Dropout {
    draws: Draws,
    /// A draw of 32 bits below this drops.
    below: u64,
    scale: f32,
}

impl Dropout {
    /// Masks that drop with probability `rate`, below 1, and multiply the other values by 1 / (1 − `rate`).
    pub(super) fn new(rate: f64, at: Moment) -> Self {
        Self {
            draws: Draws::new(at.seed, Purpose::Dropout, at.step, at.rank),
            below: (rate * (1_u64 << 32) as f64) as u64,
            scale: (1.0 / (1.0 - rate)) as f32,
        }
    }

    /// Drops some of the values; returns the factor of each.
    pub(super) fn drop_some(&mut self, values: &mut [f32]) -> Vec<f32> {
        let mut factors = Vec::with_capacity(values.len());
        for pair in values.chunks_mut(2) {
            let word = self.draws.next_u64();
            for (value, draw) in pair.iter_mut().zip([word >> 32, word & 0xffff_ffff]) {
                let factor = if draw < self.below { 0.0 } else { self.scale };
                *value *= factor;
                factors.push(factor);
            }
        }
        factors
    }
}
