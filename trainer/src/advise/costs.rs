//! What codecs cost on this machine.

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use crate::codec_cli::{CliError, Cost, CostKind, Gradient, cost, median, timed};
use crate::process::threads;

/// Codecs on one gradient, measured on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// Elements of the gradient.
    pub(crate) coordinates: usize,
    /// Workers that were measured at the same time: as many as will run on a machine.
    pub(crate) side_by_side: usize,
    /// Seconds in which one gradient is added to another.
    pub(crate) add_s: f64,
    /// Dense f32.
    pub(crate) dense: Cost,
    /// Dense bf16: what a ring with elements of two bytes converts.
    pub(crate) bf16: Cost,
    /// Each codec that was asked for.
    pub(crate) codecs: Vec<Cost>,
    /// Codecs that cannot encode the gradient, and why.
    pub(crate) failed: Vec<String>,
}

impl Costs {
    /// Measures `spellings` on a gradient, over `iters` turns, by `side_by_side` threads at the same time, as
    /// workers of one machine are busy at the same time.
    ///
    /// A codec that cannot encode the gradient is left out, with the reason. Dense codecs are always
    /// measured, and not listed twice.
    ///
    /// # Errors
    /// [`CliError::Spec`]; a gradient that dense codecs cannot encode; no codec that can.
    pub(crate) fn measure(
        gradient: &Gradient,
        spellings: &[String],
        side_by_side: usize,
        iters: u32,
    ) -> Result<Self, CliError> {
        let measured = |spelling: &str| typical(spelling, gradient, side_by_side, iters);
        let (dense, bf16) = (measured("none")?, measured("bf16")?);
        let (mut codecs, mut failed, mut first_error) = (Vec::new(), Vec::new(), None);
        for spelling in spellings {
            match measured(spelling) {
                Ok(cost) if cost.kind == CostKind::Dense => {}
                Ok(cost) => codecs.push(cost),
                Err(error @ CliError::Spec { .. }) => return Err(error),
                Err(error) => {
                    failed.push(error.to_string());
                    first_error = first_error.or(Some(error));
                }
            }
        }
        if let Some(error) = first_error.filter(|_| codecs.is_empty()) {
            return Err(error);
        }
        let add_s = at_once(side_by_side, || Ok(add_s(gradient, iters)))?;
        let add_s = median(add_s);
        Ok(Self { coordinates: gradient.values().len(), side_by_side, add_s, dense, bf16, codecs, failed })
    }

    /// Bytes of the dense gradient of f32.
    pub(crate) fn dense_bytes(&self) -> f64 {
        4.0 * self.coordinates as f64
    }
}

/// The cost for one of several workers: each time is the median over the workers.
fn typical(spelling: &str, gradient: &Gradient, side_by_side: usize, iters: u32) -> Result<Cost, CliError> {
    let costs = at_once(side_by_side, || cost(spelling, gradient, iters))?;
    let time = |of: fn(&Cost) -> f64| median(costs.iter().map(of).collect());
    let (encode_s, decode_s) = (time(|cost| cost.encode_s), time(|cost| cost.decode_s));
    let memcpy_s = time(|cost| cost.memcpy_s);
    Ok(Cost { encode_s, decode_s, memcpy_s, ..costs[0].clone() })
}

/// The results of threads that measure at the same time, as [`threads::at_once`].
fn at_once<T: Send>(
    side_by_side: usize,
    measure: impl Fn() -> Result<T, CliError> + Sync,
) -> Result<Vec<T>, CliError> {
    let results = threads::at_once(side_by_side, "measurement", measure).map_err(CliError::NoThread)?;
    results.into_iter().collect()
}

/// Seconds in which the gradient is added to a sum: the median of `iters` turns after one that warms up.
fn add_s(gradient: &Gradient, iters: u32) -> f64 {
    let values = gradient.values();
    let mut sum = vec![0.0_f32; values.len()];
    let mut add = || {
        sum.iter_mut().zip(black_box(values)).for_each(|(sum, value)| *sum += value);
        black_box(sum.as_mut_slice());
    };
    let mut turn = || timed(&mut add).1;
    turn();
    median((0..iters).map(|_| turn()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(spellings: &[&str], coordinates: usize) -> Result<Costs, CliError> {
        let spellings: Vec<String> = spellings.iter().map(|&spelling| spelling.to_owned()).collect();
        Costs::measure(&Gradient::drawn(coordinates).unwrap(), &spellings, 2, 2)
    }

    #[test]
    fn a_codec_is_measured_with_its_bytes_and_its_kind() {
        let costs = measure(&["topk:density=0.01", "none", "powersgd:rank=1", "qsgd:bits=4"], 4096).unwrap();
        assert_eq!(costs.dense.kind, CostKind::Dense);
        assert!(costs.dense.bytes > 4 * 4096 && costs.bf16.bytes < costs.dense.bytes);
        let kinds: Vec<CostKind> = costs.codecs.iter().map(|cost| cost.kind).collect();
        // 41 of 4096 entries; `none` is the baseline and not listed.
        let density = 41.0 / 4096.0;
        assert_eq!(kinds, [CostKind::Sparse { density }, CostKind::Rounds(2), CostKind::Frames]);
        let is_timed = |cost: &Cost| cost.encode_s > 0.0 && cost.decode_s > 0.0 && cost.memcpy_s > 0.0;
        assert!(costs.codecs.iter().all(is_timed) && costs.add_s > 0.0, "{costs:?}");
    }

    #[test]
    fn costs_are_read_back_as_they_were_written() {
        let costs = measure(&["topk:density=0.1", "qsgd:bits=2"], 1000).unwrap();
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
    }

    #[test]
    fn a_spelling_that_is_wrong_ends_it() {
        assert!(matches!(measure(&["topk:density=2"], 64), Err(CliError::Spec { .. })));
    }
}
