//! Where the records of all workers come together: metrics, comparison of the replicas, and the summary.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use gradwire_transports::{Counters, Rank};

use crate::eval::Evaluation;
use crate::job::Job;
use crate::record::{Metrics, StepRecord, Summary, break_even_gbps, over, ring_bytes};
use crate::run::{Final, Observer, Outcome, RunError};

/// So many refused steps in a row end the run: it will not recover by itself.
pub(crate) const MAX_REFUSED_IN_A_ROW: u64 = 10;
/// Steps over which the training loss of the summary is taken.
const LAST_STEPS: usize = 10;

/// What has come together of a run.
#[derive(Default)]
pub(crate) struct Collected {
    metrics: Vec<Metrics>,
    frame_bytes: u64,
    compute: Duration,
    hash: u64,
    refused: u64,
    refused_in_a_row: u64,
}

/// Takes records until all workers have ended. After a failure it tells the workers to stop and goes on listening, so
/// that none of them waits for it.
pub(crate) fn collect(
    job: &Job,
    receiver: &Receiver<StepRecord>,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Collected, RunError> {
    let mut collected = Collected::default();
    let mut waiting: BTreeMap<u64, Vec<StepRecord>> = BTreeMap::new();
    let mut failure = None;
    for record in receiver {
        let step = record.step;
        let records = waiting.entry(step).or_default();
        records.push(record);
        if records.len() < job.config.workers || failure.is_some() {
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

impl Collected {
    fn take(
        &mut self,
        job: &Job,
        mut records: Vec<StepRecord>,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        records.sort_by_key(|record| record.rank);
        self.compare_replicas(&records)?;
        self.count_refusals(&records, observer)?;
        self.frame_bytes += records.iter().map(|record| record.frame_bytes as u64).sum::<u64>();
        self.compute += records.iter().map(|record| record.compute).sum::<Duration>();
        let metrics = Metrics::new(job, &records);
        observer.step(&metrics).map_err(RunError::Observer)?;
        self.metrics.push(metrics);
        Ok(())
    }

    fn compare_replicas(&mut self, records: &[StepRecord]) -> Result<(), RunError> {
        let mut groups: Vec<(u64, Vec<Rank>)> = Vec::new();
        for (hash, rank) in records.iter().filter_map(|record| Some((record.hash?, record.rank))) {
            match groups.iter_mut().find(|(known, _)| *known == hash) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((hash, vec![rank])),
            }
        }
        self.hash = groups.first().map_or(self.hash, |(hash, _)| *hash);
        let step = records[0].step;
        if groups.len() > 1 { Err(RunError::Diverged { step, groups }) } else { Ok(()) }
    }

    fn count_refusals(
        &mut self,
        records: &[StepRecord],
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let Some(why) = records.iter().find_map(|record| record.refusal.as_ref()) else {
            self.refused_in_a_row = 0;
            return Ok(());
        };
        (self.refused, self.refused_in_a_row) = (self.refused + 1, self.refused_in_a_row + 1);
        let step = records[0].step;
        observer.refused(step, why);
        if self.refused_in_a_row < MAX_REFUSED_IN_A_ROW {
            return Ok(());
        }
        Err(RunError::Refused { step, why: why.clone() })
    }

    /// The end of a run in which no worker failed.
    pub(crate) fn outcome(self, job: &Job, finals: &[Final], elapsed: Duration) -> Outcome {
        let counters: Vec<Counters> = finals.iter().map(|end| end.counters).collect();
        let evaluation = finals.iter().find_map(|end| end.evaluation);
        let summary = self.summary(job, &counters, evaluation, elapsed);
        Outcome { summary, metrics: self.metrics, counters }
    }

    fn summary(
        &self,
        job: &Job,
        counters: &[Counters],
        evaluation: Option<Evaluation>,
        elapsed: Duration,
    ) -> Summary {
        let config = &job.config;
        let seconds =
            |of: fn(&Metrics) -> u64| self.metrics.iter().map(|line| of(line) as f64 * 1e-9).sum::<f64>();
        let up = counters.iter().map(|counters| counters.up.total_bytes()).sum::<u64>();
        let down = counters.iter().map(|counters| counters.down.total_bytes()).sum::<u64>();
        let steps = self.metrics.len() as f64;
        let dense = steps * 4.0 * (job.layout.len() * config.workers) as f64;
        let [encode_seconds, decode_seconds] =
            [seconds(|line| line.encode_ns), seconds(|line| line.decode_ns)];
        let last = &self.metrics[self.metrics.len().saturating_sub(LAST_STEPS)..];
        let tested = |of: fn(&Evaluation) -> f64| evaluation.as_ref().map_or(f64::NAN, of);
        Summary {
            codec: config.codec.clone(),
            data: job.dataset.name().to_owned(),
            model: config.model.clone(),
            params: job.layout.len(),
            workers: config.workers,
            seed: config.seed,
            steps: self.metrics.len() as u64,
            refused_steps: self.refused,
            final_loss: tested(Evaluation::loss),
            train_loss: last.iter().map(|line| line.loss).sum::<f64>() / last.len() as f64,
            accuracy: tested(Evaluation::accuracy),
            accuracy_resolution: tested(Evaluation::resolution),
            perplexity: (job.model.context() > 0).then(|| tested(Evaluation::perplexity)),
            bytes_up: up,
            bytes_down: down,
            ratio: over(dense, self.frame_bytes as f64),
            wire_ratio: over(steps * ring_bytes(job), (up + down) as f64),
            seconds: elapsed.as_secs_f64(),
            compute_seconds: self.compute.as_secs_f64() / config.workers as f64,
            encode_seconds,
            exchange_seconds: seconds(|line| line.exchange_ns),
            decode_seconds,
            break_even_gbps: break_even_gbps(job, steps, up, encode_seconds + decode_seconds),
            params_hash: format!("{:016x}", self.hash),
            notes: config.notes(),
        }
    }
}
