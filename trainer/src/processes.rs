//! A run whose workers are processes: each [`follow`]s, and the first one [`lead`]s, which is to work as the others do
//! and to put together what they tell.
//!
//! Workers tell the first one of a step when they have done it; the first one listens when it has done the next, so
//! that nobody waits for a record. Records are no part of the traffic that a run reports.

use std::time::Instant;

use gradwire_transports::{Counters, Deadline, Rank, Tag, Traffic, Transport, TransportError};

use crate::collect::Collected;
use crate::job::Job;
use crate::record::StepRecord;
use crate::run::{Control, Ending, Final, Observer, Outcome, RunError, WorkerError, work};
use crate::step::StepError;

/// Who listens.
const FIRST: Rank = Rank(0);

/// The record of a step. Above all steps that are trained, so that it is not retired with them.
fn record_tag(transport: &dyn Transport, step: u64) -> Tag {
    let (unit, chunk) = (step as u32, (step >> 32) as u32);
    Tag { epoch: transport.membership().epoch, step: u64::MAX, unit, chunk }
}

/// The totals at the end; chunk 2^30 is that of step 2^62.
fn totals_tag(transport: &dyn Transport) -> Tag {
    record_tag(transport, 1 << 62)
}

/// Works as any rank but the first.
///
/// # Errors
///
/// [`RunError`]. The transport decides what that means to the others; with MPI the job is to be aborted.
pub fn follow(job: &Job, transport: &mut dyn Transport) -> Result<(), RunError> {
    let rank = transport.rank();
    let ending = Ending::never();
    let end =
        work(job, &mut *transport, &|_| job.build_model(), Control::default(), &ending, |worker, record| {
            let tag = record_tag(worker.transport(), record.step);
            send(worker.transport(), tag, &record).map_err(|error| WorkerError::Step(wrapped(error)))
        });
    let end = end.map_err(|(step, error)| failed(rank, step, error))?;
    let tag = totals_tag(transport);
    send(transport, tag, &totals(end.counters)).map_err(|error| lost(rank, job.steps, error))
}

/// Works as the first rank, hears of all, and returns the whole run.
///
/// # Errors
///
/// As [`follow`]; and as [`run`](crate::run::run), for the first rank compares the replicas.
pub fn lead(
    job: &Job,
    transport: &mut dyn Transport,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let (mut collected, mut before) = (Collected::since(Instant::now(), None), None);
    let ending = Ending::never();
    let end =
        work(job, &mut *transport, &|_| job.build_model(), Control::default(), &ending, |worker, record| {
            let Some(previous) = before.replace(record) else { return Ok(()) };
            let records = hear_all(worker.transport(), previous).map_err(WorkerError::Run)?;
            collected.take(job, records, observer).map_err(WorkerError::Run)
        });
    let end = end.map_err(|(step, error)| failed(FIRST, step, error))?;
    if let Some(last) = before {
        collected.take(job, hear_all(transport, last)?, observer)?;
    }
    let mut finals = vec![end];
    for rank in others(transport) {
        let tag = totals_tag(transport);
        let counters = counters(hear(transport, rank, tag, job.steps)?);
        finals.push(Final { counters, evaluation: None });
    }
    Ok(collected.outcome(job, &finals))
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

fn send(transport: &mut dyn Transport, tag: Tag, what: &impl serde::Serialize) -> Result<(), TransportError> {
    // Numbers, truth values and strings: nothing that could not be written.
    let bytes = postcard::to_stdvec(what).unwrap_or_default();
    transport.send(FIRST, tag, &bytes, Deadline::NEVER)
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
        WorkerError::Stopped => RunError::Observer("stopped".to_owned()),
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
            "worker 1 at step 5: its record cannot be read; is it the same program?"
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
