//! How the runs of a comparison are done, one after the other.

use std::sync::atomic::Ordering;

use crate::checkpoint::Checkpoint;
use crate::job::Job;
use crate::process::interrupt;
use crate::record::folder::Folder;
use crate::run::in_folder::{resume_into, run_into};
use crate::run::{Outcome, RunError};

/// Lines of progress for each run, in a pipe.
pub(crate) const LINES: u64 = 2;

/// A run whose turn it is.
pub(crate) struct Turn<'a> {
    /// The run.
    pub(crate) job: &'a Job,
    /// Its folder.
    pub(crate) folder: &'a Folder,
    /// What its progress is called.
    pub(crate) label: &'a str,
    /// Where it continues; `None` for its first step.
    pub(crate) start: Option<&'a Checkpoint>,
}

/// Does runs.
pub(crate) trait Runner {
    /// Does one.
    ///
    /// # Errors
    ///
    /// [`RunError`], after which the next one can be done.
    fn run(&mut self, turn: &Turn<'_>) -> Result<Outcome, RunError>;

    /// Whether the user wants no further run.
    fn is_interrupted(&self) -> bool {
        interrupt::requested().load(Ordering::Relaxed)
    }
}

/// With workers that are threads of this process.
pub(crate) struct InThreads;

impl Runner for InThreads {
    fn run(&mut self, turn: &Turn<'_>) -> Result<Outcome, RunError> {
        let Turn { job, folder, label, start } = turn;
        match start {
            Some(checkpoint) => resume_into(job, folder, checkpoint, label, LINES),
            None => run_into(job, folder, label, LINES),
        }
    }
}
