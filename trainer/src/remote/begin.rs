//! Whether an end begins or continues, and with which configuration.

use std::path::{Path, PathBuf};

use super::job::resumed;
use crate::checkpoint::{Found, latest};
use crate::command::{Begin, Failure, Output, output_in};
use crate::config::{ConfigError, RunConfig, Settings};
use crate::job::JobError;

/// What either end is told of an earlier process.
#[derive(Debug, clap::Args)]
pub(super) struct BeginArgs {
    /// Continue what this end wrote into this folder from its newest checkpoint, or from the checkpoint that
    /// DIR names. Takes no settings of the run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "force", "resume_or_start"])]
    resume: Option<PathBuf>,
    /// Continue what this end wrote into this folder, or start there if there is nothing: one command for
    /// systemd and Kubernetes. Takes the settings of the run, which must be those that the folder holds
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "force"])]
    resume_or_start: Option<PathBuf>,
}

impl BeginArgs {
    /// The checkpoint to continue from, if there is one, and the configuration of the run; `None` if all
    /// steps are done.
    pub(super) fn find(
        &self,
        settings: &Settings,
        given: impl Fn() -> Result<RunConfig, ConfigError>,
        command: &str,
    ) -> Result<Option<(Option<Found>, RunConfig)>, Failure> {
        if let Some(path) = &self.resume {
            let found = latest(path).map_err(JobError::from)?;
            let config = resumed(&found, settings, command)?;
            return Ok(Some((Some(found), config)));
        }
        let config = given().map_err(JobError::from)?;
        let Some(path) = &self.resume_or_start else { return Ok(Some((None, config))) };
        match Begin::of(path, &config)? {
            Begin::Start => Ok(Some((None, config))),
            Begin::Resume(found) => {
                resumed(&found, &Settings::default(), command)?;
                Ok(Some((Some(*found), config)))
            }
            Begin::Done => Ok(None),
        }
    }

    /// The folder that was named.
    pub(super) fn folder(&self) -> &Path {
        self.resume_or_start.as_deref().or(self.resume.as_deref()).unwrap_or(Path::new("."))
    }

    /// Where an end that starts writes.
    pub(super) fn output(&self, named: &Output) -> Output {
        self.resume_or_start.as_deref().map_or(named.clone(), output_in)
    }
}
