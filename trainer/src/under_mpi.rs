//! `mpirun -n 4 trainer train …`: this process is one worker of a job.

use std::io::Write;
use std::time::Duration;

use gradwire_transports::mpi::{self, MpiOptions, MpiTransport};
use gradwire_transports::{Deadline, Rank, Transport};

use crate::cli::{Failure, LINES, present_run, unless_nobody_reads};
use crate::config::{RunConfig, Settings};
use crate::folder::{Folder, FolderError};
use crate::job::{Job, JobError};
use crate::launch::Launch;
use crate::processes::{follow, lead};
use crate::range::require;
use crate::single::write_down;

/// Trains as one of the job's processes. The first one writes and prints; the others are silent, unless they fail.
///
/// # Errors
///
/// What is wrong with the settings, and what keeps MPI from starting: before that the launcher ends the job when a
/// process fails. Later failures do not return, they end the whole job with their exit code.
pub(crate) fn train(
    launch: Launch,
    settings: Settings,
    folder: &dyn Fn(&Job) -> Result<Folder, FolderError>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let config = resolve(launch, settings)?;
    let mut options = MpiOptions { prefer_ring: config.exchange == "native", ..MpiOptions::default() };
    options.patience = config.patience.map_or(options.patience, Duration::from_secs);
    let mut transport = MpiTransport::start(&options).map_err(|error| Failure::Usage(error.to_string()))?;
    let done = work(config, &mut transport, folder, out);
    if let Err(failure) = unless_nobody_reads(done) {
        launch.let_first_speak();
        mpi::abort(failure.exit_code(), &format!("trainer: {failure}"));
    }
    match transport.close(Deadline::NEVER) {
        Ok(()) => Ok(()),
        Err(error) => mpi::abort(1, &error),
    }
}

/// The settings with what the launcher decides: there is one worker in each process.
fn resolve(launch: Launch, settings: Settings) -> Result<RunConfig, JobError> {
    let workers = settings.workers.unwrap_or(launch.world);
    require(workers == launch.world, "workers", workers, format!("{}, as started by mpirun", launch.world))?;
    let none = settings.checkpoint_every.unwrap_or(0) == 0;
    require(none, "checkpoint_every", settings.checkpoint_every.unwrap_or(0), "0 under mpirun")?;
    let transport = Some("mpi".to_owned());
    Ok(RunConfig::resolve(&Settings { workers: Some(workers), transport, ..settings })?)
}

fn work(
    config: RunConfig,
    transport: &mut MpiTransport,
    folder: &dyn Fn(&Job) -> Result<Folder, FolderError>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let job = Job::prepare(config)?;
    if transport.rank() != Rank(0) {
        return Ok(follow(&job, transport)?);
    }
    let folder = folder(&job)?;
    let native = format!("all-reduce of the library: {}", transport.native());
    let outcome = write_down(&job, &folder, &job.config.codec, LINES, |observer| {
        let mut outcome = lead(&job, transport, observer)?;
        if job.config.exchange == "native" {
            outcome.summary.notes.push(native);
        }
        Ok(outcome)
    })?;
    present_run(&job, outcome, &folder, out)
}
