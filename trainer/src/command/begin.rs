//! `--resume-or-start DIR`: the same command begins a run and continues it, as a service manager needs.

use std::path::Path;

use super::failure::Failure;
use super::output::Output;
use crate::checkpoint::{CheckpointError, Found, latest};
use crate::config::{RunConfig, Settings};
use crate::job::{Job, JobError};

/// What is to be done in a folder.
#[derive(Debug)]
pub(crate) enum Begin {
    /// There is no run yet, or one that was ended before its first checkpoint.
    Start,
    /// A run continues from here.
    Resume(Box<Found>),
    /// All steps are done.
    Done,
}

impl Begin {
    /// Looks into the folder, for a run with these settings.
    ///
    /// # Errors
    ///
    /// A run with other settings, each of which is named; a checkpoint that cannot be read.
    pub(crate) fn of(folder: &Path, given: &RunConfig) -> Result<Self, Failure> {
        let is_finished = folder.join("summary.json").exists();
        let known = folder.join("config.toml");
        match latest(folder) {
            Ok(found) => {
                ensure_same(folder, found.config(), given)?;
                let is_over = found.steps() >= Job::prepare(given.clone())?.steps;
                let is_done = is_over && (is_finished || found.worker().is_some());
                Ok(if is_done { Self::Done } else { Self::Resume(Box::new(found)) })
            }
            Err(error) if is_nothing(&error) && is_finished && known.exists() => {
                let known = Settings::read(&known).map_err(JobError::from)?;
                ensure_same(folder, &RunConfig::resolve(&known).map_err(JobError::from)?, given)?;
                Ok(Self::Done)
            }
            Err(error) if is_nothing(&error) => Ok(Self::Start),
            Err(error) => Err(JobError::from(error).into()),
        }
    }
}

/// Whether there is no checkpoint, or no folder.
fn is_nothing(error: &CheckpointError) -> bool {
    match error {
        CheckpointError::None(_) => true,
        CheckpointError::Io { error, .. } => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Where a run that starts is written: over a run that has no checkpoint, but over nothing else.
pub(crate) fn output_in(folder: &Path) -> Output {
    let is_begun = ["config.toml", "checkpoints"].iter().any(|name| folder.join(name).exists());
    Output { out: Some(folder.to_path_buf()), force: is_begun }
}

/// What a command says that has nothing to do.
pub(crate) fn done(folder: &Path) -> String {
    format!("{}: all steps are done", folder.display())
}

/// Refuses settings other than those of the run. Whether the data are the same shows when they are read.
fn ensure_same(folder: &Path, known: &RunConfig, given: &RunConfig) -> Result<(), Failure> {
    let given = &RunConfig { data_crc32: known.data_crc32.clone(), ..given.clone() };
    if known == given {
        return Ok(());
    }
    let text = |config: &RunConfig| config.to_toml().map_err(JobError::from);
    ensure_same_text(folder, "run", (&text(known)?, &text(given)?))
}

/// Refuses settings, a line each, that are not those of what is there.
pub(crate) fn ensure_same_text(
    folder: &Path,
    what: &str,
    (known, given): (&str, &str),
) -> Result<(), Failure> {
    if known == given {
        return Ok(());
    }
    Err(Failure::of_file(
        folder,
        format!(
            "the {what} there has {}; this command says {}: give the settings of the {what}, or another folder",
            only(known, given),
            only(given, known)
        ),
    ))
}

/// The lines of one text that the other one does not have as often, in their order.
fn only(of: &str, not: &str) -> String {
    let mut others: Vec<&str> = not.lines().collect();
    let is_own = |line: &&str| match others.iter().position(|other| other == line) {
        Some(at) => {
            others.swap_remove(at);
            false
        }
        None => !line.is_empty(),
    };
    let own: Vec<&str> = of.lines().filter(is_own).collect();
    if own.is_empty() { "nothing of the kind".to_owned() } else { own.join(", ") }
}
