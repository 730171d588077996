//! What workers keep for the next step.

use super::BOUND;
use crate::error::EncodeError;
use crate::gradient::unit::Unit;
use crate::memory::{Memory, MemoryView, StateLen};

/// What the workers of [`SharedK`](super::SharedK) keep for the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharedFeedback {
    /// A residual m at each worker. The values are p = fl(m + gradient). With `rest` = p where a coordinate
    /// was not sent and 0 where it was, the next residual is
    ///
    /// ```text
    /// m = fl(fl((1 − lowpass)·m) + fl(lowpass·rest))
    /// ```
    ///
    /// With a `lowpass` of 1 that is `rest`, so that nothing is lost. Below 1, the residual follows slowly:
    /// of a gradient that is not sent only this share is kept, and of what was kept before a part stays where
    /// a coordinate was sent.
    ///
    /// # Source
    /// ScaleCom (Chen et al., NeurIPS 2020, arXiv 2104.11125), algorithm 1, whose β is `lowpass`:
    /// m ← (1 − β)·m + β·(m + gradient − sent).
    Residual {
        /// Above 0, at most 1.
        lowpass: f32,
    },
    /// EF21 with momentum. A worker keeps a momentum v and an estimate h of it, and all workers keep the same
    /// H, the mean of their estimates. The values are p = fl(v − h) with the v of this step:
    ///
    /// ```text
    /// v = fl(fl(momentum·v) + fl((1 − momentum)·gradient))
    /// h = fl(h + p)  and  H = fl(H + fl(sum of p / workers))  where a coordinate was sent
    /// ```
    ///
    /// The mean of a step is H, which has a value for every coordinate. All three begin as zeros; with a
    /// momentum of 0 there is no v, and p = fl(gradient − h): EF21. Sums are rounded, so H is the mean of all
    /// h within an error that grows with the steps, by about one rounding of H in each.
    ///
    /// # Source
    /// Richtárik, Sokolov, Fatkhullin: EF21 (arXiv 2106.05203). Fatkhullin, Tyurin, Richtárik: Momentum
    /// Provably Improves Error Feedback (arXiv 2305.15155), EF21-SGDM, whose η is 1 − `momentum`, and which
    /// ARC-Top-K uses (arXiv 2510.26709). Their estimates begin with a gradient, ours with zeros.
    Estimate {
        /// From 0 to below 1.
        momentum: f32,
    },
}

/// The names of the arrays.
const MOMENTUM: &str = "momentum";
const ESTIMATE: &str = "estimate";
const MEAN: &str = "mean of estimates";
/// Why the arrays are there.
const BEGUN: &str = "a step that begins has its arrays";

impl SharedFeedback {
    /// Error feedback that loses nothing.
    pub const DEFAULT: Self = Self::Residual { lowpass: 1.0 };
    /// The factor of the momentum of [`Estimate`](Self::Estimate) by default.
    pub const MOMENTUM: f32 = 0.9;

    /// Whether the factor is in its range.
    pub(super) fn is_valid(self) -> bool {
        match self {
            Self::Residual { lowpass } => lowpass > 0.0 && lowpass <= 1.0,
            Self::Estimate { momentum } => (0.0..1.0).contains(&momentum),
        }
    }

    /// Lengths of the arrays, for a layout of `len` coordinates.
    pub(super) fn kept_len(self, len: usize) -> StateLen {
        let Self::Estimate { momentum } = self else { return StateLen::default() };
        let momenta = if momentum > 0.0 { len } else { 0 };
        let lengths = StateLen::default().with_array_by_coordinate(MEAN, len);
        lengths.with_array_by_coordinate(ESTIMATE, len).with_array_by_coordinate(MOMENTUM, momenta)
    }

    /// Words of scratch memory for the momenta of this step.
    pub(super) fn words(self, len: usize) -> usize {
        if let Self::Estimate { .. } = self { len } else { 0 }
    }

    /// What is added to the gradient.
    pub(super) fn residual(self, memory: Option<MemoryView<'_>>) -> Option<&[f32]> {
        memory.map(|memory| memory.residual).filter(|_| matches!(self, Self::Residual { .. }))
    }

    /// Turns the gradient in `p` into what is sent of it, and writes the momenta of this step.
    pub(super) fn begin(
        self,
        memory: Option<MemoryView<'_>>,
        unit: &Unit,
        p: &mut [u32],
        momenta: &mut [u32],
    ) -> Result<(), EncodeError> {
        // A layout without coordinates has no arrays.
        let (Self::Estimate { momentum }, false) = (self, p.is_empty()) else { return Ok(()) };
        let array = |name| memory.and_then(|memory| memory.array(name)?.get(unit.range()));
        let last = if momentum > 0.0 { array(MOMENTUM) } else { Some(&[][..]) };
        let (Some(estimates), Some(_), Some(last)) = (array(ESTIMATE), array(MEAN), last) else {
            return Err(EncodeError::MemoryIncomplete);
        };
        for (at, (p, v)) in p.iter_mut().zip(momenta).enumerate() {
            let grad = f32::from_bits(*p);
            let next = last.get(at).map_or(grad, |last| momentum * last + (1.0 - momentum) * grad);
            let lacking = next - estimates[at];
            // What is not a number does not fit either.
            let fits = lacking.abs() < BOUND;
            if !fits {
                return Err(EncodeError::ValueOverflow { index: unit.start + at });
            }
            (*p, *v) = (lacking.to_bits(), next.to_bits());
        }
        Ok(())
    }
}

/// What the last round of a unit writes.
pub(super) struct End<'e, 'm> {
    pub(super) feedback: SharedFeedback,
    pub(super) unit: Unit,
    pub(super) contributors: u32,
    /// The momenta of this step.
    pub(super) momenta: &'e [u32],
    pub(super) mean: &'e mut [f32],
    pub(super) memory: Option<&'e mut Memory<'m>>,
}

impl End<'_, '_> {
    /// From the coordinates that were sent, ascending, and their sums.
    pub(super) fn conclude(self, p: &[u32], sent: impl Iterator<Item = (usize, f32)>) {
        let (contributors, mean) = (self.contributors as f32, self.mean);
        mean.fill(0.0);
        match (self.feedback, self.memory.filter(|_| !mean.is_empty())) {
            (_, None) => sent.for_each(|(at, sum)| mean[at] = sum / contributors),
            (SharedFeedback::Residual { lowpass }, Some(memory)) => {
                let residual = memory.residual_mut();
                let mut next = 0;
                for (at, sum) in sent {
                    mean[at] = sum / contributors;
                    keep(lowpass, &mut residual[next..at], &p[next..at]);
                    keep(lowpass, &mut residual[at..=at], &[0]);
                    next = at + 1;
                }
                keep(lowpass, &mut residual[next..], &p[next..]);
            }
            (SharedFeedback::Estimate { momentum }, Some(memory)) => {
                let unit = self.unit.range();
                let estimates = &mut memory.array_mut(ESTIMATE).expect(BEGUN)[unit.clone()];
                for (at, sum) in sent {
                    mean[at] = sum / contributors;
                    estimates[at] += f32::from_bits(p[at]);
                }
                let means = &mut memory.array_mut(MEAN).expect(BEGUN)[unit.clone()];
                for (kept, mean) in means.iter_mut().zip(mean) {
                    *kept += *mean;
                    *mean = *kept;
                }
                if momentum > 0.0 {
                    let kept = &mut memory.array_mut(MOMENTUM).expect(BEGUN)[unit];
                    kept.iter_mut().zip(self.momenta).for_each(|(kept, &v)| *kept = f32::from_bits(v));
                }
            }
        }
    }
}

/// The next residual where `rest` was not sent.
fn keep(lowpass: f32, residual: &mut [f32], rest: &[u32]) {
    let rest = rest.iter().map(|&bits| f32::from_bits(bits));
    if lowpass == 1.0 {
        residual.iter_mut().zip(rest).for_each(|(m, rest)| *m = rest);
    } else {
        residual.iter_mut().zip(rest).for_each(|(m, rest)| *m = (1.0 - lowpass) * *m + lowpass * rest);
    }
}
