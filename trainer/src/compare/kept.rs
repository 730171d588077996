//! What an earlier process left of one run of a comparison.

use std::path::Path;

use super::broken::{Broken, judged};
use crate::checkpoint::{Checkpoint, CheckpointError, latest};
use crate::config::{ConfigError, RunConfig, Settings};
use crate::job::Job;
use crate::record::Summary;
use crate::record::folder::{Folder, FolderError};
use crate::run::Outcome;

/// How far a run has come.
pub(super) enum Kept {
    /// To its end.
    Ended(Box<Result<Outcome, Broken>>),
    /// To a checkpoint.
    Open(Box<Checkpoint>),
    /// To a checkpoint that cannot be read: why, and the one before it that can, if there is one.
    Damaged(String, Option<Box<Checkpoint>>),
    /// Nowhere, or the folder holds another run than this.
    Nothing,
}

/// What the folder holds of this job.
pub(super) fn find(job: &Job, folder: &Folder) -> Kept {
    let config = config(job, folder.path()).ok().flatten();
    let Some(config) = config.filter(|config| config.begins(&job.config)) else {
        return Kept::Nothing;
    };
    // It would diverge again at the same step.
    if let Some(broken) = Broken::read(folder) {
        return Kept::Ended(Box::new(Err(broken)));
    }
    let length = job.steps_of(&config);
    if length > job.steps {
        return Kept::Nothing;
    }
    // A shorter run is done if it ended early, as a longer one does.
    let is_whole = |outcome: &Outcome| config == job.config || outcome.summary.steps < length;
    if let Some(outcome) = outcome(folder).filter(is_whole) {
        return Kept::Ended(Box::new(judged(job, Ok(outcome), folder)));
    }
    match read(job, folder.path()) {
        Ok(checkpoint) => {
            checkpoint.map_or(Kept::Nothing, |checkpoint| with_metrics(job, folder, checkpoint))
        }
        Err(CheckpointError::None(_)) => Kept::Nothing,
        // A checkpoint that is damaged costs the steps that it would have saved, not the row.
        Err(error) => {
            let before = match &error {
                CheckpointError::Corrupt { before: Some(path), .. } => read(job, path).ok().flatten(),
                _ => None,
            };
            Kept::Damaged(error.to_string(), before)
        }
    }
}

/// A checkpoint whose steps are all recorded, or the one before it whose steps are.
fn with_metrics(job: &Job, folder: &Folder, checkpoint: Box<Checkpoint>) -> Kept {
    match folder.read_metrics(checkpoint.steps) {
        Ok(_) => Kept::Open(checkpoint),
        Err(error) => {
            let before = match &error {
                FolderError::Damaged { before: Some(path), .. } => read(job, path).ok().flatten(),
                _ => None,
            };
            Kept::Damaged(error.to_string(), before)
        }
    }
}

/// The configuration of the run there, if there is one. A run that did not note the checksum of its data is
/// taken to be about the data of this job.
pub(super) fn config(job: &Job, run: &Path) -> Result<Option<RunConfig>, ConfigError> {
    let file = run.join("config.toml");
    if !file.exists() {
        return Ok(None);
    }
    let config = RunConfig::resolve(&Settings::read(&file)?)?;
    let data_crc32 = config.data_crc32.clone().or(job.config.data_crc32.clone());
    Ok(Some(RunConfig { data_crc32, ..config }))
}

/// The newest checkpoint there, if it is one of this job, or of the same with an earlier end.
fn read(job: &Job, path: &Path) -> Result<Option<Box<Checkpoint>>, CheckpointError> {
    let checkpoint = latest(path)?.read_all(&job.layout)?;
    let is_own = checkpoint.config == job.config;
    let is_shorter = || checkpoint.config.begins(&job.config) && job.ensure_extensible(&checkpoint).is_ok();
    let is_ahead = checkpoint.steps > job.steps;
    Ok((is_own || is_shorter() && !is_ahead).then(|| Box::new(checkpoint)))
}

/// A run that came to its end. What the meters of its workers counted is not kept.
fn outcome(folder: &Folder) -> Option<Outcome> {
    let summary: Summary =
        serde_json::from_str(&std::fs::read_to_string(folder.file("summary.json")).ok()?).ok()?;
    // Fewer than those of the job, where a run ended early.
    let metrics = folder.read_metrics(summary.steps).ok()?;
    Some(Outcome { summary, metrics, counters: Vec::new() })
}

/// Forgets how the run of an earlier comparison in the same folder ended.
pub(super) fn forget(folder: &Folder) -> Result<(), FolderError> {
    Broken::forget(folder)?;
    folder.remove("summary.json")
}
