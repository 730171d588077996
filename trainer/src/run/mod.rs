//! A whole run: one thread a worker, and one place where their records come together.
//!
//! Workers meet in the exchange alone, which waits for frames by rank and not by time, so what they compute does not
//! depend on which thread runs when. The thread that called [`run`] puts the records of a step together when all are
//! there, compares the replicas, and tells an [`Observer`].

pub(crate) mod collect;
pub mod in_folder;
pub mod processes;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use gradwire_transports::layer::{FaultInjector, FaultPlan, Meter};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Counters, Rank, Transport, local};

use crate::checkpoint::Checkpoint;
use crate::data::Part;
use crate::job::{Job, JobError};
use crate::model::eval::Evaluation;
use crate::model::{Model, ModelError};
use crate::record::{Metrics, StepRecord, Summary};
use crate::run::collect::{Collected, MAX_REFUSED_IN_A_ROW, collect};
use crate::step::{StepError, Worker};

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker could not begin.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A worker failed.
    #[error("worker {} at step {step}: {error}", rank.0)]
    Worker {
        /// Which worker.
        rank: Rank,
        /// At which step.
        step: u64,
        /// Why.
        error: StepError,
    },
    /// A worker panicked.
    #[error("worker {} panicked: {message}", rank.0)]
    Panic {
        /// Which worker.
        rank: Rank,
        /// What it said.
        message: String,
    },
    /// Replicas that must be the same are not.
    #[error("replicas differ after step {step}: {}", differing(groups))]
    Diverged {
        /// After which step.
        step: u64,
        /// Parameter hashes, and who has them.
        groups: Vec<(u64, Vec<Rank>)>,
    },
    /// The mean was refused again and again.
    #[error("step {step}: the {MAX_REFUSED_IN_A_ROW}th mean in a row was refused: {why}")]
    Refused {
        /// The last of the steps.
        step: u64,
        /// What was wrong with its mean.
        why: String,
    },
    /// The user ended it. What was done is in a checkpoint.
    #[error("interrupted after {steps} steps")]
    Interrupted {
        /// Steps done.
        steps: u64,
    },
    /// What another worker tells of a step cannot be read.
    #[error("worker {} at step {step}: its record cannot be read; is it the same program?", rank.0)]
    Record {
        /// Which worker.
        rank: Rank,
        /// Of which step.
        step: u64,
    },
    /// What was observed could not be written.
    #[error("{0}")]
    Observer(String),
}

fn differing(groups: &[(u64, Vec<Rank>)]) -> String {
    let name = |(hash, ranks): &(u64, Vec<Rank>)| {
        let ranks: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
        format!("{hash:016x} at rank {}", ranks.join(", "))
    };
    groups.iter().map(name).collect::<Vec<_>>().join("; ")
}

/// Hears of every step, in order, on the thread that called [`run`].
pub trait Observer {
    /// A step is complete.
    ///
    /// # Errors
    ///
    /// What went wrong, in one line; the run then ends.
    fn step(&mut self, metrics: &Metrics) -> Result<(), String>;

    /// A step was refused, and skipped by all workers.
    fn refused(&mut self, step: u64, why: &str);

    /// A checkpoint is due; [`step`](Self::step) was told of all its steps.
    ///
    /// # Errors
    ///
    /// What went wrong, in one line; the run then ends.
    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        let _ = checkpoint;
        Ok(())
    }
}

/// Where a run begins and what may end it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control<'a> {
    /// Go on from here, with the metrics of the steps done.
    pub start: Option<(&'a Checkpoint, &'a [Metrics])>,
    /// When it becomes true, the step in progress is finished, a checkpoint is made, and the run ends.
    pub interrupt: Option<&'a AtomicBool>,
}

impl<'a> Control<'a> {
    pub(crate) fn start(&self) -> Option<&'a Checkpoint> {
        self.start.map(|(checkpoint, _)| checkpoint)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
    }
}

/// How a worker hears of the others, and all of them of the end that the user wants.
pub(crate) trait Ties<'a, T: Transport> {
    /// Called before a step, of which nothing was sent yet.
    fn begin(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<(), WorkerError>;

    /// Called when the step is done: whether all end behind it. Every worker gets the same answer.
    fn ends_after(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<bool, WorkerError>;

    /// Takes what the worker says of the step.
    fn tell(&mut self, worker: &mut Worker<'a, Meter<T>>, record: StepRecord) -> Result<(), WorkerError>;
}

/// What threads share of the end of their run.
struct Ending {
    /// At once: the run has failed.
    stop: AtomicBool,
    /// Before this step: the user wants it. Rank 0 sets it before it sends its part of the step in front, so whoever has
    /// finished that step knows.
    before: AtomicU64,
}

/// A worker that is a thread of this process.
struct Thread<'r> {
    ending: &'r Ending,
    control: Control<'r>,
    records: Sender<StepRecord>,
}

impl<'a, T: Transport> Ties<'a, T> for Thread<'_> {
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
        // Nobody listens any more only when the run is being ended.
        self.records.send(record).map_err(|_| WorkerError::Stopped)
    }
}

/// What a run leaves in memory.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run in one object.
    pub summary: Summary,
    /// Every step.
    pub metrics: Vec<Metrics>,
    /// What each worker's meter counted, in rank order.
    pub counters: Vec<Counters>,
}

/// What a worker says at the end.
pub(crate) struct Final {
    pub(crate) counters: Counters,
    pub(crate) evaluation: Option<Evaluation>,
}

type WorkerResult = Result<Final, (u64, WorkerError)>;

pub(crate) enum WorkerError {
    Job(JobError),
    Step(StepError),
    Run(RunError),
    /// Somebody else ended the run.
    Stopped,
}

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
    let (collected, finals) = std::thread::scope(|scope| {
        let spawn = |transport: LocalTransport| {
            let rank = transport.rank();
            let mut ties = Thread { ending: &ending, control, records: sender.clone() };
            let transport = FaultInjector::new(transport, losses);
            (rank, scope.spawn(move || work(job, transport, model, control.start(), &mut ties)))
        };
        let threads: Vec<_> = transports.into_iter().map(spawn).collect();
        drop(sender);
        let collected = collect(before, job, &receiver, observer, &ending.stop);
        (collected, threads.into_iter().map(|(rank, thread)| (rank, join(thread))).collect::<Vec<_>>())
    });
    let collected = collected?;
    let finals = first_failure(finals)?;
    let steps = ending.before.into_inner();
    if steps < job.steps { Err(RunError::Interrupted { steps }) } else { Ok(collected.outcome(job, &finals)) }
}

/// The packets that get lost between threads, where the user wants that.
fn losses(job: &Job) -> FaultPlan {
    let drop = job.config.packet_loss.unwrap_or(0.0);
    FaultPlan { seed: job.config.seed, drop, only_packets: true, ..FaultPlan::default() }
}

/// What a worker does, from the first step or that of a checkpoint to the last.
pub(crate) fn work<'a, T: Transport>(
    job: &'a Job,
    transport: T,
    model: &(dyn Fn(Rank) -> Result<Box<dyn Model>, ModelError> + Sync),
    start: Option<&Checkpoint>,
    ties: &mut impl Ties<'a, T>,
) -> WorkerResult {
    let refused = |error: JobError| (0, WorkerError::Job(error));
    let model = model(transport.rank()).map_err(|error| refused(error.into()))?;
    let mut worker = Worker::new(job, Meter::new(transport), model).map_err(refused)?;
    if let Some(checkpoint) = start {
        worker.go_on_from(checkpoint).map_err(|error| refused(error.into()))?;
    }
    for step in start.map_or(0, |checkpoint| checkpoint.steps)..job.steps {
        let at = |error| (step, error);
        let failed = |error| (step, WorkerError::Step(error));
        ties.begin(&mut worker, step).map_err(at)?;
        let mut record = worker.step(step).map_err(failed)?;
        if worker.evaluates(step) {
            record.evaluation = Some(worker.evaluate(Part::Valid).map_err(failed)?);
        }
        let is_end = ties.ends_after(&mut worker, step).map_err(at)?;
        if is_end || job.is_checkpoint_due(step) {
            record.snapshot = Some(worker.snapshot());
        }
        ties.tell(&mut worker, record).map_err(at)?;
        if is_end && step + 1 < job.steps {
            return Err((step + 1, WorkerError::Stopped));
        }
    }
    let tested = (worker.rank() == Rank(0)).then(|| worker.evaluate(Part::Test)).transpose();
    let evaluation = tested.map_err(|error| (job.steps, WorkerError::Step(error)))?;
    Ok(Final { counters: worker.counters(), evaluation })
}

fn join(thread: ScopedJoinHandle<'_, WorkerResult>) -> Result<WorkerResult, String> {
    thread.join().map_err(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "no message".to_owned()).replace('\n', " ")
    })
}

/// The results of all workers, or the failure that explains the others.
fn first_failure(results: Vec<(Rank, Result<WorkerResult, String>)>) -> Result<Vec<Final>, RunError> {
    let mut finals = Vec::new();
    let mut consequence = None;
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
            Ok(Err((_, WorkerError::Stopped))) => {}
        }
    }
    consequence.map_or(Ok(finals), Err)
}
