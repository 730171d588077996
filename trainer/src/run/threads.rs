//! A run whose workers are threads of this process.
//!
//! Workers meet only in the exchange, which waits for frames by rank and not by time, so what they compute
//! does not depend on which thread runs when. The thread that called [`run`] combines the records of a step
//! when all are there, compares the replicas, and tells an [`Observer`].

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use gradwire_transports::layer::{FaultInjector, FaultPlan, Meter};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Rank, Transport, local};

use super::collect::{Collected, collect};
use super::control::Control;
use super::error::RunError;
use super::observer::Observer;
use super::outcome::{Final, Outcome};
use super::work::{Connections, WorkerError, WorkerResult, work};
use crate::job::Job;
use crate::model::{Model, ModelError};
use crate::process::threads::NoThread;
use crate::record::StepRecord;
use crate::step::Worker;

/// Runs the job to its end.
///
/// # Errors
///
/// [`RunError`]; all workers have ended then.
///
/// # Determinism
///
/// Everything but the times is the same whenever the same binary runs the same job on the same kind of CPU.
pub fn run(job: &Job, observer: &mut dyn Observer) -> Result<Outcome, RunError> {
    run_with_models(job, &|_| job.build_model(), Control::default(), observer)
}

/// As [`run`], with models of the caller's, one for each rank. They must have the job's layout.
///
/// # Errors
///
/// As [`run`].
pub fn run_with_models(
    job: &Job,
    model: &(dyn Fn(Rank) -> Result<Box<dyn Model>, ModelError> + Sync),
    control: Control<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let ending = Ending { stop: AtomicBool::new(false), before: AtomicU64::new(u64::MAX) };
    let before = Collected::since(Instant::now(), control.start);
    let (sender, receiver) = channel();
    let transports = local::world(job.config.workers as u32);
    let losses = losses(job);
    let (started, collected, finals) = thread::scope(|scope| {
        let spawn = |transport: LocalTransport| {
            let rank = transport.rank();
            let mut ties = Thread { ending: &ending, control, records: sender.clone() };
            let transport = FaultInjector::new(transport, losses);
            let work = move || work(job, transport, model, control, &mut ties);
            let thread = thread::Builder::new().name(format!("worker {}", rank.0)).spawn_scoped(scope, work);
            Ok((rank, thread.map_err(NoThread::of(format!("worker {} of {}", rank.0, job.config.workers)))?))
        };
        let mut threads = Vec::new();
        // Without one of them, the others have lost a peer: they end by themselves.
        let started: Result<(), NoThread> = transports
            .into_iter()
            .try_for_each(|transport| spawn(transport).map(|thread| threads.push(thread)));
        drop(sender);
        let collected = collect(before, job, &receiver, observer, &ending.stop);
        let finals: Vec<_> = threads.into_iter().map(|(rank, thread)| (rank, join(thread))).collect();
        (started, collected, finals)
    });
    started?;
    let collected = collected?;
    Ok(collected.outcome(job, &first_failure(finals)?))
}

/// The packets that get lost between threads, where the user wants that.
fn losses(job: &Job) -> FaultPlan {
    let drop = job.config.packet_loss.unwrap_or(0.0);
    FaultPlan { seed: job.config.seed, drop, only_packets: true, ..FaultPlan::default() }
}

/// What threads share of the end of their run.
struct Ending {
    /// At once: the run has failed.
    stop: AtomicBool,
    /// The user wants the run to end before this step. Rank 0 sets it before it sends its part of the
    /// preceding step, so every worker that has finished that step knows.
    before: AtomicU64,
}

/// A worker that is a thread of this process.
struct Thread<'r> {
    ending: &'r Ending,
    control: Control<'r>,
    records: Sender<StepRecord>,
}

impl<'a, T: Transport> Connections<'a, T> for Thread<'_> {
    fn begin(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<(), WorkerError> {
        if self.ending.stop.load(Ordering::Relaxed) {
            return Err(WorkerError::Stopped);
        }
        if worker.rank() == Rank(0) && self.control.is_interrupted() {
            self.ending.before.store(step + 1, Ordering::Release);
        }
        Ok(())
    }

    fn ends_after(&mut self, _: &mut Worker<'a, Meter<T>>, step: u64) -> Result<bool, WorkerError> {
        Ok(self.ending.before.load(Ordering::Acquire) == step + 1)
    }

    fn tell(&mut self, _: &mut Worker<'a, Meter<T>>, record: StepRecord) -> Result<(), WorkerError> {
        // If no thread listens any more, the run is being ended.
        self.records.send(record).map_err(|_| WorkerError::Stopped)
    }
}

fn join(thread: ScopedJoinHandle<'_, WorkerResult>) -> Result<WorkerResult, String> {
    thread.join().map_err(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "no message".to_owned()).replace('\n', " ")
    })
}

/// The results of all workers, or the failure that explains the others. If nothing failed, a worker stopped
/// only because the user wants the end.
fn first_failure(results: Vec<(Rank, Result<WorkerResult, String>)>) -> Result<Vec<Final>, RunError> {
    let mut finals = Vec::new();
    let (mut consequence, mut interrupted) = (None, None);
    for (rank, result) in results {
        match result {
            Ok(Ok(end)) => finals.push(end),
            Err(message) => return Err(RunError::Panic { rank, message }),
            Ok(Err((_, WorkerError::Job(error)))) => return Err(error.into()),
            Ok(Err((_, WorkerError::Run(error)))) => return Err(error),
            Ok(Err((step, WorkerError::Step(error)))) if !error.is_consequence() => {
                return Err(RunError::Worker { rank, step, error });
            }
            Ok(Err((step, WorkerError::Step(error)))) => {
                consequence.get_or_insert(RunError::Worker { rank, step, error });
            }
            Ok(Err((steps, WorkerError::Stopped))) => interrupted = Some(RunError::Interrupted { steps }),
        }
    }
    consequence.or(interrupted).map_or(Ok(finals), Err)
}
