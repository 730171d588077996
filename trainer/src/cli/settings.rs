//! Settings from the command line and from a file.

use std::path::PathBuf;

use crate::command::{Failure, Output};
use crate::config::Settings;
use crate::job::JobError;
#[cfg(not(feature = "mpi"))]
use crate::process::launch::Launch;
#[cfg(not(feature = "mpi"))]
use crate::range::RangeError;
use crate::run::Length;

/// What a program without MPI says of a launcher.
#[cfg(not(feature = "mpi"))]
pub(super) const WITHOUT_MPI: &str = "this program was built without MPI: build it with --features mpi";

/// Nothing is added for processes that this program cannot join.
#[cfg(not(feature = "mpi"))]
pub(super) fn launched(_: Launch, settings: Settings) -> Result<Settings, RangeError> {
    Ok(settings)
}

/// The settings of the file, overridden by those of the command line.
pub(super) fn settings(own: &Settings, file: Option<&PathBuf>) -> Result<Settings, JobError> {
    Ok(match file {
        Some(path) => own.clone().over(Settings::read(path)?),
        None => own.clone(),
    })
}

/// The later end that `--resume` was told of, if any. It takes no other option.
pub(super) fn length_alone(
    settings: &Settings,
    file: Option<&PathBuf>,
    output: &Output,
) -> Result<Option<Length>, Failure> {
    let others = Settings { epochs: None, steps: None, ..settings.clone() };
    if others != Settings::default() || file.is_some() || output.out.is_some() || output.force {
        return Err(nothing_else());
    }
    Ok(Length::of(settings).map_err(JobError::from)?)
}

/// What `--resume` answers to any other option.
pub(super) fn nothing_else() -> Failure {
    Failure::Usage(
        "--resume takes no other option but --epochs or --steps: the settings of the run are in its folder"
            .to_owned(),
    )
}
