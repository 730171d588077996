//! Runs without a result, and what is known of them.

use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::record::Metrics;
use crate::record::folder::{Folder, FolderError};
use crate::run::{Outcome, RunError};

/// The file of a run that diverged: it would do so again, so a comparison that is resumed keeps it.
const FILE: &str = "diverged.json";

/// Why a run has no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Loss, gradient or mean became infinite or no number.
    Diverged,
    /// Something else went wrong: the error, in one line.
    Failed(String),
    /// The user ended it; a checkpoint holds what was done.
    Interrupted,
    /// The user ended the comparison before it.
    NotBegun,
}

/// A run without a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// Its seed.
    pub seed: u64,
    /// Why.
    pub why: Why,
    /// The step that failed, or the number of steps done.
    pub step: u64,
    /// The last training loss that was a number.
    pub loss: Option<f64>,
}

impl Broken {
    /// A run that never came to its first step.
    pub(super) fn failed(job: &Job, error: impl ToString) -> Self {
        Self { seed: job.config.seed, why: Why::Failed(error.to_string()), step: 0, loss: None }
    }

    /// A run that the user did not wait for.
    pub(super) fn not_begun(job: &Job) -> Self {
        Self { seed: job.config.seed, why: Why::NotBegun, step: 0, loss: None }
    }

    /// What the error of a run means, with the losses that the run left in its folder.
    fn of(job: &Job, error: &RunError, folder: &Folder) -> Self {
        let losses = losses(folder);
        let loss = losses.iter().rev().find(|(_, loss)| loss.is_finite()).map(|&(_, loss)| loss);
        let done = losses.last().map_or(0, |&(step, _)| step + 1);
        let (why, step) = match error {
            RunError::Interrupted { steps } => (Why::Interrupted, *steps),
            other => match other.divergence() {
                Some(step) => (Why::Diverged, step),
                None => (Why::Failed(other.to_string()), done),
            },
        };
        Self { seed: job.config.seed, why, step, loss }
    }

    /// Whether the comparison can be resumed at this run.
    pub fn is_open(&self) -> bool {
        matches!(self.why, Why::Interrupted | Why::NotBegun)
    }

    /// What is known, in a few words.
    pub fn text(&self) -> String {
        let loss = self.loss.map_or(String::new(), |loss| format!(", loss {}", short(loss)));
        match &self.why {
            Why::Diverged => format!("diverged at step {}{loss}", self.step),
            Why::Failed(error) => format!("failed: {error}"),
            Why::Interrupted => format!("interrupted after {} steps{loss}", self.step),
            Why::NotBegun => "not begun".to_owned(),
        }
    }

    /// What an earlier process left of a run that diverged.
    pub(super) fn read(folder: &Folder) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(folder.file(FILE)).ok()?).ok()
    }

    /// Forgets what [`Broken::read`] would find.
    pub(super) fn forget(folder: &Folder) -> Result<(), FolderError> {
        folder.remove(FILE)
    }
}

/// A run that ended, with a result or without. A run that diverged is recorded.
pub(super) fn judged(
    job: &Job,
    ended: Result<Outcome, RunError>,
    folder: &Folder,
) -> Result<Outcome, Broken> {
    let broken = match ended {
        Ok(outcome) if outcome.summary.final_loss.is_finite() => return Ok(outcome),
        Ok(outcome) => diverged_at_the_end(job, &outcome),
        Err(error) => Broken::of(job, &error, folder),
    };
    if broken.why == Why::Diverged
        && let Ok(text) = serde_json::to_string(&broken)
    {
        // Without the file the run is done again when the comparison is resumed.
        let _ = folder.write(FILE, &(text + "\n"));
    }
    Err(broken)
}

/// Every mean was a number, but the parameters are not.
fn diverged_at_the_end(job: &Job, outcome: &Outcome) -> Broken {
    let finite = outcome.metrics.iter().rev().find(|line| line.loss.is_finite());
    let (step, loss) = finite.map_or((0, None), |line| (line.step + 1, Some(line.loss)));
    Broken { seed: job.config.seed, why: Why::Diverged, step, loss }
}

/// Steps and losses in `metrics.jsonl`, as far as it can be read.
fn losses(folder: &Folder) -> Vec<(u64, f64)> {
    let text = std::fs::read_to_string(folder.file("metrics.jsonl")).unwrap_or_default();
    let lines = text.lines().map_while(|line| serde_json::from_str::<Metrics>(line).ok());
    lines.map(|line| (line.step, line.loss)).collect()
}

/// Four digits, and an exponent for large numbers.
fn short(loss: f64) -> String {
    if loss.abs() < 1e4 { format!("{loss:.4}") } else { format!("{loss:.3e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_says_what_is_known() {
        let broken = |why, loss| Broken { seed: 1, why, step: 37, loss }.text();
        assert_eq!(broken(Why::Diverged, Some(8.123e12)), "diverged at step 37, loss 8.123e12");
        assert_eq!(broken(Why::Interrupted, Some(0.5)), "interrupted after 37 steps, loss 0.5000");
        assert_eq!(broken(Why::Failed("disk full".into()), None), "failed: disk full");
        assert_eq!(broken(Why::NotBegun, None), "not begun");
    }
}
