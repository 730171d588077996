//! Settings from the command line and from a file.

use std::path::PathBuf;

use crate::config::Settings;
use crate::job::JobError;

/// The settings of the file, overridden by those of the command line.
pub(super) fn settings(own: &Settings, file: Option<&PathBuf>) -> Result<Settings, JobError> {
    Ok(match file {
        Some(path) => own.clone().over(Settings::read(path)?),
        None => own.clone(),
    })
}
