//! The record of a step and of a run.
//!
//! Bytes are sums over all workers everywhere: in `metrics.jsonl`, in `summary.json`, in tables and in
//! reports. Times are means over the workers.

pub(crate) mod events;
pub mod folder;
mod logged;
#[cfg(feature = "metrics")]
pub(crate) mod monitor;
mod origin;
pub mod progress;
mod sums;

use std::time::Duration;

#[cfg(feature = "zmq")]
use gradwire_transports::exchange::Capped;
use gradwire_transports::exchange::Report;
use gradwire_transports::gossip::Mixed;
use gradwire_transports::{Counters, Rank, RankSet};
use serde::{Deserialize, Deserializer, Serialize};

pub use self::logged::{LogError, LoggedRun};
pub use self::origin::Origin;
pub(crate) use self::sums::Sums;

use crate::adapt::Decided;
use crate::checkpoint::Snapshot;
use crate::job::Job;
use crate::model::eval::Evaluation;

/// One worker's report on one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StepRecord {
    /// The receiver knows it.
    #[serde(skip, default = "first_rank")]
    pub(crate) rank: Rank,
    pub(crate) step: u64,
    pub(crate) loss: f32,
    pub(crate) lr: f32,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) frame_bytes: usize,
    pub(crate) held: usize,
    pub(crate) packets_sent: usize,
    pub(crate) packets_lost: usize,
    /// The same at every worker; the first one's count.
    #[serde(skip)]
    pub(crate) contributors: RankSet,
    /// Frames that the server did not add, and why.
    #[cfg(feature = "zmq")]
    #[serde(skip)]
    pub(crate) frames_refused: Vec<(Rank, gradwire::DecodeError)>,
    /// Frames that the server scaled down.
    #[cfg(feature = "zmq")]
    #[serde(skip)]
    pub(crate) frames_capped: Vec<Capped>,
    pub(crate) compute: Duration,
    pub(crate) encode: Duration,
    pub(crate) exchange: Duration,
    pub(crate) decode: Duration,
    pub(crate) residual_norm: f64,
    pub(crate) hash: Option<u64>,
    /// Only of the first worker, which keeps it.
    #[serde(skip)]
    pub(crate) evaluation: Option<Evaluation>,
    /// This worker's part of a checkpoint, if one is due.
    pub(crate) snapshot: Option<Snapshot>,
    /// What set density or rank; the same at every worker, and the first one's counts.
    #[serde(skip)]
    pub(crate) adapt: Option<Decided>,
    /// Why the step was skipped.
    pub(crate) refusal: Option<String>,
    /// Whether this worker was told to end the run.
    pub(crate) wants_end: bool,
}

fn first_rank() -> Rank {
    Rank(0)
}

impl StepRecord {
    /// A step in which nothing was exchanged: the first of a delayed run.
    pub(crate) fn without_exchange() -> Self {
        Self::empty()
    }

    /// Nothing is known yet.
    fn empty() -> Self {
        Self {
            rank: first_rank(),
            step: 0,
            loss: 0.0,
            lr: 0.0,
            bytes_up: 0,
            bytes_down: 0,
            frame_bytes: 0,
            held: 0,
            packets_sent: 0,
            packets_lost: 0,
            contributors: RankSet::default(),
            #[cfg(feature = "zmq")]
            frames_refused: Vec::new(),
            #[cfg(feature = "zmq")]
            frames_capped: Vec::new(),
            compute: Duration::ZERO,
            encode: Duration::ZERO,
            exchange: Duration::ZERO,
            decode: Duration::ZERO,
            residual_norm: 0.0,
            hash: None,
            evaluation: None,
            snapshot: None,
            adapt: None,
            refusal: None,
            wants_end: false,
        }
    }

    /// A step whose mean arrived.
    pub(crate) fn delivered(report: &Report) -> Self {
        Self {
            frame_bytes: report.frame_bytes,
            held: report.held,
            packets_sent: report.packets.sent,
            packets_lost: report.packets.lost,
            contributors: report.contributors.clone(),
            #[cfg(feature = "zmq")]
            frames_refused: report.refused.clone(),
            #[cfg(feature = "zmq")]
            frames_capped: report.capped.clone(),
            encode: report.encode,
            exchange: report.exchange,
            decode: report.decode,
            ..Self::empty()
        }
    }

    /// A step after which the model, of this many parameters, moved towards those of its neighbours.
    pub(crate) fn mixed(rank: Rank, mixed: &Mixed, len: usize) -> Self {
        Self {
            frame_bytes: mixed.sent_bytes,
            held: if mixed.neighbours.is_empty() { 0 } else { len },
            contributors: mixed.neighbours.iter().chain([rank]).collect(),
            encode: mixed.codec,
            exchange: mixed.exchange,
            ..Self::empty()
        }
    }

    /// A step whose mean was refused.
    pub(crate) fn refused(why: String) -> Self {
        Self { refusal: Some(why), ..Self::empty() }
    }

    pub(crate) fn set_step(&mut self, rank: Rank, step: u64, loss: f32, lr: f32, compute: Duration) {
        (self.rank, self.step, self.loss, self.lr, self.compute) = (rank, step, loss, lr, compute);
    }

    pub(crate) fn set_traffic(&mut self, delta: Counters) {
        (self.bytes_up, self.bytes_down) = (delta.up.total_bytes(), delta.down.total_bytes());
    }
}

/// One line of `metrics.jsonl`: a step, all workers together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Counts from 0.
    pub step: u64,
    /// Counts from 0.
    pub epoch: u64,
    /// Mean of the workers' losses on their batches, before the step.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Learning rate.
    pub lr: f32,
    /// Bytes that all workers sent, envelopes included.
    pub bytes_up: u64,
    /// Bytes that all workers received, envelopes included.
    pub bytes_down: u64,
    /// Dense f32 bytes over frame bytes; `null` when the step was refused, or is the first of a delayed run.
    pub ratio: Option<f64>,
    /// Bytes of a dense f32 ring of the workers that took part, both ways, over bytes sent and received;
    /// `null` if fewer than two took part, because such a ring sends nothing.
    pub wire_ratio: Option<f64>,
    /// Workers whose gradients are in the mean; with gossip, workers whose models are in the first one's.
    pub contributors: usize,
    /// Time in forward and backward passes, mean over the workers; a run of another program may not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_ns: Option<u64>,
    /// Mean over the workers.
    pub encode_ns: u64,
    /// Mean over the workers, waiting included.
    pub exchange_ns: u64,
    /// Mean over the workers.
    pub decode_ns: u64,
    /// L2 norm of the residuals of all workers together.
    #[serde(deserialize_with = "number_or_null")]
    pub residual_norm: f64,
    /// Share of the coordinates that was sent, mean over the workers.
    pub density: f64,
    /// Share of the coordinates that was to be sent at this step, as the schedule or the controller set it;
    /// `null` for a codec without a density.
    pub target_density: Option<f64>,
    /// What set the density, or the rank, in a run with `adapt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapt: Option<Decided>,
    /// Share of the packets that did not enter the mean and were given back; `null` for a run without
    /// packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_loss: Option<f64>,
    /// Mean loss on the validation part, if there was an evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
    /// Share of right predictions on the validation part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// e to the validation loss, for text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// With gossip, if there was an evaluation, which is then one of the mean of all replicas: the root of
    /// the mean square of their distances (L2) from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consensus_distance: Option<f64>,
}

/// JSON has no NaN, so a loss that was not a number is `null`.
fn number_or_null<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

/// As [`number_or_null`], of a key that may be missing.
fn some_number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    number_or_null(value).map(Some)
}

/// `a / b`, unless b is zero.
pub(crate) fn over(a: f64, b: f64) -> Option<f64> {
    (b != 0.0).then(|| a / b)
}

/// Links of the rings of these steps, each one fewer than its workers: those that are in the mean where
/// workers come and go, otherwise all. `more_than_one` is what the steps have beyond one worker in each mean.
pub(crate) fn ring_links(job: &Job, steps: u64, more_than_one: u64) -> u64 {
    let config = &job.config;
    if config.comes_and_goes() { more_than_one } else { steps * (config.workers as u64).saturating_sub(1) }
}

/// Bytes that dense f32 rings of so many parameters would send and receive, all workers together. A ring of
/// N workers sends 2(N−1)/N of the gradient N times, so the bytes follow from the links of all steps
/// together. A step of a fragment is compared with a ring of that fragment.
pub(crate) fn ring_bytes(params: f64, links: u64) -> f64 {
    4.0 * links as f64 * 4.0 * params
}

impl Metrics {
    /// Puts together the records of one step, which are in rank order.
    pub(crate) fn new(job: &Job, records: &[StepRecord]) -> Self {
        let (first, workers) = (&records[0], records.len() as f64);
        let sum = |of: fn(&StepRecord) -> u64| records.iter().map(of).sum::<u64>();
        let mean_ns = |of: fn(&StepRecord) -> Duration| {
            (records.iter().map(|record| of(record).as_nanos() as f64).sum::<f64>() / workers) as u64
        };
        let exchanged = job.fragments[job.turn(first.step)].range.len() as f64;
        let dense = workers * 4.0 * exchanged;
        let (up, down) = (sum(|record| record.bytes_up), sum(|record| record.bytes_down));
        let squares: f64 = records.iter().map(|record| record.residual_norm * record.residual_norm).sum();
        let evaluation = first.evaluation;
        let is_text = job.model.context() > 0;
        let links = ring_links(job, 1, first.contributors.len().saturating_sub(1) as u64);
        Self {
            step: first.step,
            epoch: first.step / job.steps_per_epoch,
            loss: records.iter().map(|record| f64::from(record.loss)).sum::<f64>() / workers,
            lr: first.lr,
            bytes_up: up,
            bytes_down: down,
            ratio: over(dense, sum(|record| record.frame_bytes as u64) as f64),
            wire_ratio: (links > 0).then(|| over(ring_bytes(exchanged, links), (up + down) as f64)).flatten(),
            contributors: first.contributors.len(),
            compute_ns: Some(mean_ns(|record| record.compute)),
            encode_ns: mean_ns(|record| record.encode),
            exchange_ns: mean_ns(|record| record.exchange),
            decode_ns: mean_ns(|record| record.decode),
            residual_norm: squares.sqrt(),
            density: 4.0 * sum(|record| record.held as u64) as f64 / dense,
            target_density: match &first.adapt {
                Some(decided) => job.target_of(decided),
                None => job.target_density(first.step),
            },
            adapt: first.adapt.clone(),
            packet_loss: over(
                sum(|record| record.packets_lost as u64) as f64,
                sum(|record| record.packets_sent as u64) as f64,
            ),
            eval_loss: evaluation.map(|evaluation| evaluation.loss()),
            accuracy: evaluation.map(|evaluation| evaluation.accuracy()),
            perplexity: evaluation.filter(|_| is_text).map(|evaluation| evaluation.perplexity()),
            consensus_distance: evaluation.and_then(|evaluation| evaluation.consensus_distance()),
        }
    }
}

/// Bits that each worker saves against dense f32 rings, over the seconds that it spends for that, in Gbit/s.
/// `links` are those of the rings of all steps.
pub(crate) fn break_even_gbps(
    job: &Job,
    (steps, links): (u64, u64),
    bytes_up: u64,
    spent_seconds: f64,
) -> Option<f64> {
    let workers = 1.0 + over(links as f64, steps as f64)?;
    let sent = ring_bytes(job.exchanged_per_step(), links) / 2.0;
    let saved = (sent - bytes_up as f64) / workers;
    (saved > 0.0 && spent_seconds > 0.0).then(|| 8e-9 * saved / spent_seconds)
}

/// `summary.json`: a run in one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Spelling of the codec.
    pub codec: String,
    /// Name of the data set.
    pub data: String,
    /// Name of the model.
    pub model: String,
    /// Number of parameters.
    pub params: usize,
    /// Number of workers.
    pub workers: usize,
    /// Seed.
    pub seed: u64,
    /// Steps, refused ones included.
    pub steps: u64,
    /// Steps whose mean was refused.
    pub refused_steps: u64,
    /// The part of the data on which `final_loss`, `accuracy` and `perplexity` were measured: `test`.
    #[serde(default)]
    pub measured_on: String,
    /// The part on which the model was measured while it learned: `validation`, or `test` if the data set has
    /// no validation part of its own.
    #[serde(default)]
    pub validated_on: String,
    /// Mean loss on the test part, at the end.
    #[serde(deserialize_with = "number_or_null")]
    pub final_loss: f64,
    /// Mean training loss over the last steps, at most ten.
    #[serde(deserialize_with = "number_or_null")]
    pub train_loss: f64,
    /// Share of right predictions on the test part.
    #[serde(deserialize_with = "number_or_null")]
    pub accuracy: f64,
    /// The smallest difference that the accuracy can show: one prediction.
    #[serde(deserialize_with = "number_or_null")]
    pub accuracy_resolution: f64,
    /// e to the test loss, for text.
    #[serde(default, deserialize_with = "some_number", skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// With gossip, where all of these results are of the mean of all replicas: the root of the mean square
    /// of their distances (L2) from it.
    #[serde(default, deserialize_with = "some_number", skip_serializing_if = "Option::is_none")]
    pub consensus_distance: Option<f64>,
    /// Bytes that all workers sent, envelopes included.
    pub bytes_up: u64,
    /// Bytes that all workers received, envelopes included.
    pub bytes_down: u64,
    /// Dense f32 bytes over frame bytes, over the whole run.
    pub ratio: Option<f64>,
    /// Bytes of dense f32 rings of the workers that took part in each step, over bytes sent and received.
    pub wire_ratio: Option<f64>,
    /// Time of the run, evaluations included.
    pub seconds: f64,
    /// Time in forward and backward passes, mean over the workers.
    pub compute_seconds: f64,
    /// Time spent encoding, mean over the workers.
    pub encode_seconds: f64,
    /// Time spent sending and waiting, mean over the workers.
    pub exchange_seconds: f64,
    /// Time spent parsing and adding frames, mean over the workers.
    pub decode_seconds: f64,
    /// Links slower than this, in Gbit/s, carry a step of this run faster than a dense f32 ring, encoding and
    /// decoding included and nothing overlapped; `null` if no bytes are saved.
    pub break_even_gbps: Option<f64>,
    /// Hash of the final parameters, which every replica has; with gossip, of all replicas in rank order.
    pub params_hash: String,
    /// In a run that may end early: after how many steps the validation loss was smallest. Loss, accuracy and
    /// perplexity are those of the parameters there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_steps: Option<u64>,
    /// What should be known about this combination of settings.
    pub notes: Vec<String>,
    /// Which program made the run, when and where. Runs of earlier versions do not say it.
    #[serde(default)]
    pub origin: Origin,
}
