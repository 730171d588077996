//! The threshold of a unit, stage by stage.

use super::fit::{Fit, exponential, gamma, pareto};
use super::moments::{Excesses, Logarithms, Moments};
use crate::codecs::topk::{least_above, radix_cut};
use crate::corrected::{BLOCK, Pass};
use crate::error::EncodeError;
use crate::kernels::{self, CANDIDATE_SLACK, Candidates, Isa, Sums};

/// The share of the elements that exceed the threshold of the first of several stages.
const FIRST_SHARE: f64 = 1.0 / ONE_IN as f64;
const ONE_IN: usize = 4;

/// The next threshold is likely to be at least this part of the way to the one that an exponential
/// distribution predicts.
const LIKELY: f64 = 1.0 / 3.0;

/// Sample size for the median of the values that were kept.
const MEDIAN_SAMPLE: usize = 512;

/// The threshold that about k elements exceed, in `stages` stages.
///
/// Zeros are never sent, so the fit leaves them out, and k is compared with the number of the other elements.
///
/// # Errors
/// The errors of [`Pass::values`].
///
/// The first stage after the initial one reads every value, and keeps those that exceed its threshold in
/// `kept`. Later stages read only these.
///
/// # Source
/// Abdelmoniem et al.: SIDCo (MLSys 2021), algorithm 1.
pub(super) fn threshold(
    isa: Isa,
    pass: &mut Pass<'_>,
    fit: Fit,
    k: usize,
    stages: u32,
    kept: &mut Kept<'_, '_>,
) -> Result<f64, EncodeError> {
    let (moments, mean_logarithm) = first_moments(isa, pass, fit)?;
    let share = k as f64 / moments.count as f64;
    if share >= 1.0 || moments.count == 0 {
        return Ok(0.0);
    }
    let one_stage = stages <= 1 || share >= FIRST_SHARE;
    let first_share = if one_stage { share } else { FIRST_SHARE };
    let mut threshold = match fit {
        Fit::Exponential => exponential(moments.mean, first_share),
        Fit::Gamma => gamma(moments.mean, mean_logarithm, first_share),
        Fit::Pareto => pareto(&moments, first_share),
    };
    if one_stage {
        return Ok(threshold);
    }
    let later_share = libm::pow(share / FIRST_SHARE, 1.0 / f64::from(stages - 1));
    for _ in 1..stages {
        let likely = threshold + exponential(moments.mean, later_share) * LIKELY;
        let excesses = excesses(isa, pass, threshold, likely, kept)?;
        if excesses.count < 2 {
            break;
        }
        threshold += match fit {
            Fit::Exponential => exponential(excesses.mean, later_share),
            Fit::Gamma | Fit::Pareto => pareto(&excesses, later_share),
        };
    }
    Ok(threshold)
}

/// Moments of all magnitudes that are not zero, and the mean of their logarithms. The variance and the mean
/// of the logarithms are computed only if the fit needs them.
fn first_moments(isa: Isa, pass: &mut Pass<'_>, fit: Fit) -> Result<(Moments, f64), EncodeError> {
    let (mut excesses, mut logarithms) = (Excesses::new(1, 0.0), Logarithms::new());
    let mut room = [0; BLOCK];
    for block in pass.blocks() {
        let p = pass.values(isa, block, &mut room)?;
        excesses.add_all(isa, p, fit == Fit::Pareto);
        if fit == Fit::Gamma {
            logarithms.add(isa, p);
        }
    }
    let moments = excesses.moments();
    Ok((moments, logarithms.sum() / moments.count as f64))
}

/// Moments of the magnitudes that exceed the threshold, less the threshold. Keeps the values that exceed
/// `likely` for later stages, whose thresholds are likely to be above it.
fn excesses(
    isa: Isa,
    pass: &mut Pass<'_>,
    threshold: f64,
    likely: f64,
    kept: &mut Kept<'_, '_>,
) -> Result<Moments, EncodeError> {
    let least = least_above(threshold);
    let mut excesses = Excesses::new(least, threshold);
    if kept.narrow_to(isa, least) {
        excesses.add_candidates(kept.candidates);
        return Ok(excesses.moments());
    }
    // If the values that an earlier stage kept did not suffice, do not rely on `likely` again.
    kept.begin(if kept.least.is_none() { least_above(likely) } else { least });
    let mut room = [0; BLOCK];
    for block in pass.blocks() {
        let p = pass.values(isa, block, &mut room)?;
        excesses.add(isa, p);
        kept.add(isa, block.0, p);
    }
    Ok(excesses.moments())
}

/// The elements of a pass that reach a magnitude, in order. Later stages and the selection read only these.
pub(super) struct Kept<'k, 'c> {
    candidates: &'k mut Candidates<'c>,
    /// The candidates are exactly the elements of at least these magnitude bits; `None` while nothing is
    /// kept.
    least: Option<u32>,
}

impl<'k, 'c> Kept<'k, 'c> {
    /// Keeps nothing yet. `candidates` is the room for the values to keep.
    pub(super) fn new(candidates: &'k mut Candidates<'c>) -> Self {
        Self { candidates, least: None }
    }

    /// How many elements of a unit of `len` to have room for.
    pub(super) fn capacity(len: usize) -> usize {
        len.div_ceil(ONE_IN)
    }

    /// Leaves the values of at least `least` as candidates; `None` if not all of them were kept.
    pub(super) fn narrowed(&mut self, isa: Isa, least: u32) -> Option<&mut Candidates<'c>> {
        if self.narrow_to(isa, least) { Some(self.candidates) } else { None }
    }

    fn narrow_to(&mut self, isa: Isa, least: u32) -> bool {
        let is_kept = self.least.is_some_and(|kept| kept <= least);
        if is_kept {
            self.keep_only(isa, least);
        }
        is_kept
    }

    fn begin(&mut self, least: u32) {
        (self.candidates.len, self.least) = (0, Some(least));
    }

    /// Adds a block of elements, whose first is number `first`. Without room for the whole block, it first
    /// drops about the smaller half of the values kept so far, and from then on keeps only values as large as
    /// the others. Later stages need less than half of the values that the first one selects.
    fn add(&mut self, isa: Isa, first: usize, p: &[u32]) {
        let free = |kept: &Self| kept.candidates.indices.len() - kept.candidates.len;
        let needed = p.len() + CANDIDATE_SLACK;
        if free(self) < needed {
            self.keep_only(isa, self.magnitude_above(&mut [0; MEDIAN_SAMPLE]));
        }
        if free(self) < needed {
            // The sample was misleading, and the rest still fills the room: keep nothing from now on.
            (self.candidates.len, self.least) = (0, None);
        }
        let least = self.least.unwrap_or(u32::MAX);
        kernels::keep_from(isa, kernels::floats_of(p), Sums::None, first as u32, least, self.candidates);
    }

    /// The magnitude above the median of a sample of the kept values.
    fn magnitude_above(&self, sample: &mut [u32; MEDIAN_SAMPLE]) -> u32 {
        let values = &self.candidates.values[..self.candidates.len];
        let sampled = values.iter().step_by(values.len().div_ceil(MEDIAN_SAMPLE).max(1));
        let len = sample.iter_mut().zip(sampled).map(|(slot, &value)| *slot = value).count();
        radix_cut(&sample[..len], len.div_ceil(2)).magnitude.saturating_add(1)
    }

    fn keep_only(&mut self, isa: Isa, least: u32) {
        kernels::compact(isa, self.candidates, least);
        self.least = Some(least);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Grad;
    use crate::kernels::scalar::MAGNITUDE;
    use std::{vec, vec::Vec};

    /// The threshold, and whether the values that reach it are still known. If they are, the candidates are
    /// exactly these values.
    fn estimated(values: &[f32], fit: Fit, stages: u32, room: usize) -> (u64, bool) {
        let isa = Isa::best();
        let (mut indices, mut kept_values) = (vec![0; room], vec![0; room]);
        let mut candidates = Candidates { indices: &mut indices, values: &mut kept_values, len: 0 };
        let mut pass = Pass::new(Grad::F32(values), None, 0, f32::INFINITY);
        let mut kept = Kept::new(&mut candidates);
        let threshold = threshold(isa, &mut pass, fit, values.len() / 100, stages, &mut kept).unwrap();
        let least = least_above(threshold);
        let is_known = kept.narrowed(isa, least).is_some();
        if is_known {
            let reaches = |&i: &u32| values[i as usize].to_bits() & MAGNITUDE >= least;
            let expected: Vec<u32> = (0..values.len() as u32).filter(reaches).collect();
            assert_eq!(
                candidates.indices[..candidates.len],
                expected,
                "{fit:?}, {stages} stages, room {room}"
            );
        }
        (threshold.to_bits(), is_known)
    }

    #[test]
    fn thresholds_are_the_same_however_much_is_kept() {
        let uniform = |i: u32| (f64::from(i.wrapping_mul(2_654_435_761)) + 0.5) / 4_294_967_296.0;
        let exponential = |i| -libm::log(uniform(i)) as f32;
        let least_room = 2 * (BLOCK + CANDIDATE_SLACK);
        let (mut known, mut unknown) = (0, 0);
        for power in [0.3, 1.0, 3.0] {
            let values: Vec<f32> = (1..20_000)
                .map(|i| if i % 2 == 0 { 1.0 } else { -1.0 } * exponential(i).powf(power))
                .collect();
            for (fit, stages) in [Fit::Exponential, Fit::Gamma, Fit::Pareto]
                .into_iter()
                .flat_map(|fit| [1, 2, 3, 7].map(|n| (fit, n)))
            {
                let all = estimated(&values, fit, stages, values.len() + BLOCK);
                for room in [least_room, 3_000, 5_000] {
                    let some = estimated(&values, fit, stages, room);
                    assert_eq!(some.0, all.0, "{fit:?}, {stages} stages, room {room}");
                    known += usize::from(some.1);
                    unknown += usize::from(!some.1);
                }
            }
        }
        assert!(known > 20 && unknown > 20, "{known} known, {unknown} not");
    }
}
