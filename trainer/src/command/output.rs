//! The folder of a command's results.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::checkpoint::Checkpoint;
use crate::compare::file_name;
use crate::job::Job;
use crate::record::folder::{Folder, FolderError};

#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Folder for the results [default: a folder under runs/]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write into the folder even if it is not empty
    #[arg(long)]
    pub(crate) force: bool,
}

/// The folder that was named, or one for this job.
pub(crate) fn create_folder(job: &Job, output: &Output) -> Result<Folder, FolderError> {
    let name = format!("runs/{}-{}-seed-{}", job.config.data, file_name(&job.config.codec), job.config.seed);
    Folder::create(&output.out.clone().unwrap_or_else(|| name.into()), output.force)
}

/// The folder of a run that has steps to do.
pub(crate) fn reopen(run: &Path, job: &Job, checkpoint: &Checkpoint) -> Result<Folder, Failure> {
    let folder = Folder::open(run)?;
    // A process may have been killed between its last step and its summary.
    if checkpoint.steps >= job.steps && folder.file("summary.json").exists() {
        return Err(Failure::Usage(format!("{}: all {} steps are done", run.display(), job.steps)));
    }
    Ok(folder)
}
