//! Steps of AMSGrad from summed sketches, coordinate by coordinate, with all that each worker keeps.

use super::encode::{count, largest};
use super::sketch::{columns, estimates, keys, sketch, sum};
use gradwire::StepKey;
use gradwire::codecs::{AmsGrad, Sketch};

/// What a worker keeps of one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// What was not sent: e.
    pub residual: Vec<f32>,
    /// The mean of its gradients: m.
    pub steps: Vec<f32>,
    /// The mean of squares: v.
    pub squares: Vec<f32>,
    /// The largest mean of squares: v̂.
    pub peaks: Vec<f32>,
}

impl Moments {
    /// Before the first step.
    #[must_use]
    pub fn new(amsgrad: &AmsGrad, n: usize) -> Self {
        let floors = vec![amsgrad.floor(); n];
        Self { residual: vec![0.0; n], steps: vec![0.0; n], squares: floors.clone(), peaks: floors }
    }
}

/// The mean of a step. A unit without a sketch is sent whole, so that the estimates are exact means.
#[must_use]
pub fn step(
    codec: &Sketch,
    amsgrad: &AmsGrad,
    key: StepKey,
    unit: u32,
    grads: &[Vec<f32>],
    kept: &mut [Moments],
) -> Vec<f32> {
    let n = grads[0].len();
    let b1 = amsgrad.momentum();
    let mut p = Vec::new();
    for (kept, grad) in kept.iter_mut().zip(grads) {
        if b1 > 0.0 {
            kept.steps = (0..n).map(|i| b1 * kept.steps[i] + (1.0 - b1) * grad[i]).collect();
        } else {
            kept.steps = grad.clone();
        }
        p.push((0..n).map(|i| kept.residual[i] + kept.steps[i]).collect::<Vec<f32>>());
    }
    let (columns, keys) = (columns(codec, n), keys(codec.rows(), key, unit));
    let said = match columns {
        Some(columns) => {
            let sketches: Vec<_> = p.iter().map(|p| sketch(&keys, columns, p)).collect();
            estimates(&keys, columns, &sum(&sketches), n)
        }
        None => sum(&p),
    };
    let said: Vec<f32> = said.iter().map(|said| said / grads.len() as f32).collect();
    let k = if columns.is_some() { count(codec.density(), n) } else { n };
    let means: Vec<_> = kept.iter_mut().zip(p).map(|(kept, p)| finish(amsgrad, &said, k, &p, kept)).collect();
    assert!(means.iter().all(|mean| *mean == means[0]), "workers have other means");
    // What a unit that is sent whole sent is no estimate, so nothing is left of it.
    for kept in kept.iter_mut().filter(|_| columns.is_none()) {
        (0..n).filter(|&i| means[0][i] != 0.0).for_each(|i| kept.residual[i] = 0.0);
    }
    means[0].clone()
}

/// What one worker makes of what the sum says. It chooses by the moments that a coordinate would have if it
/// were chosen.
fn finish(amsgrad: &AmsGrad, said: &[f32], k: usize, p: &[f32], kept: &mut Moments) -> Vec<f32> {
    let b2 = amsgrad.squares();
    let after = |kept: &Moments, i: usize, h: f32| {
        let square = b2 * kept.squares[i] + (1.0 - b2) * (h * h);
        (square, if square > kept.peaks[i] { square } else { kept.peaks[i] })
    };
    let quotients: Vec<f32> = (0..said.len()).map(|i| said[i] / after(kept, i, said[i]).1.sqrt()).collect();
    let chosen = largest(&quotients, k);
    let mut mean = vec![0.0; said.len()];
    for i in 0..said.len() {
        let h = if chosen.contains(&i) { said[i] } else { 0.0 };
        (kept.squares[i], kept.peaks[i]) = after(kept, i, h);
        kept.residual[i] = p[i] - h;
        if h != 0.0 {
            mean[i] = quotients[i];
        }
    }
    mean
}
