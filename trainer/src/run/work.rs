//! The work of one worker, in a thread or in a process of its own.

use gradwire_transports::layer::Meter;
use gradwire_transports::{Rank, Transport};

use super::control::Control;
use super::error::RunError;
use super::outcome::Final;
use crate::job::{Job, JobError};
use crate::model::{Model, ModelError};
use crate::record::StepRecord;
use crate::step::{Measured, StepError, Worker};

/// How a worker hears of the others, and all of them of the end that the user wants.
pub(crate) trait Connections<'a, T: Transport> {
    /// Called before a step, when nothing of it has been sent.
    fn begin(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<(), WorkerError>;

    /// Called when the step is done: whether all end after it. Every worker gets the same answer.
    fn ends_after(&mut self, worker: &mut Worker<'a, Meter<T>>, step: u64) -> Result<bool, WorkerError>;

    /// Takes the worker's report on the step.
    fn tell(&mut self, worker: &mut Worker<'a, Meter<T>>, record: StepRecord) -> Result<(), WorkerError>;
}

pub(super) type WorkerResult = Result<Final, (u64, WorkerError)>;

pub(crate) enum WorkerError {
    Job(JobError),
    Step(StepError),
    Run(RunError),
    /// Somebody else ended the run, or the user wants it to end.
    Stopped,
}

/// The work of a worker, from the first step or that of a checkpoint to the last.
pub(crate) fn work<'a, T: Transport>(
    job: &'a Job,
    transport: T,
    model: &(dyn Fn(Rank) -> Result<Box<dyn Model>, ModelError> + Sync),
    control: Control<'a>,
    ties: &mut impl Connections<'a, T>,
) -> WorkerResult {
    let refused = |error: JobError| (0, WorkerError::Job(error));
    let model = model(transport.rank()).map_err(|error| refused(error.into()))?;
    let mut worker =
        Worker::new(job, Meter::new(transport), model).map_err(refused)?.heeding(control.interrupt);
    let start = control.start();
    if let Some(checkpoint) = start {
        worker.go_on_from(checkpoint).map_err(|error| refused(error.into()))?;
    }
    let first = start.map_or(0, |checkpoint| checkpoint.steps);
    let mut known = Measured::Not;
    // Whether this worker's part of a checkpoint of the last step exists.
    let mut is_kept = start.is_some();
    for step in first..job.steps {
        if worker.has_learnt_enough(step) {
            break;
        }
        let at = |error| (step, error);
        let failed = |error| (step, WorkerError::Step(error));
        ties.begin(&mut worker, step).map_err(at)?;
        let mut record = worker.step(step).map_err(failed)?;
        known = worker.validate(step).map_err(failed)?;
        record.evaluation = known.complete();
        let is_over = worker.has_learnt_enough(step + 1);
        if is_over {
            record.hash = Some(worker.hash());
        }
        let is_end = ties.ends_after(&mut worker, step).map_err(at)? || worker.all_were_cut_short(known);
        is_kept = is_end || is_over || job.is_checkpoint_due(step);
        if is_kept {
            record.snapshot = Some(worker.snapshot());
        }
        ties.tell(&mut worker, record).map_err(at)?;
        if is_end && step + 1 < job.steps {
            return Err((step + 1, WorkerError::Stopped));
        }
    }
    let tested =
        worker.test(known.complete(), is_kept).map_err(|error| (job.steps, WorkerError::Step(error)))?;
    if tested == Measured::CutShort {
        return Err((job.steps, WorkerError::Stopped));
    }
    Ok(Final { counters: worker.counters(), evaluation: tested.complete(), best_steps: worker.best_steps() })
}
