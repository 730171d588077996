//! What an earlier process left of a comparison's run.

use super::broken::{Broken, judged};
use crate::checkpoint::{Checkpoint, latest};
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
    /// Nowhere, or as another run than this.
    Nothing,
}

/// What the folder holds of this job.
pub(super) fn find(job: &Job, folder: &Folder) -> Kept {
    let config = std::fs::read_to_string(folder.file("config.toml"));
    if !config.is_ok_and(|config| config == job.config.to_toml()) {
        return Kept::Nothing;
    }
    if let Some(broken) = Broken::read(folder) {
        return Kept::Ended(Box::new(Err(broken)));
    }
    if let Some(outcome) = outcome(folder) {
        return Kept::Ended(Box::new(judged(job, Ok(outcome), folder)));
    }
    // A checkpoint that is damaged costs the steps that it would have saved, not the row.
    let found = latest(folder.path()).and_then(|found| found.read_all(&job.layout));
    match found {
        Ok(checkpoint) if checkpoint.config == job.config => Kept::Open(Box::new(checkpoint)),
        _ => Kept::Nothing,
    }
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
