//! Coordinates that all workers share, found by a count-sketch of the sum or by one of them, coordinate by
//! coordinate; and what workers keep.

use super::draws::{Draws, Purpose};
use super::encode::{count, largest};
use super::sketch::{estimates, keys, sketch, sum};
use gradwire::codecs::{SharedBy, SharedFeedback, SharedK, SketchSize};
use gradwire::{Source, StepKey};

/// Cells of one row.
#[must_use]
pub fn columns(size: SketchSize, sought: usize) -> usize {
    (sought * usize::from(size.columns())).div_ceil(16).max(1) * 16
}

/// The coordinates that the workers agree on, ascending, and the sums of their values.
#[must_use]
pub fn candidates(codec: &SharedK, key: StepKey, unit: u32, p: &[Vec<f32>]) -> (Vec<usize>, Vec<f32>) {
    let SharedBy::Sketch { size, candidates } = codec.by() else { panic!("there is no sketch") };
    let n = p[0].len();
    let sought = (count(codec.density(), n) * usize::from(candidates)).min(n);
    let (keys, columns) = (keys(size.rows(), key, unit), columns(size, sought));
    let found: Vec<usize> = if n == 0 || keys.len() * columns + sought >= n {
        (0..n).collect()
    } else {
        let table = sum(&p.iter().map(|p| sketch(&keys, columns, p)).collect::<Vec<_>>());
        largest(&estimates(&keys, columns, &table, n), sought)
    };
    let values: Vec<Vec<f32>> = p.iter().map(|p| found.iter().map(|&i| p[i]).collect()).collect();
    (found, sum(&values))
}

/// What a rank bids for the lead.
#[must_use]
pub fn bid(key: StepKey, unit: u32, rank: u64) -> u64 {
    let draw = Draws::new(StepKey { source: Source::Shared, ..key }, unit, Purpose::Selection).u64_at(0);
    let x = (rank * ((draw % (1 << 32)) | 1) + (draw >> 32)) % (1 << 24);
    (x ^ (x >> 12)) * 10_368_889 % (1 << 24)
}

/// The same by the coordinates of one worker.
fn led(codec: &SharedK, key: StepKey, unit: u32, p: &[Vec<f32>]) -> (Vec<f32>, Vec<usize>) {
    let n = p[0].len();
    let k = count(codec.density(), n);
    let leader = (0..p.len()).max_by_key(|&rank| bid(key, unit, rank as u64)).expect("a worker");
    let sent = if 2 * k + 1 >= n { (0..n).collect() } else { largest(&p[leader], k) };
    let mut mean = vec![0.0; n];
    for &at in &sent {
        mean[at] = p[1..].iter().fold(p[0][at], |sum, p| sum + p[at]) / p.len() as f32;
    }
    (mean, sent)
}

/// The mean, and the coordinates that every worker has sent.
#[must_use]
pub fn step(codec: &SharedK, key: StepKey, unit: u32, p: &[Vec<f32>]) -> (Vec<f32>, Vec<usize>) {
    if codec.by() == SharedBy::Leader {
        return led(codec, key, unit, p);
    }
    let n = p[0].len();
    let (found, sums) = candidates(codec, key, unit, p);
    let sent =
        if found.len() == n && n > 0 { (0..n).collect() } else { largest(&sums, count(codec.density(), n)) };
    let mut mean = vec![0.0; n];
    sent.iter().for_each(|&at| mean[found[at]] = sums[at] / p.len() as f32);
    (mean, sent.into_iter().map(|at| found[at]).collect())
}

/// What one worker keeps of one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// With a residual: what was not sent, filtered.
    pub residual: Vec<f32>,
    /// With an estimate: v.
    pub momentum: Vec<f32>,
    /// h
    pub estimate: Vec<f32>,
    /// H
    pub mean: Vec<f32>,
}

impl Kept {
    /// Before the first step.
    #[must_use]
    pub fn new(n: usize) -> Self {
        let zeros = || vec![0.0; n];
        Self { residual: zeros(), momentum: zeros(), estimate: zeros(), mean: zeros() }
    }

    /// The values of a step, whose coordinates are chosen and summed.
    #[must_use]
    pub fn values(&mut self, feedback: SharedFeedback, grad: &[f32]) -> Vec<f32> {
        let SharedFeedback::Estimate { momentum } = feedback else {
            return self.residual.iter().zip(grad).map(|(m, g)| m + g).collect();
        };
        for (v, g) in self.momentum.iter_mut().zip(grad) {
            *v = if momentum == 0.0 { *g } else { momentum * *v + (1.0 - momentum) * g };
        }
        self.momentum.iter().zip(&self.estimate).map(|(v, h)| v - h).collect()
    }

    /// What the step makes of the values, of the coordinates that were sent and of their mean: its own mean.
    #[must_use]
    pub fn finish(&mut self, feedback: SharedFeedback, p: &[f32], sent: &[usize], mean: &[f32]) -> Vec<f32> {
        match feedback {
            SharedFeedback::Residual { lowpass } => {
                for (at, m) in self.residual.iter_mut().enumerate() {
                    let rest = if sent.contains(&at) { 0.0 } else { p[at] };
                    *m = if lowpass == 1.0 { rest } else { (1.0 - lowpass) * *m + lowpass * rest };
                }
                mean.to_vec()
            }
            SharedFeedback::Estimate { .. } => {
                sent.iter().for_each(|&at| self.estimate[at] += p[at]);
                sent.iter().for_each(|&at| self.mean[at] += mean[at]);
                self.mean.clone()
            }
        }
    }
}
