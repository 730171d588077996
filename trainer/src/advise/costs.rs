//! What codecs cost on this machine.

use std::hint::black_box;

use gradwire::Spec;
use serde::{Deserialize, Serialize};

use super::conditions::Conditions;
use crate::codec_cli::{CliError, Cost, CostKind, Gradient, cost, median, timed};
use crate::config::OptimizerKind;
use crate::process::threads;

/// How often everything is measured; the least of each time counts.
const ROUNDS: usize = 3;

/// Elements of a drawn gradient, at most. Longer models are taken as so many parts of this length: beyond the
/// caches, all times and bytes grow with the length.
pub(crate) const LONGEST_DRAWN: usize = 50_000_000;

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
    /// Codecs that are left out, and why: for example they cannot encode the gradient.
    pub(crate) failed: Vec<String>,
    /// On what machine, and whether anything disturbed the measurement. Files of earlier versions do not say
    /// it.
    #[serde(default)]
    pub(crate) conditions: Option<Conditions>,
    /// Elements that were measured, if times and bytes are multiples of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) measured_coordinates: Option<usize>,
}

impl Costs {
    /// Measures `spellings` on a gradient, over `iters` turns, by `side_by_side` threads at the same time, as
    /// workers of one machine are busy at the same time. All of it is done three times, and the least of each
    /// time counts: what disturbs a measurement makes it longer.
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
        let begun = Conditions::now(side_by_side);
        let rounds: Vec<Self> = (0..ROUNDS)
            .map(|_| Self::measure_once(gradient, spellings, side_by_side, iters))
            .collect::<Result<_, _>>()?;
        let copies = rounds.iter().flat_map(Self::all).map(|cost| cost.memcpy_s);
        let conditions = Some(begun.with_copies(copies.collect()));
        let least = rounds.into_iter().reduce(Self::least);
        Ok(Self { conditions, ..least.unwrap_or_else(|| unreachable!("there is more than one round")) })
    }

    /// Every cost that was measured.
    fn all(&self) -> impl Iterator<Item = &Cost> {
        [&self.dense, &self.bf16].into_iter().chain(&self.codecs)
    }

    /// The smaller of each time.
    fn least(self, other: Self) -> Self {
        let least = |one: Cost, other: &Cost| Cost {
            encode_s: one.encode_s.min(other.encode_s),
            decode_s: one.decode_s.min(other.decode_s),
            memcpy_s: one.memcpy_s.min(other.memcpy_s),
            ..one
        };
        let codecs = self.codecs.into_iter().zip(&other.codecs);
        Self {
            add_s: self.add_s.min(other.add_s),
            dense: least(self.dense, &other.dense),
            bf16: least(self.bf16, &other.bf16),
            codecs: codecs.map(|(one, other)| least(one, other)).collect(),
            ..self
        }
    }

    /// The same for a model of so many elements, in as many parts as it takes.
    pub(crate) fn scaled_to(self, coordinates: usize) -> Self {
        let parts = coordinates as f64 / self.coordinates as f64;
        let scaled = |cost: Cost| Cost {
            bytes: (cost.bytes as f64 * parts).round() as usize,
            encode_s: cost.encode_s * parts,
            decode_s: cost.decode_s * parts,
            memcpy_s: cost.memcpy_s * parts,
            ..cost
        };
        Self {
            coordinates,
            measured_coordinates: Some(self.coordinates),
            add_s: self.add_s * parts,
            dense: scaled(self.dense),
            bf16: scaled(self.bf16),
            codecs: self.codecs.into_iter().map(scaled).collect(),
            ..self
        }
    }

    /// The same where dense gradients are summed, and converted to bf16, at a rate in Gbit/s that was not
    /// measured here: by a GPU.
    pub(crate) fn with_dense_sum(self, gbps: f64) -> Self {
        let add_s = 8e-9 * self.dense_bytes() / gbps;
        let bf16 = Cost { encode_s: add_s, decode_s: add_s, ..self.bf16 };
        Self { add_s, bf16, ..self }
    }

    /// The same without the codecs with which the optimizer trains worse.
    pub(crate) fn for_optimizer(self, optimizer: OptimizerKind) -> Self {
        let trains_worse =
            |cost: &Cost| Spec::parse(&cost.codec).is_ok_and(|spec| optimizer.trains_worse_with(&spec.codec));
        let (worse, codecs): (Vec<_>, Vec<_>) = self.codecs.into_iter().partition(trains_worse);
        let reasons = worse
            .into_iter()
            .map(|cost| format!("{}: {optimizer} trains worse with such codecs", cost.codec));
        Self { codecs, failed: self.failed.into_iter().chain(reasons).collect(), ..self }
    }

    fn measure_once(
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
        let (add_s, coordinates) = (median(add_s), gradient.values().len());
        let (conditions, measured_coordinates) = (None, None);
        Ok(Self {
            coordinates,
            side_by_side,
            add_s,
            dense,
            bf16,
            codecs,
            failed,
            conditions,
            measured_coordinates,
        })
    }

    /// What disturbed the measurement, as far as it is known.
    pub(crate) fn disturbance(&self) -> Option<String> {
        self.conditions.as_ref().and_then(Conditions::disturbance)
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
        let spellings = ["topk:density=0.01", "none", "powersgd:rank=1", "qsgd:bits=4", "maxnorm:bits=4"];
        let costs = measure(&spellings, 4096).unwrap();
        assert_eq!(costs.dense.kind, CostKind::Dense);
        assert!(costs.dense.bytes > 4 * 4096 && costs.bf16.bytes < costs.dense.bytes);
        let kinds: Vec<CostKind> = costs.codecs.iter().map(|cost| cost.kind).collect();
        // 41 of 4096 entries; `none` is the baseline and not listed.
        let density = 41.0 / 4096.0;
        let rounds = CostKind::Rounds(2);
        assert_eq!(kinds, [CostKind::Sparse { density }, rounds, CostKind::Frames, rounds]);
        let is_timed = |cost: &Cost| cost.encode_s > 0.0 && cost.decode_s > 0.0 && cost.memcpy_s > 0.0;
        assert!(costs.codecs.iter().all(is_timed) && costs.add_s > 0.0, "{costs:?}");
    }

    #[test]
    fn the_least_of_all_rounds_counts() {
        let one = measure(&["topk:density=0.1"], 500).unwrap();
        let mut slow = one.clone();
        (slow.add_s, slow.codecs[0].encode_s, slow.bf16.decode_s) = (9.0, 9.0, 9.0);
        assert_eq!(
            slow.clone().least(one.clone()),
            Costs { conditions: slow.conditions.clone(), ..one.clone() }
        );
        assert_eq!(one.clone().least(slow), one);
    }

    #[test]
    fn a_model_that_does_not_fit_is_made_of_parts() {
        let one = measure(&["topk:density=0.1", "powersgd:rank=1"], 1000).unwrap();
        let large = one.clone().scaled_to(7_000_000_000);
        assert_eq!((large.coordinates, large.measured_coordinates), (7_000_000_000, Some(1000)));
        for (large, one) in large.all().zip(one.all()) {
            assert_eq!(large.bytes, 7_000_000 * one.bytes);
            assert!((large.encode_s / one.encode_s - 7e6).abs() < 1.0 && large.kind == one.kind);
        }
        assert!((large.add_s / one.add_s - 7e6).abs() < 1.0);
    }

    #[test]
    fn a_sum_on_another_processor_takes_the_time_that_is_stated() {
        let one = measure(&["qsgd"], 1000).unwrap();
        // 32 kbit at 16 Gbit/s.
        let other = one.clone().with_dense_sum(16.0);
        assert!(
            [other.add_s, other.bf16.encode_s, other.bf16.decode_s].iter().all(|s| (s - 2e-6).abs() < 1e-12)
        );
        assert_eq!((other.codecs, other.bf16.bytes), (one.codecs, one.bf16.bytes));
    }

    #[test]
    fn errors_stand_beside_the_times() {
        let costs = measure(&["topk:density=0.9", "topk:density=0.01", "powersgd:rank=1"], 4096).unwrap();
        let [near, far, low] = [0, 1, 2].map(|at| costs.codecs[at].cosine.unwrap());
        assert!(near > 0.99 && far < near && (0.0..=1.0).contains(&low), "{near} {far} {low}");
        assert_eq!(costs.dense.nmse, Some(0.0));
    }

    #[test]
    fn costs_are_read_back_as_they_were_written() {
        let costs = measure(&["topk:density=0.1", "qsgd:bits=2"], 1000).unwrap();
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
        let conditions = costs.conditions.unwrap();
        assert!(conditions.copy_least_s > 0.0 && conditions.copy_least_s <= conditions.copy_most_s);
    }

    #[test]
    fn a_spelling_that_is_wrong_ends_it() {
        for spellings in
            [&["topk:density=2"][..], &["topk:density=0.1", "topk:density=2"], &["none", "nosuch"]]
        {
            assert!(matches!(measure(spellings, 64), Err(CliError::Spec { .. })), "{spellings:?}");
        }
    }
}
