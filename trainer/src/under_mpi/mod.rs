//! `mpirun -n 4 trainer train …`: this process is one worker of a job.

mod compare;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use gradwire_transports::mpi::{self, MpiOptions, MpiTransport};
use gradwire_transports::{Deadline, Rank, Transport};

pub(crate) use self::compare::{Place, compare};
use crate::checkpoint::Found;
use crate::command::{
    Again, Failure, LINES, explained, present_run, reopen_to_end, to_end, unless_nobody_reads,
};
use crate::config::{ExchangeKind, RunConfig, Settings, TransportKind};
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::process::shell::quoted;
use crate::range::{RangeError, require};
use crate::record::folder::Folder;
use crate::run::in_folder::{go_on_writing, write_down};
use crate::run::processes::{follow, lead};
use crate::run::{Control, Length, Observer, Outcome, RunError};
use crate::terminal;

/// Trains as one of the job's processes. The first one writes and prints; the others are silent, unless they
/// fail.
///
/// # Errors
///
/// The faults of the settings, and what keeps MPI from starting: at that point the launcher ends the job when
/// a process fails. `Interrupted`, when all have left. Other failures do not return: they end the whole job
/// with their exit code.
pub(crate) fn train(
    launch: Launch,
    config: RunConfig,
    folder: &dyn Fn(&Job) -> Result<Folder, Failure>,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    in_a_job(launch, &config, |transport| {
        let job = Job::prepare(config.clone())?;
        if transport.rank() != Rank(0) {
            follow(&job, transport, None, Some(interrupt::requested()))?;
            return Ok(());
        }
        let folder = folder(&job)?;
        let outcome = write_down(&job, &folder, &job.config.encoding(), LINES, |observer| {
            lead_job(&job, transport, Control::default(), observer)
        });
        let outcome = outcome.map_err(|error| explained(error, &folder, &again.clone().under(launch)))?;
        present_run(&job, outcome, &folder, out)
    })
}

/// Continues from a checkpoint, which every process reads: all of them must see the folder.
///
/// # Errors
///
/// As [`train`]; another number of processes than the checkpoint has workers.
pub(crate) fn resume(
    launch: Launch,
    found: Found,
    length: Option<Length>,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    ensure_same_world(launch, found.path(), found.config().workers)?;
    let job = to_end(found.config(), length)?;
    let run = found.run_folder().unwrap_or(found.path()).to_path_buf();
    // MPI starts when all processes have come this far, so none reads what the first one rewrites.
    let checkpoint = found.read_all(&job.layout).map_err(JobError::from)?;
    in_a_job(launch, &job.config, |transport| {
        if transport.rank() != Rank(0) {
            follow(&job, transport, Some(&checkpoint), Some(interrupt::requested()))?;
            return Ok(());
        }
        let (folder, checkpoint) = reopen_to_end(&run, &job, checkpoint)?;
        writeln!(out, "Resuming at step {} of {}", checkpoint.steps, job.steps)?;
        let outcome = go_on_writing(
            &job,
            &folder,
            &checkpoint,
            &job.config.encoding(),
            LINES,
            |(checkpoint, before), observer| {
                let control = Control { start: Some((checkpoint, &before)), interrupt: None };
                lead_job(&job, transport, control, observer)
            },
        );
        let outcome = outcome.map_err(|error| explained(error, &folder, &again.clone().under(launch)))?;
        present_run(&job, outcome, &folder, out)
    })
}

fn ensure_same_world(launch: Launch, checkpoint: &Path, workers: usize) -> Result<(), Failure> {
    if workers == launch.world {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{}: a checkpoint of {workers} workers, started with {}; go on with: mpirun -n {workers} {} train --resume {}",
        checkpoint.display(),
        launch.world,
        terminal::program(),
        quoted(checkpoint)
    )))
}

/// There is one worker in each process.
pub(crate) fn launched(launch: Launch, settings: Settings) -> Result<Settings, RangeError> {
    let workers = settings.workers.unwrap_or(launch.world);
    ensure_workers(launch, workers)?;
    let carrier = settings.transport.unwrap_or(TransportKind::Mpi);
    require(
        carrier == TransportKind::Mpi,
        "transport",
        carrier,
        format!("mpi or local, under {}", launch.by),
    )?;
    Ok(Settings { workers: Some(workers), transport: Some(TransportKind::Mpi), ..settings })
}

fn ensure_workers(launch: Launch, workers: usize) -> Result<(), RangeError> {
    require(
        workers == launch.world,
        "workers",
        workers,
        format!("{}, as started by {}", launch.world, launch.by),
    )
}

/// Measures something in all processes of the job.
///
/// # Errors
///
/// As [`train`].
pub(crate) fn measure(
    launch: Launch,
    work: impl FnOnce(&mut MpiTransport) -> Result<(), Failure>,
) -> Result<(), Failure> {
    with_options(launch, &MpiOptions::default(), work)
}

/// Starts MPI, works, and ends the job.
fn in_a_job(
    launch: Launch,
    config: &RunConfig,
    work: impl FnOnce(&mut MpiTransport) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut options =
        MpiOptions { prefer_ring: config.exchange == ExchangeKind::Native, ..MpiOptions::default() };
    options.patience = config.patience.map_or(options.patience, Duration::from_secs);
    with_options(launch, &options, work)
}

fn with_options(
    launch: Launch,
    options: &MpiOptions,
    work: impl FnOnce(&mut MpiTransport) -> Result<(), Failure>,
) -> Result<(), Failure> {
    interrupt::listen_under_a_launcher()?;
    let mut transport = MpiTransport::start(options).map_err(|error| Failure::Usage(error.to_string()))?;
    ensure_one_job(launch, transport.membership().world());
    let done = unless_nobody_reads(work(&mut transport));
    match &done {
        // All end after the same step, so all leave.
        Ok(()) | Err(Failure::Interrupted { .. }) => {}
        // What is wrong with some runs was told to all.
        Err(Failure::ComparisonInterrupted { .. } | Failure::Broken { .. }) => {}
        Err(failure) => {
            launch.let_first_speak();
            mpi::abort(failure.exit_code(), &format!("{}: {failure}", terminal::program()));
        }
    }
    match transport.close(Deadline::NEVER) {
        Ok(()) => done,
        Err(error) => mpi::abort(1, &error),
    }
}

/// With a library that does not know the launcher, every process trains alone, as rank 0 of one.
fn ensure_one_job(launch: Launch, ranks: usize) {
    if ranks != launch.world {
        launch.let_first_speak();
        let what = format!(
            "{}: {} processes were started, but the MPI library sees {ranks}: {}",
            terminal::program(),
            launch.world,
            way_out(launch)
        );
        mpi::abort(2, &what);
    }
}

/// What to do about a launcher that the library does not know.
fn way_out(launch: Launch) -> String {
    match launch.by {
        "mpirun" => "the program was built with another library than that of this mpirun".to_owned(),
        "srun" => {
            "give srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list names those that there are), or use mpirun"
                .to_owned()
        }
        by => format!("it does not know {by}: use the mpirun of this library"),
    }
}

/// Leads until the end, or until a signal ends the run.
fn lead_job(
    job: &Job,
    transport: &mut MpiTransport,
    control: Control<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let native = format!("all-reduce of the library: {}", transport.native());
    let control = Control { interrupt: Some(interrupt::requested()), ..control };
    let mut outcome = lead(job, transport, control, observer)?;
    if job.config.exchange == ExchangeKind::Native {
        outcome.summary.notes.push(native);
    }
    Ok(outcome)
}
