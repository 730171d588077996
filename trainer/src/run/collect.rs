//! Collects the records of all workers: metrics, comparison of the replicas, and the summary.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use gradwire_transports::{Counters, Rank};

use super::error::{MAX_REFUSED_IN_A_ROW, RunError};
use super::observer::Observer;
use super::outcome::{Final, Outcome};
#[cfg(feature = "zmq")]
use crate::checkpoint::Away;
use crate::checkpoint::{Checkpoint, Snapshot, Totals};
use crate::job::Job;
use crate::model::eval::Evaluation;
use crate::model::hash::{combined_hash, params_hash};
#[cfg(feature = "metrics")]
use crate::record::monitor::monitor;
use crate::record::{
    Metrics, Origin, StepRecord, Summary, Sums, break_even_gbps, over, ring_bytes, ring_links,
};

/// The collected records of a run.
pub(crate) struct Collected {
    sums: Sums,
    /// Every step, if the outcome is to have them.
    metrics: Option<Vec<Metrics>>,
    totals: Totals,
    hash: u64,
    /// When this process began, and how long the run had taken before.
    started: Instant,
    before: Duration,
}

/// Takes records until all workers have ended. After a failure it tells the workers to stop and continues to
/// listen, so that none of them waits for it.
pub(crate) fn collect(
    mut collected: Collected,
    job: &Job,
    receiver: &Receiver<StepRecord>,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Collected, RunError> {
    let mut waiting: BTreeMap<u64, Vec<StepRecord>> = BTreeMap::new();
    let mut failure = None;
    for record in receiver {
        let step = record.step;
        let records = waiting.entry(step).or_default();
        records.push(record);
        if records.len() < job.config.reporting_workers() || failure.is_some() {
            continue;
        }
        let records = waiting.remove(&step).unwrap_or_default();
        if let Err(error) = collected.take(job, records, observer) {
            stop.store(true, Ordering::Relaxed);
            failure = Some(error);
        }
    }
    failure.map_or(Ok(collected), Err)
}

/// A norm in billionths.
#[cfg(feature = "zmq")]
fn nanos(norm: f64) -> u64 {
    (norm * 1e9) as u64
}

/// The hash of one replica, or of several that differ.
fn hash_of_all(hashes: Vec<u64>) -> u64 {
    if let [hash] = hashes.as_slice() { *hash } else { combined_hash(hashes) }
}

impl Collected {
    /// The records up to the checkpoint, or none without one. Keeps every step for the outcome.
    pub(crate) fn since(started: Instant, start: Option<(&Checkpoint, &[Metrics])>) -> Self {
        let (checkpoint, metrics) = start.unzip();
        let metrics = metrics.unwrap_or_default();
        let sums = metrics.iter().collect();
        Self { metrics: Some(metrics.to_vec()), ..Self::summing(started, checkpoint, sums) }
    }

    /// As [`since`](Self::since), but keeps the sums of the steps and no step: a run of any length takes the
    /// same memory.
    pub(crate) fn summing(started: Instant, checkpoint: Option<&Checkpoint>, sums: Sums) -> Self {
        let totals = checkpoint.map(|checkpoint| checkpoint.totals.clone()).unwrap_or_default();
        let before = Duration::from_nanos(totals.elapsed_ns);
        let hash = checkpoint.map_or(0, |checkpoint| {
            hash_of_all(checkpoint.replicas.iter().map(|replica| params_hash(&replica.params)).collect())
        });
        Self { sums, metrics: None, hash, started, before, totals }
    }

    /// Time of the run so far, in this process and before.
    fn elapsed(&self) -> Duration {
        self.before + self.started.elapsed()
    }

    /// Takes the records of all workers for one step.
    pub(crate) fn take(
        &mut self,
        job: &Job,
        mut records: Vec<StepRecord>,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        records.sort_by_key(|record| record.rank);
        let steps = records[0].step + 1;
        self.compare_replicas(job, &records)?;
        self.count_refusals(&records, observer)?;
        self.totals.frame_bytes += records.iter().map(|record| record.frame_bytes as u64).sum::<u64>();
        self.totals.compute_ns += records.iter().map(|record| record.compute.as_nanos() as u64).sum::<u64>();
        self.totals.elapsed_ns = self.elapsed().as_nanos() as u64;
        let metrics = Metrics::new(job, &records);
        observer.step(&metrics).map_err(RunError::Observer)?;
        #[cfg(feature = "metrics")]
        if let Some(monitor) = monitor() {
            monitor.step(&records, job.config.workers);
        }
        self.sums.add(&metrics);
        if let Some(kept) = &mut self.metrics {
            kept.push(metrics);
        }
        let snapshots: Option<Vec<Snapshot>> = records.into_iter().map(|record| record.snapshot).collect();
        match snapshots.map(|snapshots| self.checkpoint(job, steps, snapshots)) {
            Some(checkpoint) => observer.checkpoint(&checkpoint).map_err(RunError::Observer),
            None => Ok(()),
        }
    }

    /// The checkpoint after so many steps, of every worker's part.
    pub(crate) fn checkpoint(&self, job: &Job, steps: u64, snapshots: Vec<Snapshot>) -> Checkpoint {
        let (mut replicas, mut memories, mut downlink) = (Vec::new(), Vec::new(), Vec::new());
        let (mut gradients, mut carried, mut norms) = (Vec::new(), Vec::new(), Vec::new());
        let (mut best, mut controller) = (None, Vec::new());
        for snapshot in snapshots {
            replicas.extend(snapshot.replica);
            downlink.extend(snapshot.downlink);
            norms.extend(snapshot.norms);
            best = best.or(snapshot.best);
            controller.extend(snapshot.controller);
            memories.push(snapshot.memory);
            carried.push(snapshot.carried);
            gradients.extend(Some(snapshot.gradient).filter(|gradient| !gradient.is_empty()));
        }
        let (config, totals) = (job.config.clone(), self.totals.clone());
        let worker = None;
        Checkpoint {
            config,
            steps,
            worker,
            replicas,
            memories,
            gradients,
            carried,
            downlink,
            norms,
            best,
            controller,
            totals,
        }
    }

    fn compare_replicas(&mut self, job: &Job, records: &[StepRecord]) -> Result<(), RunError> {
        if job.config.replicas() > 1 {
            let hashes: Option<Vec<u64>> = records.iter().map(|record| record.hash).collect();
            self.hash = hashes.map_or(self.hash, hash_of_all);
            return Ok(());
        }
        let mut groups: Vec<(u64, Vec<Rank>)> = Vec::new();
        for (hash, rank) in records.iter().filter_map(|record| Some((record.hash?, record.rank))) {
            match groups.iter_mut().find(|(known, _)| *known == hash) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((hash, vec![rank])),
            }
        }
        self.hash = groups.first().map_or(self.hash, |(hash, _)| *hash);
        let step = records[0].step;
        if groups.len() > 1 { Err(RunError::ReplicasDiffer { step, groups }) } else { Ok(()) }
    }

    fn count_refusals(
        &mut self,
        records: &[StepRecord],
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let Some(why) = records.iter().find_map(|record| record.refusal.as_ref()) else {
            self.totals.refused_in_a_row = 0;
            return Ok(());
        };
        self.totals.refused += 1;
        self.totals.refused_in_a_row += 1;
        let step = records[0].step;
        observer.refused(step, why);
        if self.totals.refused_in_a_row < MAX_REFUSED_IN_A_ROW {
            return Ok(());
        }
        Err(RunError::Refused { step, why: why.clone() })
    }

    /// A worker is gone, with its residual.
    #[cfg(feature = "zmq")]
    pub(crate) fn lose(&mut self, Rank(rank): Rank, norm: f64) {
        let lost_nanos = nanos(norm);
        self.totals.departures += 1;
        self.totals.lost_nanos = self.totals.lost_nanos.saturating_add(lost_nanos);
        self.totals.away.push(Away { rank, lost_nanos });
    }

    /// A worker reports its residual. If the worker was gone, that residual is not lost after all; returns
    /// the norm of what is still lost.
    #[cfg(feature = "zmq")]
    pub(crate) fn hear_of(&mut self, Rank(rank): Rank, norm: f64) -> Option<f64> {
        let at = self.totals.away.iter().position(|away| away.rank == rank)?;
        let Away { lost_nanos, .. } = self.totals.away.swap_remove(at);
        let kept_nanos = nanos(norm).min(lost_nanos);
        self.totals.departures = self.totals.departures.saturating_sub(1);
        self.totals.lost_nanos = self.totals.lost_nanos.saturating_sub(kept_nanos);
        Some((lost_nanos - kept_nanos) as f64 * 1e-9)
    }

    /// What should be known about this run.
    fn notes(&self, job: &Job) -> Vec<String> {
        let mut notes = job.config.notes();
        if job.validates_on_test() {
            notes.push(format!(
                "{} has no validation part: its test part takes its place",
                job.dataset.name()
            ));
        }
        notes.extend(warm_up(job));
        notes.extend(job.dataset.about());
        notes.extend(job.dataset.doubt());
        let (gone, norm) = (self.totals.departures, self.totals.lost_nanos as f64 * 1e-9);
        if gone > 0 || norm > 0.0 {
            notes.push(format!(
                "workers that left and did not come back: {gone}; \
                 of the residuals of workers that died, norms of {norm:.6} in all are lost"
            ));
        }
        notes
    }

    /// The end of a run in which no worker failed.
    pub(crate) fn outcome(self, job: &Job, finals: &[Final]) -> Outcome {
        let counters: Vec<Counters> = finals.iter().map(|end| end.counters).collect();
        let evaluation = finals.iter().find_map(|end| end.evaluation);
        let mut summary = self.summary(job, evaluation);
        summary.best_steps = finals.iter().find_map(|end| end.best_steps);
        summary.notes.extend(summary.best_steps.map(|best| {
            format!(
                "early_stop: the validation loss was smallest after {best} of {} steps; the results are those of its parameters",
                summary.steps
            )
        }));
        Outcome { summary, metrics: self.metrics.unwrap_or_default(), counters }
    }

    fn summary(&self, job: &Job, evaluation: Option<Evaluation>) -> Summary {
        let (config, sums) = (&job.config, &self.sums);
        let (steps, up) = (sums.steps as f64, sums.bytes_up);
        let links = ring_links(job, sums.steps, sums.more_than_one);
        let exchanged = job.exchanged_per_step();
        let dense = steps * 4.0 * exchanged * config.reporting_workers() as f64;
        let tested = |of: fn(&Evaluation) -> f64| evaluation.as_ref().map_or(f64::NAN, of);
        Summary {
            codec: config.encoding(),
            data: job.dataset.name().to_owned(),
            model: config.model.to_string(),
            params: job.layout.len(),
            workers: config.workers,
            seed: config.seed,
            steps: sums.steps,
            refused_steps: self.totals.refused,
            measured_on: "test".to_owned(),
            validated_on: if job.validates_on_test() { "test" } else { "validation" }.to_owned(),
            final_loss: tested(Evaluation::loss),
            train_loss: sums.train_loss(),
            accuracy: tested(Evaluation::accuracy),
            accuracy_resolution: tested(Evaluation::resolution),
            perplexity: (job.model.context() > 0).then(|| tested(Evaluation::perplexity)),
            consensus_distance: evaluation.as_ref().and_then(Evaluation::consensus_distance),
            bytes_up: up,
            bytes_down: sums.bytes_down,
            ratio: over(dense, self.totals.frame_bytes as f64),
            wire_ratio: over(ring_bytes(exchanged, links), (up + sums.bytes_down) as f64),
            seconds: self.elapsed().as_secs_f64(),
            compute_seconds: self.totals.compute_ns as f64 * 1e-9 / config.reporting_workers() as f64,
            encode_seconds: sums.encode_seconds,
            exchange_seconds: sums.exchange_seconds,
            decode_seconds: sums.decode_seconds,
            break_even_gbps: break_even_gbps(
                job,
                (sums.steps, links),
                up,
                sums.encode_seconds + sums.decode_seconds,
            ),
            params_hash: format!("{:016x}", self.hash),
            best_steps: None,
            notes: self.notes(job),
            origin: Origin::here(),
        }
    }
}

/// For how much of the run a codec sends more than its density, if it warms up.
fn warm_up(job: &Job) -> Option<String> {
    let epochs = job.rules.rules().iter().map(|rule| u64::from(rule.spec().warmup)).max().unwrap_or(0);
    let steps = (epochs * job.steps_per_epoch).min(job.steps);
    let warms_up = epochs > 0 && job.config.adapt.is_none();
    warms_up.then(|| {
        format!(
            "{}: warm-up, with larger densities in the first {epochs} epochs: {steps} of the {} steps",
            job.config.encoding(),
            job.steps
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RunConfig, Settings};

    struct Deaf;

    impl Observer for Deaf {
        fn step(&mut self, _: &Metrics) -> Result<(), String> {
            Ok(())
        }

        fn refused(&mut self, _: u64, _: &str) {}
    }

    #[cfg(feature = "zmq")]
    #[test]
    fn a_worker_that_comes_back_is_not_counted_and_what_it_brings_is_not_lost() {
        let settings = Settings { workers: Some(1), ..Settings::default() };
        let job = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap();
        let mut collected = Collected::summing(Instant::now(), None, Sums::default());
        let note = |collected: &Collected| collected.notes(&job).pop();
        let says = |gone: u64, norm: &str| {
            Some(format!(
                "workers that left and did not come back: {gone}; \
                 of the residuals of workers that died, norms of {norm} in all are lost"
            ))
        };
        let none = note(&collected);
        for (rank, norm) in [(1, 4.0), (2, 2.0), (3, 1.0)] {
            collected.lose(Rank(rank), norm);
        }
        assert_eq!(note(&collected), says(3, "7.000000"));
        // Worker 1 is back with the residual of its file, less a part for its absence.
        assert_eq!(collected.hear_of(Rank(1), 3.0), Some(1.0));
        assert_eq!(note(&collected), says(2, "4.000000"));
        // Worker 2 is back with no residual, and worker 3 with more than it had reported.
        assert_eq!(
            [(2, 0.0), (3, 9.0)].map(|(rank, norm)| collected.hear_of(Rank(rank), norm)),
            [Some(2.0), Some(0.0)]
        );
        assert_eq!(note(&collected), says(0, "3.000000"));
        assert_eq!(collected.hear_of(Rank(1), 8.0), None, "it was here");
        collected.lose(Rank(3), 1.0);
        assert_eq!(collected.hear_of(Rank(3), 1.0), Some(0.0));
        assert_eq!(note(&collected), says(0, "3.000000"));
        collected.totals.lost_nanos = 0;
        assert_eq!(note(&collected), none);
    }

    #[test]
    fn a_warm_up_is_noted_with_its_share_of_the_run() {
        let note = |codec: &str, steps| {
            let settings =
                Settings { codec: Some(codec.to_owned()), steps: Some(steps), ..Settings::default() };
            warm_up(&Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap())
        };
        assert_eq!(note("topk", 40), None);
        assert!(note("dgc", 20).unwrap().ends_with("in the first 4 epochs: 20 of the 20 steps"));
        assert!(note("topk:warmup=1", 40).unwrap().ends_with("in the first 1 epochs: 9 of the 40 steps"));
    }

    #[test]
    fn what_sums_up_keeps_no_step_and_says_the_same_of_the_run() {
        let settings = Settings { workers: Some(1), ..Settings::default() };
        let job = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap();
        let [summary, whole] = [
            Collected::summing(Instant::now(), None, Sums::default()),
            Collected::since(Instant::now(), None),
        ]
        .map(|mut collected| {
            for step in 0..1000 {
                let mut record = StepRecord::without_exchange();
                record.set_step(Rank(0), step, 1.0 / (step + 1) as f32, 0.1, Duration::from_millis(1));
                (record.bytes_up, record.bytes_down, record.encode) = (step, 7, Duration::from_nanos(step));
                collected.take(&job, vec![record], &mut Deaf).unwrap();
            }
            let outcome = collected.outcome(&job, &[]);
            (outcome.metrics, outcome.summary)
        });
        assert_eq!((summary.0.capacity(), whole.0.len()), (0, 1000));
        let timeless = |summary: Summary| {
            format!("{:?}", Summary { seconds: 0.0, origin: Origin::default(), ..summary })
        };
        assert_eq!(timeless(summary.1), timeless(whole.1));
    }
}
