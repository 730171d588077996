//! One run with its folder and its progress.

use crate::folder::{Folder, FolderError, MetricsFile};
use crate::job::Job;
use crate::progress::Progress;
use crate::record::Metrics;
use crate::run::{Observer, Outcome, RunError, run};

/// Writes every step down and shows it.
struct Watch {
    metrics: MetricsFile,
    progress: Progress,
}

impl Observer for Watch {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.progress.step(metrics);
        self.metrics.push(metrics).map_err(|error| error.to_string())
    }

    fn refused(&mut self, step: u64, why: &str) {
        self.progress.line(&format!("step {step} refused and skipped: {why}"));
    }
}

fn written(error: &FolderError) -> RunError {
    RunError::Observer(error.to_string())
}

/// Runs a job and writes `config.toml`, `metrics.jsonl` and `summary.json` into the folder. In a pipe, progress is told
/// in so many lines.
///
/// # Errors
///
/// As [`run`], and if a file cannot be written.
pub fn run_into(job: &Job, folder: &Folder, label: &str, lines: u64) -> Result<Outcome, RunError> {
    folder.write("config.toml", &job.config.to_toml()).map_err(|error| written(&error))?;
    let metrics = folder.metrics().map_err(|error| written(&error))?;
    let mut watch = Watch { metrics, progress: Progress::new(label, job.steps, lines) };
    let outcome = run(job, &mut watch);
    watch.progress.finish();
    let outcome = outcome?;
    let summary = serde_json::to_string_pretty(&outcome.summary)
        .map_err(|error| RunError::Observer(error.to_string()))?;
    folder.write("summary.json", &(summary + "\n")).map_err(|error| written(&error))?;
    Ok(outcome)
}
