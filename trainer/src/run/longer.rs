//! A run that gets a later end than it was begun with.

use super::error::RunError;
use crate::checkpoint::{Checkpoint, Store};
use crate::config::{ConfigError, RunConfig, ScheduleKind, Settings};
use crate::job::{Job, JobError};
use crate::range::require;
use crate::record::folder::{Folder, FolderError};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Passes over the training data.
    Epochs(u64),
    /// Steps.
    Steps(u64),
}

impl Length {
    /// The one that was given, if any was.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`] if both were given.
    pub fn of(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        match (settings.epochs, settings.steps) {
            (Some(_), Some(_)) => Err(ConfigError::Conflict("epochs and steps: give one of them".into())),
            (epochs, steps) => Ok(epochs.map(Self::Epochs).or(steps.map(Self::Steps))),
        }
    }

    /// The keys `epochs` and `steps`, of which one is set.
    pub(crate) fn keys(self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Epochs(epochs) => (Some(epochs), None),
            Self::Steps(steps) => (None, Some(steps)),
        }
    }

    fn steps(self, steps_per_epoch: u64) -> u64 {
        match self {
            Self::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
            Self::Steps(steps) => steps,
        }
    }
}

impl RunConfig {
    /// Whether a run of this configuration does the first steps of one of `longer`: they differ in their
    /// length at most, and no rate depends on that.
    pub(crate) fn begins(&self, longer: &Self) -> bool {
        self == longer || !self.rates_depend_on_length() && self.is_alike_but_for_length(longer)
    }

    /// Whether two configurations differ in their length at most.
    pub(crate) fn is_alike_but_for_length(&self, other: &Self) -> bool {
        Self { epochs: other.epochs, steps: other.steps, ..self.clone() } == *other
    }

    fn rates_depend_on_length(&self) -> bool {
        self.schedule == ScheduleKind::Cosine
    }
}

impl Job {
    /// The same run with a later end.
    ///
    /// # Errors
    ///
    /// [`JobError::Config`] if the end is not later, and if the rates of steps that are done depend on the
    /// length: a longer run would have done them at other rates.
    pub fn extended(mut self, length: Length) -> Result<Self, JobError> {
        let (epochs, steps) = length.keys();
        let (key, value) = match length {
            Length::Epochs(epochs) => ("epochs", epochs),
            Length::Steps(steps) => ("steps", steps),
        };
        if self.config.rates_depend_on_length() {
            let why = format!(
                "{key} with schedule = {}: its rates depend on the length, so a longer run differs from the first step on; begin a new one",
                self.config.schedule
            );
            return Err(ConfigError::Conflict(why).into());
        }
        let (before, later) = (self.steps, length.steps(self.steps_per_epoch));
        let passes =
            if epochs.is_some() { format!("; an epoch has {}", self.steps_per_epoch) } else { String::new() };
        require(later > before, key, value, format!("more than the {before} steps of the run{passes}"))?;
        (self.config.epochs, self.config.steps, self.steps) = (epochs, steps, later);
        Ok(self)
    }

    /// Steps of a run of this configuration, which differs from this job's in its length at most.
    pub(crate) fn steps_of(&self, config: &RunConfig) -> u64 {
        let epochs = config.epochs.unwrap_or(1).saturating_mul(self.steps_per_epoch);
        config.steps.unwrap_or(epochs)
    }

    /// Why a longer run would not come past this checkpoint, or would have another one in its place. It
    /// matters if the run may end early: the last evaluation of the shorter run is one that a longer run does
    /// not make, unless `eval_every` has it there too.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`], in words.
    pub(crate) fn ensure_extensible(&self, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
        let (Some(limit), Some(best)) = (self.config.early_stop, &checkpoint.best) else { return Ok(()) };
        let (steps, best) = (checkpoint.steps, best.steps);
        if self.has_learnt_enough(best, steps) {
            let why = format!(
                "early_stop = {limit}: validation was best after {best} steps, and the run ended early after {steps}; a longer one ends there too"
            );
            return Err(ConfigError::Conflict(why));
        }
        if !best.is_multiple_of(self.config.eval_every) {
            let why = format!(
                "early_stop with eval_every = {}: validation was best at the end, after {best} steps, where a longer run does not look; begin a new one, or go on from the checkpoint before",
                self.config.eval_every
            );
            return Err(ConfigError::Conflict(why));
        }
        Ok(())
    }
}

/// Records in the folder of a run that it has the later end of `job`, and returns the checkpoint from which
/// it continues. Whenever the process is killed, the folder holds a checkpoint of the old end or of the new.
///
/// # Errors
///
/// [`RunError::Observer`] if something cannot be written.
pub(crate) fn extend(job: &Job, folder: &Folder, checkpoint: &Checkpoint) -> Result<Checkpoint, RunError> {
    let longer = Checkpoint { config: job.config.clone(), ..checkpoint.clone() };
    let fault = |error: FolderError| RunError::Observer(error.to_string());
    let config = job.config.to_toml().map_err(JobError::from)?;
    // The run cannot go on without them, so nothing is written then.
    folder.read_metrics(checkpoint.steps).map_err(fault)?;
    // First, so that a process that is killed leaves a folder which says what it was to become.
    folder.write("config.toml", &config).map_err(fault)?;
    let written = Store::of_run(folder.path()).write(&longer, &job.layout);
    written.map_err(|error| RunError::Observer(format!("checkpoint not written: {error}")))?;
    // It is that of the shorter run.
    folder.remove("summary.json").map_err(fault)?;
    Ok(longer)
}
