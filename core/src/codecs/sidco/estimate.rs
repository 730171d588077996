//! The threshold of a unit, stage by stage.

use super::fit::{Fit, exponential, gamma, pareto};
use super::moments::{Excesses, Logarithms, Moments};
use crate::error::EncodeError;
use crate::kernels::{Isa, scalar::MAGNITUDE};
use crate::source::{BLOCK, Pass};

/// The share that the first of several stages leaves.
const FIRST_SHARE: f64 = 0.25;

/// The threshold that about k elements exceed, in `stages` stages.
///
/// Zeros are never sent, so they are left out of the fit: the share is that of the others.
///
/// # Errors
/// Those of [`Pass::values`].
///
/// # Source
/// Abdelmoniem et al.: SIDCo (MLSys 2021), algorithm 1.
pub(super) fn threshold(
    isa: Isa,
    pass: &mut Pass<'_>,
    fit: Fit,
    k: usize,
    stages: u32,
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
        let excesses = excesses(isa, pass, threshold)?;
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

/// Moments of all magnitudes that are not zero, and the mean of their logarithms where the fit needs it.
fn first_moments(isa: Isa, pass: &mut Pass<'_>, fit: Fit) -> Result<(Moments, f64), EncodeError> {
    let (mut excesses, mut logarithms) = (Excesses::new(1, 0.0), Logarithms::new());
    let mut room = [0; BLOCK];
    for block in pass.blocks() {
        let p = pass.values(isa, block, &mut room)?;
        excesses.add(isa, p);
        if fit == Fit::Gamma {
            logarithms.add(isa, p);
        }
    }
    let moments = excesses.moments();
    Ok((moments, logarithms.sum() / moments.count as f64))
}

/// Moments of what exceeds the threshold, less the threshold.
fn excesses(isa: Isa, pass: &mut Pass<'_>, threshold: f64) -> Result<Moments, EncodeError> {
    let mut excesses = Excesses::new(least_above(threshold), threshold);
    let mut room = [0; BLOCK];
    for block in pass.blocks() {
        excesses.add(isa, pass.values(isa, block, &mut room)?);
    }
    Ok(excesses.moments())
}

/// Bits of the smallest magnitude above the threshold, which is not negative.
pub(super) fn least_above(threshold: f64) -> u32 {
    // Rounded to the nearest, it may be at the threshold, or on either side of it.
    let nearest = threshold as f32;
    let bits = nearest.to_bits() & MAGNITUDE;
    bits + u32::from(f64::from(nearest) <= threshold)
}
