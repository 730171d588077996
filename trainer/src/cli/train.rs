//! `trainer train`: one run, from its beginning or from a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

#[cfg(not(feature = "mpi"))]
use super::settings::{WITHOUT_MPI, launched};
use super::settings::{length_alone, settings};
use crate::checkpoint::{self, Found};
use crate::codec_cli::codecs_help;
use crate::command::{
    Again, Begin, CHECKPOINT_EVERY, Failure, LINES, LogArgs, Output, create_folder, done, explained,
    output_in, present_run, reopen_to_end, to_end,
};
use crate::compare::grid;
use crate::config::{RunConfig, Settings, TransportKind};
use crate::job::{Job, JobError};
use crate::over_tcp::{self, TcpArgs};
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::process::shell::quoted;
use crate::range::{RangeError, require};
use crate::run::Length;
use crate::run::in_folder::{resume_into, run_into};
use crate::terminal::program;
#[cfg(feature = "mpi")]
use crate::under_mpi::launched;

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct TrainArgs {
    /// Continue the run in this folder from its newest checkpoint, or from the checkpoint that DIR names. The
    /// run ends with the same bits as one that was never stopped. With --epochs or --steps it trains to that
    /// later end, even if it had finished. Takes no other option
    #[arg(long, value_name = "DIR", conflicts_with = "resume_or_start")]
    resume: Option<PathBuf>,
    /// Continue the run in this folder, or start it there if there is none: one command for systemd and
    /// Kubernetes. Takes the settings of the run, which must be those that the folder holds
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "force"])]
    resume_or_start: Option<PathBuf>,
    /// Codec with its settings, such as none, topk:density=0.01, qsgd:bits=4 [default: topk:density=0.01]
    #[arg(long, value_name = "SPEC")]
    codec: Option<String>,
    /// Rules in place of a codec: for each tensor the codec of the first pattern that fits its name, such as
    /// '*.bias=none; embed.*=topk:density=0.001; topk:density=0.01'. Or a file with them
    #[arg(long, value_name = "RULES", conflicts_with = "codec")]
    rules: Option<String>,
    /// Under mpirun: seconds that a worker may keep the others waiting before the job ends, at least 1
    /// [default: 300]
    #[arg(long, value_name = "N")]
    patience: Option<u64>,
    /// TOML file with settings. Its keys are codec, rules, patience and the options of the groups below, with
    /// _ for -. An option on the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) log: LogArgs,
    #[command(flatten)]
    pub(super) tcp: TcpArgs,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn train(args: &TrainArgs, again: &Again, out: &mut impl Write) -> Result<(), Failure> {
    let own = Settings {
        codec: args.codec.clone(),
        rules: args.rules.clone(),
        patience: args.patience,
        ..args.settings.clone()
    };
    if let Some(path) = &args.resume {
        let length = length_alone(&own, args.config.as_ref(), &args.output)?;
        return resume(path, length, &args.tcp, again, out);
    }
    let mut settings = args.tcp.settings(settings(&own, args.config.as_ref())?);
    let is_launched = !matches!(settings.transport, Some(TransportKind::Local | TransportKind::Tcp));
    let launch = Launch::detect()?.filter(|_| is_launched);
    settings = launch.map_or(Ok(settings.clone()), |launch| launched(launch, settings))?;
    settings.checkpoint_every.get_or_insert(CHECKPOINT_EVERY);
    let config = RunConfig::resolve(&settings).map_err(JobError::from)?;
    args.tcp.ensure_for(config.transport)?;
    let told = [args.config.as_deref(), args.tcp.key_file()];
    let begin = |output: &Output, out: &mut _| match config.transport {
        TransportKind::Tcp => {
            let folder = |job: &Job| create_folder(job, output, &told);
            over_tcp::train(&args.tcp, config.clone(), &folder, again, out)
        }
        _ => start(launch, config.clone(), (output, told[0]), again, out),
    };
    // Only the first rank over TCP has a folder.
    let Some(path) = args.resume_or_start.as_ref().filter(|_| !args.tcp.follows()) else {
        return begin(&args.output, out);
    };
    match Begin::of(path, &config)? {
        Begin::Start => begin(&output_in(path), out),
        Begin::Resume(found) => resume_found(path, *found, None, &args.tcp, again, out),
        Begin::Done => {
            writeln!(out, "{}", done(path))?;
            match config.transport {
                TransportKind::Tcp => over_tcp::dismiss(&args.tcp, config),
                _ => Ok(()),
            }
        }
    }
}

fn start(
    launch: Option<Launch>,
    config: RunConfig,
    (output, told): (&Output, Option<&Path>),
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let Some(launch) = launch {
        return train_as_process(launch, config, (output, told), again, out);
    }
    interrupt::listen()?;
    require_local(&config)?;
    let job = Job::prepare(config)?;
    let folder = create_folder(&job, output, &[told])?;
    let outcome = run_into(&job, &folder, &job.config.encoding(), LINES);
    let outcome = outcome.map_err(|error| explained(error, &folder, again))?;
    present_run(&job, outcome, &folder, out)
}

#[cfg(feature = "mpi")]
fn train_as_process(
    launch: Launch,
    config: RunConfig,
    (output, told): (&Output, Option<&Path>),
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    crate::under_mpi::train(launch, config, &|job| create_folder(job, output, &[told]), again, out)
}

#[cfg(not(feature = "mpi"))]
fn train_as_process(
    launch: Launch,
    _: RunConfig,
    _: (&Output, Option<&Path>),
    _: &Again,
    _: &mut impl Write,
) -> Result<(), Failure> {
    Err(Failure::Usage(format!("{launch}; {WITHOUT_MPI}, or give --transport local")))
}

/// If processes are requested, a launcher must start them.
fn require_local(config: &RunConfig) -> Result<(), RangeError> {
    let workers = config.workers;
    let built = if cfg!(feature = "mpi") { "" } else { "build the program with --features mpi and " };
    let allowed = match config.transport {
        TransportKind::Zmq => {
            "local here; over ZeroMQ a run has a server, `serve`, and workers, `join`".to_owned()
        }
        TransportKind::Local | TransportKind::Mpi | TransportKind::Tcp => {
            format!("local here; for mpi, {built}start it as mpirun -n {workers} {} train …", program())
        }
    };
    require(config.transport == TransportKind::Local, "transport", config.transport, allowed)
}

fn resume(
    path: &Path,
    length: Option<Length>,
    tcp: &TcpArgs,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if path.join(grid::FILE).exists() {
        let command = format!("{} compare --resume {}", program(), quoted(path));
        return Err(Failure::of_file(path, format!("a comparison; go on with: {command}")));
    }
    let found = checkpoint::latest(path).map_err(|error| match tcp.follows() {
        true => Failure::Usage(format!("{error}; a rank without this folder is started as the first time")),
        false => JobError::from(error).into(),
    });
    resume_found(path, found?, length, tcp, again, out)
}

fn resume_found(
    path: &Path,
    found: Found,
    length: Option<Length>,
    tcp: &TcpArgs,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let transport = found.config().transport;
    tcp.ensure_for(transport)?;
    match Launch::detect()? {
        _ if transport == TransportKind::Tcp => return over_tcp::resume(tcp, found, length, again, out),
        _ if found.config().comes_and_goes() => {
            let command = format!("{} {} --resume {}", program(), found.command(), quoted(path));
            let what = format!("a run of a server; go on with: {command}, and the options of its process");
            return Err(Failure::of_file(path, what));
        }
        Some(launch) if transport == TransportKind::Mpi => {
            return resume_as_process(launch, found, length, again, out);
        }
        Some(launch) if launch.world > 1 => {
            return Err(Failure::of_file(path, format!("a run in one process; go on without {}", launch.by)));
        }
        _ => require_local(found.config())?,
    }
    interrupt::listen()?;
    let job = to_end(found.config(), length)?;
    let run = found.run_folder().unwrap_or(path).to_path_buf();
    let checkpoint = found.read_all(&job.layout).map_err(JobError::from)?;
    let (folder, checkpoint) = reopen_to_end(&run, &job, checkpoint)?;
    writeln!(out, "Resuming at step {} of {}", checkpoint.steps, job.steps)?;
    let outcome = resume_into(&job, &folder, &checkpoint, &job.config.encoding(), LINES);
    let outcome = outcome.map_err(|error| explained(error, &folder, again))?;
    present_run(&job, outcome, &folder, out)
}

#[cfg(feature = "mpi")]
fn resume_as_process(
    launch: Launch,
    found: Found,
    length: Option<Length>,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    crate::under_mpi::resume(launch, found, length, again, out)
}

#[cfg(not(feature = "mpi"))]
fn resume_as_process(
    _: Launch,
    found: Found,
    _: Option<Length>,
    _: &Again,
    _: &mut impl Write,
) -> Result<(), Failure> {
    Err(Failure::of_file(found.path(), format!("a run under mpirun; {WITHOUT_MPI}")))
}
