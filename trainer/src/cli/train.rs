//! `trainer train`: one run, from its beginning or from a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

#[cfg(not(feature = "mpi"))]
use super::settings::WITHOUT_MPI;
use super::settings::{length_alone, settings};
use crate::checkpoint::{self, Found};
use crate::codec_cli::codecs_help;
use crate::command::{
    CHECKPOINT_EVERY, Failure, LINES, Output, create_folder, explained, present_run, reopen_to_end, to_end,
};
use crate::compare::grid;
use crate::config::{RunConfig, Settings};
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::range::{RangeError, require};
use crate::run::Length;
use crate::run::in_folder::{resume_into, run_into};

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct TrainArgs {
    /// Continue the run in this folder from its newest checkpoint, or from the checkpoint that DIR names. The
    /// run ends with the same bits as one that was never stopped. With --epochs or --steps it trains to that
    /// later end, even if it had finished. Takes no other option
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Codec with its settings, such as none, topk:density=0.01, qsgd:bits=4 [default: topk:density=0.01]
    #[arg(long, value_name = "SPEC")]
    codec: Option<String>,
    /// Under mpirun: seconds that a worker may keep the others waiting before the job ends, at least 1
    /// [default: 300]
    #[arg(long, value_name = "N")]
    patience: Option<u64>,
    /// TOML file with settings. Its keys are codec, patience and the options of the groups below, with _ for
    /// -. An option on the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn train(args: &TrainArgs, out: &mut impl Write) -> Result<(), Failure> {
    let own = Settings { codec: args.codec.clone(), patience: args.patience, ..args.settings.clone() };
    if let Some(path) = &args.resume {
        return resume(path, length_alone(&own, args.config.as_ref(), &args.output)?, out);
    }
    let mut settings = settings(&own, args.config.as_ref())?;
    let launch = Launch::detect().filter(|_| settings.transport.as_deref() != Some("local"));
    if let Some(launch) = launch {
        return train_as_process(launch, settings, &args.output, out);
    }
    interrupt::listen();
    settings.checkpoint_every.get_or_insert(CHECKPOINT_EVERY);
    let config = RunConfig::resolve(&settings).map_err(JobError::from)?;
    require_local(&config)?;
    let job = Job::prepare(config)?;
    let folder = create_folder(&job, &args.output)?;
    let outcome = run_into(&job, &folder, &job.config.codec, LINES);
    present_run(&job, explained(outcome, &folder, "trainer train")?, &folder, out)
}

#[cfg(feature = "mpi")]
fn train_as_process(
    launch: Launch,
    settings: Settings,
    output: &Output,
    out: &mut impl Write,
) -> Result<(), Failure> {
    crate::under_mpi::train(launch, settings, &|job| create_folder(job, output), out)
}

#[cfg(not(feature = "mpi"))]
fn train_as_process(_: Launch, _: Settings, _: &Output, _: &mut impl Write) -> Result<(), Failure> {
    Err(Failure::Usage(format!("started by mpirun; {WITHOUT_MPI}, or give --transport local")))
}

/// If processes are requested, a launcher must start them.
fn require_local(config: &RunConfig) -> Result<(), RangeError> {
    let workers = config.workers;
    let built = if cfg!(feature = "mpi") { "" } else { "build the program with --features mpi and " };
    let allowed = match config.transport.as_str() {
        "zmq" => {
            "local here; over ZeroMQ a run has a server, trainer serve, and workers, trainer join".to_owned()
        }
        _ => format!("local here; for mpi, {built}start it as mpirun -n {workers} trainer train …"),
    };
    require(config.transport == "local", "transport", &config.transport, allowed)
}

fn resume(path: &Path, length: Option<Length>, out: &mut impl Write) -> Result<(), Failure> {
    if path.join(grid::FILE).exists() {
        let command = format!("trainer compare --resume {}", path.display());
        return Err(Failure::of_file(path, format!("a comparison; go on with: {command}")));
    }
    let found = checkpoint::latest(path).map_err(JobError::from)?;
    match Launch::detect() {
        _ if found.config().transport == "zmq" => {
            let what =
                format!("{}: a run of a server; go on with: {} --resume …", path.display(), found.command());
            return Err(Failure::Usage(what));
        }
        Some(launch) if found.config().transport == "mpi" => {
            return resume_as_process(launch, found, length, out);
        }
        Some(launch) if launch.world > 1 => {
            let what = format!("{}: a run in one process; go on without mpirun", path.display());
            return Err(Failure::Usage(what));
        }
        _ => require_local(found.config())?,
    }
    interrupt::listen();
    let job = to_end(found.config(), length)?;
    let run = found.run_folder().unwrap_or(path).to_path_buf();
    let checkpoint = found.read_all(&job.layout).map_err(JobError::from)?;
    let (folder, checkpoint) = reopen_to_end(&run, &job, checkpoint)?;
    writeln!(out, "Resuming at step {} of {}", checkpoint.steps, job.steps)?;
    let outcome = resume_into(&job, &folder, &checkpoint, &job.config.codec, LINES);
    present_run(&job, explained(outcome, &folder, "trainer train")?, &folder, out)
}

#[cfg(feature = "mpi")]
fn resume_as_process(
    launch: Launch,
    found: Found,
    length: Option<Length>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    crate::under_mpi::resume(launch, found, length, out)
}

#[cfg(not(feature = "mpi"))]
fn resume_as_process(_: Launch, found: Found, _: Option<Length>, _: &mut impl Write) -> Result<(), Failure> {
    Err(Failure::Usage(format!("{}: a run under mpirun; {WITHOUT_MPI}", found.path().display())))
}
