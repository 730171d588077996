//! Sums over the steps of a run: the same memory for a million steps as for ten.

use std::collections::VecDeque;

use super::Metrics;

/// Steps over which the training loss of the summary is taken.
const LAST_STEPS: usize = 10;

/// Sums over the steps so far, all workers together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) steps: u64,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Workers whose gradients are in the means, but one for each step that has any.
    pub(crate) more_than_one: u64,
    pub(crate) encode_seconds: f64,
    pub(crate) exchange_seconds: f64,
    pub(crate) decode_seconds: f64,
    /// Of the last steps, oldest first.
    losses: VecDeque<f64>,
}

impl Sums {
    /// Adds the next step.
    pub(crate) fn add(&mut self, line: &Metrics) {
        let seconds = |ns: u64| ns as f64 * 1e-9;
        self.steps += 1;
        self.bytes_up += line.bytes_up;
        self.bytes_down += line.bytes_down;
        self.more_than_one += line.contributors.saturating_sub(1) as u64;
        self.encode_seconds += seconds(line.encode_ns);
        self.exchange_seconds += seconds(line.exchange_ns);
        self.decode_seconds += seconds(line.decode_ns);
        if self.losses.len() == LAST_STEPS {
            self.losses.pop_front();
        }
        self.losses.push_back(line.loss);
    }

    /// Mean training loss over the last steps; NaN before the first.
    pub(crate) fn train_loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }
}

impl<'a> FromIterator<&'a Metrics> for Sums {
    fn from_iter<I: IntoIterator<Item = &'a Metrics>>(lines: I) -> Self {
        let mut sums = Self::default();
        lines.into_iter().for_each(|line| sums.add(line));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64) -> Metrics {
        Metrics {
            step,
            epoch: 0,
            loss: step as f64,
            lr: 0.0,
            bytes_up: 3,
            bytes_down: 5,
            ratio: None,
            wire_ratio: None,
            contributors: 1,
            compute_ns: None,
            encode_ns: 1_000_000_000,
            exchange_ns: 0,
            decode_ns: 500_000_000,
            residual_norm: 0.0,
            density: 0.0,
            target_density: None,
            adapt: None,
            packet_loss: None,
            eval_loss: None,
            accuracy: None,
            perplexity: None,
            consensus_distance: None,
        }
    }

    #[test]
    fn sums_of_any_number_of_steps_take_the_room_of_ten() {
        let lines: Vec<Metrics> = (0..5000).map(line).collect();
        let mut sums: Sums = lines[..10].iter().collect();
        let room = sums.losses.capacity();
        assert_eq!(sums.train_loss(), 4.5);
        lines[10..].iter().for_each(|line| sums.add(line));
        assert_eq!(sums.losses.capacity(), room);
        assert_eq!((sums.steps, sums.bytes_up, sums.bytes_down), (5000, 15_000, 25_000));
        assert_eq!((sums.encode_seconds, sums.exchange_seconds, sums.decode_seconds), (5000.0, 0.0, 2500.0));
        assert_eq!(sums.train_loss(), 4994.5);
    }
}
