//! One run with its folder and its progress.

use super::control::Control;
use super::error::RunError;
use super::observer::Observer;
use super::outcome::Outcome;
use super::threads::run_with_models;
use crate::checkpoint::{Checkpoint, Store};
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::record::Metrics;
use crate::record::events::{self, EventFile};
use crate::record::folder::{Folder, FolderError, MetricsFile};
use crate::record::progress::Progress;

/// Writes every step down and shows it.
struct Watch<'a> {
    job: &'a Job,
    checkpoints: Store,
    metrics: MetricsFile,
    events: Option<EventFile>,
    progress: Progress,
}

impl Observer for Watch<'_> {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.progress.step(metrics);
        self.metrics.push(metrics).map_err(|error| error.to_string())?;
        self.events.iter_mut().try_for_each(|events| events.push(metrics)).map_err(|error| error.to_string())
    }

    fn refused(&mut self, step: u64, why: &str) {
        self.progress.line(&format!("step {step} refused and skipped: {why}"));
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.metrics.sync().map_err(|error| error.to_string())?;
        let written = self.checkpoints.write(checkpoint, &self.job.layout);
        written.map(|_| ()).map_err(|error| format!("checkpoint not written: {error}"))
    }
}

fn written(error: &FolderError) -> RunError {
    RunError::Observer(error.to_string())
}

/// Runs a job and writes `config.toml`, `metrics.jsonl`, `summary.json` and checkpoints into the folder. In a
/// pipe, progress takes `lines` lines.
///
/// # Errors
///
/// As [`run`](crate::run::run), and if a file cannot be written.
pub fn run_into(job: &Job, folder: &Folder, label: &str, lines: u64) -> Result<Outcome, RunError> {
    write_down(job, folder, label, lines, |observer| in_threads(job, None, observer))
}

/// As [`run_into`], with a run of the caller's.
///
/// A run that kept no steps gets those in the file.
///
/// # Errors
///
/// The errors of the run, and an error if a file cannot be written, or checkpoints of an earlier run cannot
/// be removed.
pub fn write_down<E: From<RunError>>(
    job: &Job,
    folder: &Folder,
    label: &str,
    lines: u64,
    run: impl FnOnce(&mut dyn Observer) -> Result<Outcome, E>,
) -> Result<Outcome, E> {
    Store::of_run(folder.path()).clear().map_err(|error| RunError::Observer(error.to_string()))?;
    let config = job.config.to_toml().map_err(|error| RunError::from(JobError::from(error)))?;
    folder.write("config.toml", &config).map_err(|error| written(&error))?;
    let files = folder.metrics().and_then(|metrics| Ok((metrics, events(job, folder, &[])?)));
    watched(job, folder, files.map_err(|error| written(&error))?, label, lines, run)
}

/// As [`run_into`], but continues from a checkpoint of a run into the same folder.
///
/// # Errors
///
/// As [`go_on_writing`].
pub fn resume_into(
    job: &Job,
    folder: &Folder,
    checkpoint: &Checkpoint,
    label: &str,
    lines: u64,
) -> Result<Outcome, RunError> {
    go_on_writing(job, folder, checkpoint, label, lines, |(checkpoint, before), observer| {
        in_threads(job, Some((checkpoint, &before)), observer)
    })
}

/// As [`resume_into`], with a run of the caller's, which is given the checkpoint and the metrics of the steps
/// before it.
///
/// # Errors
///
/// As [`write_down`], and if `metrics.jsonl` lacks a step that is done.
pub fn go_on_writing<E: From<RunError>>(
    job: &Job,
    folder: &Folder,
    checkpoint: &Checkpoint,
    label: &str,
    lines: u64,
    run: impl FnOnce((&Checkpoint, Vec<Metrics>), &mut dyn Observer) -> Result<Outcome, E>,
) -> Result<Outcome, E> {
    let (before, metrics) = folder.metrics_behind(checkpoint.steps).map_err(|error| written(&error))?;
    let events = events(job, folder, &before).map_err(|error| written(&error))?;
    watched(job, folder, (metrics, events), label, lines, |observer| run((checkpoint, before), observer))
}

/// The event file with the steps that are done, if it is wanted. Removes the one of an earlier run.
fn events(job: &Job, folder: &Folder, done: &[Metrics]) -> Result<Option<EventFile>, FolderError> {
    folder.remove(events::FILE)?;
    job.config.tensorboard.unwrap_or(false).then(|| EventFile::create(folder, done)).transpose()
}

/// Until its end, or until the user wants it to end.
fn in_threads(
    job: &Job,
    start: Option<(&Checkpoint, &[Metrics])>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let control = Control { start, interrupt: Some(interrupt::requested()) };
    run_with_models(job, &|_| job.build_model(), control, observer)
}

fn watched<E: From<RunError>>(
    job: &Job,
    folder: &Folder,
    (metrics, events): (MetricsFile, Option<EventFile>),
    label: &str,
    lines: u64,
    run: impl FnOnce(&mut dyn Observer) -> Result<Outcome, E>,
) -> Result<Outcome, E> {
    let checkpoints = Store::of_run(folder.path());
    let progress = Progress::showing(&job.evaluating, label, job.steps, lines);
    let progress = if job.validates_on_test() { progress.on_test() } else { progress };
    let doubts = job.config.doubt().into_iter().chain(job.dataset.doubt());
    doubts.for_each(|doubt| progress.line(&format!("{label}: {doubt}")));
    let mut watch = Watch { job, checkpoints, metrics, events, progress };
    let outcome = run(&mut watch);
    watch.progress.finish();
    let mut outcome = outcome?;
    watch.metrics.sync().map_err(|error| written(&error))?;
    if outcome.metrics.is_empty() {
        outcome.metrics = folder.read_metrics(outcome.summary.steps).map_err(|error| written(&error))?;
    }
    let summary = serde_json::to_string_pretty(&outcome.summary)
        .map_err(|error| RunError::Observer(error.to_string()))?;
    folder.write("summary.json", &(summary + "\n")).map_err(|error| written(&error))?;
    Ok(outcome)
}
