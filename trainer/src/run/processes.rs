//! A run whose workers are processes. Each [`follow`]s, and the first one [`lead`]s: it works as the others
//! do and combines their reports.
//!
//! Workers report a step to the first one when they have done it. The first one listens when it has done the
//! next step, so that nobody waits for a record. Before each step it tells all whether the run continues
//! after that step. So a worker that has done the step knows, and all end after the same one. If a checkpoint
//! is due, the first one listens at once, because the residuals come with the records, and may be long.
//! Records and these messages are not part of the traffic that a run reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gradwire_transports::layer::Meter;
use gradwire_transports::{Counters, Deadline, Rank, Tag, Traffic, Transport, TransportError};

use super::collect::Collected;
use super::control::Control;
use super::error::RunError;
use super::observer::Observer;
use super::outcome::{Final, Outcome};
use super::work::{Connections, WorkerError, work};
use crate::checkpoint::Checkpoint;
use crate::job::Job;
use crate::record::StepRecord;
use crate::step::{StepError, Worker};

/// The rank that listens.
const FIRST: Rank = Rank(0);

/// The tag of a step's record, and of the word before the step. It lies above all steps that are trained, so
/// that it is not retired with them.
fn record_tag(transport: &dyn Transport, step: u64) -> Tag {
    let (unit, chunk) = (step as u32, (step >> 32) as u32);
    Tag { epoch: transport.membership().epoch, step: u64::MAX, unit, chunk }
}

/// The tag of the totals at the end; chunk 2^30 is that of step 2^62.
fn totals_tag(transport: &dyn Transport) -> Tag {
    record_tag(transport, 1 << 62)
}

/// The tag of messages between two runs; above that of the totals.
fn word_tag(transport: &dyn Transport) -> Tag {
    record_tag(transport, (1 << 62) + (1 << 32))
}

/// The first rank tells each of the others something, before a run.
pub(crate) fn tell_each<W: serde::Serialize>(
    transport: &mut dyn Transport,
    word: impl Fn(Rank) -> W,
) -> Result<(), RunError> {
    let tag = word_tag(transport);
    let mut told = others(transport).into_iter().map(|rank| send(transport, rank, tag, &word(rank)));
    told.try_for_each(|told| told.map_err(|error| lost(FIRST, 0, error)))
}

/// What the first rank tells before a run.
pub(crate) fn hear_first<T: serde::de::DeserializeOwned>(
    transport: &mut dyn Transport,
) -> Result<T, RunError> {
    let tag = word_tag(transport);
    hear(transport, FIRST, tag, 0)
}

/// Works as any rank but the first, from the beginning or from a checkpoint that all have read. When
/// `interrupt` becomes true, the first rank is told to end the run. Returns the number of steps done if the
/// run was ended before its last.
///
/// # Errors
///
/// [`RunError`]. The transport decides what that means to the others; with MPI the job is to be aborted.
pub fn follow(
    job: &Job,
    transport: &mut dyn Transport,
    start: Option<&Checkpoint>,
    interrupt: Option<&AtomicBool>,
) -> Result<Option<u64>, RunError> {
    let rank = transport.rank();
    let control = Control { start: start.map(|checkpoint| (checkpoint, &[][..])), interrupt };
    match work(job, &mut *transport, &|_| job.build_model(), control, &mut Follower { interrupt }) {
        Ok(end) => {
            let tag = totals_tag(transport);
            let sent = send(transport, FIRST, tag, &totals(end.counters));
            sent.map(|()| None).map_err(|error| lost(rank, job.steps, error))
        }
        // The first rank reports the end.
        Err((steps, WorkerError::Stopped)) => Ok(Some(steps)),
        Err((step, error)) => Err(failed(rank, step, error)),
    }
}

/// All ranks but the first.
struct Follower<'r> {
    interrupt: Option<&'r AtomicBool>,
}

impl<'a, T: Transport> Connections<'a, T> for Follower<'_> {
    fn begin(&mut self, _: &mut Worker<'a, Meter<T>>, _: u64) -> Result<(), WorkerError> {
        Ok(())
    }

    fn ends_after(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<bool, WorkerError> {
        let tag = record_tag(worker.transport(), step);
        hear(worker.transport(), FIRST, tag, step).map_err(WorkerError::Run)
    }

    fn tell(&mut self, worker: &mut Worker<'a, Meter<T>>, mut record: StepRecord) -> Result<(), WorkerError> {
        record.wants_end = self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed));
        let tag = record_tag(worker.transport(), record.step);
        send(worker.transport(), FIRST, tag, &record).map_err(|error| WorkerError::Step(wrapped(error)))
    }
}

/// Works as the first rank, listens to all, and returns the whole run. When any rank wants an end, all finish
/// their step, and a checkpoint is made of it.
///
/// # Errors
///
/// As [`follow`]; and as [`run`](crate::run::run), for the first rank compares the replicas.
pub fn lead(
    job: &Job,
    transport: &mut dyn Transport,
    control: Control<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let collected = Collected::since(Instant::now(), control.start);
    let mut leader = Leader {
        job,
        control,
        observer,
        collected,
        waiting: None,
        is_end_wanted: false,
        ends: false,
        failure: None,
    };
    let ended = work(job, &mut *transport, &|_| job.build_model(), control, &mut leader);
    if let Some(failure) = leader.failure.take() {
        return Err(failure);
    }
    let end = match ended {
        Ok(end) => end,
        Err((steps, WorkerError::Stopped)) => return Err(RunError::Interrupted { steps }),
        Err((step, error)) => {
            let error = failed(FIRST, step, error);
            // Others have reported the step before, which all have done.
            if error.divergence().is_some() {
                let _ = leader.take_last(transport);
            }
            return Err(error);
        }
    };
    leader.take_last(transport)?;
    if let Some(failure) = leader.failure {
        return Err(failure);
    }
    let mut finals = vec![end];
    for rank in others(transport) {
        let tag = totals_tag(transport);
        let counters = counters(hear(transport, rank, tag, job.steps)?);
        finals.push(Final { counters, evaluation: None, best_steps: None });
    }
    Ok(leader.collected.outcome(job, &finals))
}

/// The first rank.
struct Leader<'r> {
    job: &'r Job,
    control: Control<'r>,
    observer: &'r mut dyn Observer,
    collected: Collected,
    /// Its own record of the last step, for which it has not yet heard of the others.
    waiting: Option<StepRecord>,
    /// Whether another rank wants the run to end.
    is_end_wanted: bool,
    /// What the first rank told the others before this step: whether the run ends after it.
    ends: bool,
    /// Why the run is to end. Others learn of it before the next step, so that all end after the same one.
    failure: Option<RunError>,
}

impl Leader<'_> {
    fn take(&mut self, transport: &mut dyn Transport, own: StepRecord) -> Result<(), RunError> {
        let records = hear_all(transport, own)?;
        self.is_end_wanted |= records.iter().any(|record| record.wants_end);
        if self.failure.is_none() {
            self.failure = self.collected.take(self.job, records, self.observer).err();
        }
        Ok(())
    }

    fn take_last(&mut self, transport: &mut dyn Transport) -> Result<(), RunError> {
        self.waiting.take().map_or(Ok(()), |last| self.take(transport, last))
    }
}

impl<'a, T: Transport> Connections<'a, T> for Leader<'_> {
    fn begin(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<(), WorkerError> {
        self.ends = self.failure.is_some() || self.is_end_wanted || self.control.is_interrupted();
        let transport = worker.transport();
        let tag = record_tag(transport, step);
        let mut told = others(transport).into_iter().map(|rank| send(transport, rank, tag, &self.ends));
        told.try_for_each(|told| told.map_err(|error| WorkerError::Step(wrapped(error))))
    }

    fn ends_after(&mut self, _: &mut Worker<'a, Meter<T>>, _: u64) -> Result<bool, WorkerError> {
        Ok(self.ends)
    }

    fn tell(&mut self, worker: &mut Worker<'a, Meter<T>>, record: StepRecord) -> Result<(), WorkerError> {
        let is_checkpoint = record.snapshot.is_some();
        self.take_last(worker.transport()).map_err(WorkerError::Run)?;
        self.waiting = Some(record);
        if is_checkpoint { self.take_last(worker.transport()).map_err(WorkerError::Run) } else { Ok(()) }
    }
}

fn others(transport: &dyn Transport) -> Vec<Rank> {
    transport.membership().ranks.iter().filter(|rank| *rank != FIRST).collect()
}

/// Everybody's record of the step of `own`, in rank order.
fn hear_all(transport: &mut dyn Transport, own: StepRecord) -> Result<Vec<StepRecord>, RunError> {
    let step = own.step;
    let mut records = vec![own];
    for rank in others(transport) {
        let tag = record_tag(transport, step);
        let record: StepRecord = hear(transport, rank, tag, step)?;
        records.push(StepRecord { rank, ..record });
    }
    Ok(records)
}

fn hear<T: serde::de::DeserializeOwned>(
    transport: &mut dyn Transport,
    rank: Rank,
    tag: Tag,
    step: u64,
) -> Result<T, RunError> {
    let mut bytes = Vec::new();
    transport.recv(rank, tag, &mut bytes, Deadline::NEVER).map_err(|error| lost(FIRST, step, error))?;
    postcard::from_bytes(&bytes).map_err(|_| RunError::Record { rank, step })
}

fn send(
    transport: &mut dyn Transport,
    to: Rank,
    tag: Tag,
    what: &impl serde::Serialize,
) -> Result<(), TransportError> {
    // Numbers, truth values and strings: nothing that could not be written.
    let bytes = postcard::to_stdvec(what).unwrap_or_default();
    transport.send(to, tag, &bytes, Deadline::NEVER)
}

fn wrapped(error: TransportError) -> StepError {
    StepError::Exchange(error.into())
}

fn lost(rank: Rank, step: u64, error: TransportError) -> RunError {
    RunError::Worker { rank, step, error: wrapped(error) }
}

fn failed(rank: Rank, step: u64, error: WorkerError) -> RunError {
    match error {
        WorkerError::Job(error) => error.into(),
        WorkerError::Run(error) => error,
        WorkerError::Step(error) => RunError::Worker { rank, step, error },
        WorkerError::Stopped => RunError::Interrupted { steps: step },
    }
}

/// Counters as numbers that can be sent: up, then down.
type Totals = [[u64; 3]; 2];

fn totals(counters: Counters) -> Totals {
    [counters.up, counters.down]
        .map(|traffic| [traffic.messages, traffic.payload_bytes, traffic.envelope_bytes])
}

fn counters(totals: Totals) -> Counters {
    let [up, down] = totals.map(|[messages, payload_bytes, envelope_bytes]| Traffic {
        messages,
        payload_bytes,
        envelope_bytes,
    });
    Counters { up, down }
}

#[cfg(test)]
mod tests {
    use gradwire_transports::local;

    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_names_who_sent_it() {
        let [mut first, mut second] = local::world(2).try_into().unwrap();
        let tag = record_tag(&first, 5);
        second.send(FIRST, tag, b"\xff", Deadline::NEVER).unwrap();
        let error = hear::<StepRecord>(&mut first, Rank(1), tag, 5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "worker 1 at step 5: its record cannot be read; do all ranks run the same program?"
        );
    }

    #[test]
    fn totals_round_trip() {
        let traffic =
            |first| Traffic { messages: first, payload_bytes: first + 1, envelope_bytes: first + 2 };
        let counted = Counters { up: traffic(1), down: traffic(10) };
        assert_eq!(counters(totals(counted)), counted);
    }
}
