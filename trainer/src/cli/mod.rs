//! The command line: arguments, commands, and how their errors are told.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};

use crate::checkpoint::{self, Checkpoint, Found};
use crate::codec_cli::{self, CodecArgs};
use crate::compare::quickstart;
use crate::compare::{Comparison, Plan, file_name};
use crate::config::{RunConfig, Settings};
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::range::{RangeError, require};
use crate::record::folder::{Folder, FolderError};
#[cfg(feature = "zmq")]
use crate::remote;
use crate::report;
use crate::report::table::{Table, footnotes};
use crate::run::in_folder::{resume_into, run_into};
use crate::run::{Outcome, RunError};

/// Trains real models with compressed gradients and says what it cost and what it gained.
///
/// Without a command it does the quick start: dense training against three codecs on shipped data, with four workers in
/// this process, in about a minute; then a table, and a report to open in a browser.
#[derive(Debug, Parser)]
#[command(name = "trainer", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Print source, licence and attribution of the shipped data, and end
    #[arg(long)]
    licenses: bool,
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One run
    Train(Box<TrainArgs>),
    /// Several codecs on the same task, same seeds, same budget: a table and a report
    Compare(Box<CompareArgs>),
    /// The codecs on your own gradients: bench, encode, decode, inspect
    Codec(CodecArgs),
    /// Serve a run to workers on other machines, and train as rank 0
    #[cfg(feature = "zmq")]
    Serve(Box<RemoteArgs<remote::ServeArgs>>),
    /// Work for a run that another machine serves; give the same settings as there
    #[cfg(feature = "zmq")]
    Join(Box<RemoteArgs<remote::JoinArgs>>),
    /// Make the keys by which server and workers know each other
    #[cfg(feature = "zmq")]
    Keygen(remote::KeygenArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Folder for the results [default: a folder under runs/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write into the folder even if it is not empty
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct TrainArgs {
    /// Go on from the newest checkpoint in the folder of a run, or from that of one checkpoint, to the same end as if
    /// nothing had happened. Takes no other option
    #[arg(long, value_name = "DIR", exclusive = true)]
    resume: Option<PathBuf>,
    /// Codec, such as none, topk:density=0.01, qsgd:bits=4 [default: topk:density=0.01]
    #[arg(long, value_name = "SPEC")]
    codec: Option<String>,
    /// Seconds for which a worker may leave the others waiting before an MPI job is ended [default: 300]
    #[arg(long, value_name = "N")]
    patience: Option<u64>,
    /// TOML file with settings; the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    settings: Settings,
}

#[cfg(feature = "zmq")]
#[derive(Debug, clap::Args)]
struct RemoteArgs<Own: clap::Args> {
    #[command(flatten)]
    own: Own,
    /// Codec, such as none, topk:density=0.01, qsgd:bits=4 [default: topk:density=0.01]
    #[arg(long, value_name = "SPEC")]
    codec: Option<String>,
    /// TOML file with settings; the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[cfg(feature = "zmq")]
impl<Own: clap::Args> RemoteArgs<Own> {
    fn settings(&self) -> Result<Settings, JobError> {
        let own = Settings { codec: self.codec.clone(), ..self.settings.clone() };
        settings(&own, self.config.as_ref())
    }
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// A codec to compare; give it again for the next one
    #[arg(long = "codec", value_name = "SPEC", required = true)]
    codecs: Vec<String>,
    /// Runs of each codec, with seeds that count up
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// TOML file with settings; the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    settings: Settings,
}

/// Why the program ends without having done its work. Told in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The command line cannot be read.
    #[error("{0}")]
    Usage(String),
    /// A setting, a file or the data.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The output folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A command under `codec`.
    #[error(transparent)]
    Codec(#[from] codec_cli::CliError),
    /// The run itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Training over the network.
    #[cfg(feature = "zmq")]
    #[error(transparent)]
    Remote(#[from] remote::RemoteError),
    /// The user ended the run.
    #[error("interrupted after {steps} steps; go on with: {command}")]
    Interrupted {
        /// Steps done.
        steps: u64,
        /// What to call.
        command: String,
    },
    /// The result cannot be shown.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// 2 for bad input, of which nothing was written; 1 for what went wrong later.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Job(_) | Self::Folder(_) | Self::Codec(_) => 2,
            #[cfg(feature = "zmq")]
            Self::Remote(remote::RemoteError::Zmq(_)) => 2,
            #[cfg(feature = "zmq")]
            Self::Remote(_) => 1,
            Self::Interrupted { .. } => interrupt::EXIT_CODE,
            Self::Run(_) | Self::Output(_) => 1,
        }
    }
}

impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::Job(error.into())
    }
}

/// Reads the arguments, the program's name first, and does what they say.
///
/// # Errors
///
/// [`Failure`], for the caller to print. A reader of `out` that went away is not one.
pub fn main(
    arguments: impl Iterator<Item = std::ffi::OsString>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let result = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.run(out),
        Err(error) if error.use_stderr() => Err(Failure::Usage(first_paragraph(&error.to_string()))),
        Err(help_or_version) => write!(out, "{help_or_version}").map_err(Failure::Output),
    };
    unless_nobody_reads(result)
}

/// A reader of standard output that went away is no failure.
pub(crate) fn unless_nobody_reads(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// What the parser says before it begins to explain, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
}

/// The command line as `clap` knows it, for checks and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

impl Cli {
    fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        if self.licenses {
            return Ok(write!(out, "{}", crate::DATA_LICENSES)?);
        }
        let trains = matches!(self.command, Some(Command::Train(_)));
        if !trains && Launch::detect().is_some_and(|launch| launch.world > 1) {
            return Err(Failure::Usage("under mpirun there is only `trainer train`".to_owned()));
        }
        match self.command {
            None => quick_start(&self.output, out),
            Some(Command::Train(args)) => train(&args, out),
            Some(Command::Compare(args)) => compare(&args, out),
            Some(Command::Codec(args)) => Ok(codec_cli::run(args, out)?),
            #[cfg(feature = "zmq")]
            Some(Command::Serve(args)) => remote::serve(&args.own, args.settings()?, out),
            #[cfg(feature = "zmq")]
            Some(Command::Join(args)) => remote::join(&args.own, args.settings()?, out),
            #[cfg(feature = "zmq")]
            Some(Command::Keygen(args)) => remote::keygen(&args, out),
        }
    }
}

/// The settings of the command line over those of the file.
fn settings(own: &Settings, file: Option<&PathBuf>) -> Result<Settings, JobError> {
    Ok(match file {
        Some(path) => own.clone().over(Settings::read(path)?),
        None => own.clone(),
    })
}

fn quick_start(output: &Output, out: &mut impl Write) -> Result<(), Failure> {
    let plan = quickstart::plan()?;
    // The default folder is the quick start's own: it may be run again.
    let (path, force) = match &output.out {
        Some(path) => (path.clone(), output.force),
        None => (PathBuf::from(quickstart::FOLDER), true),
    };
    let folder = Folder::create(&path, force)?;
    let comparison = plan.run(&folder)?;
    let title = "Quick start";
    present(&comparison, title, &folder, out)?;
    writeln!(
        out,
        "\n{}\n\nOpen the report in a browser: {}",
        quickstart::HOW_TO_READ,
        folder.file("report.html").display()
    )?;
    Ok(())
}

/// Lines of progress, in a pipe.
pub(crate) const LINES: u64 = 20;

/// Steps between two checkpoints of `train`.
pub(crate) const CHECKPOINT_EVERY: u64 = 100;

fn train(args: &TrainArgs, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.resume {
        return resume(path, out);
    }
    let own = Settings { codec: args.codec.clone(), patience: args.patience, ..args.settings.clone() };
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
const WITHOUT_MPI: &str = "this program was built without MPI: build it with --features mpi";

#[cfg(not(feature = "mpi"))]
fn train_as_process(_: Launch, _: Settings, _: &Output, _: &mut impl Write) -> Result<(), Failure> {
    Err(Failure::Usage(format!("started by mpirun; {WITHOUT_MPI}, or give --transport local")))
}

/// Where processes are asked for, somebody has to start them.
fn require_local(config: &RunConfig) -> Result<(), RangeError> {
    let workers = config.workers;
    let allowed = format!("local here; for mpi, start it as mpirun -n {workers} trainer train …");
    require(config.transport == "local", "transport", &config.transport, allowed)
}

/// The folder that was named, or one for this job.
pub(crate) fn create_folder(job: &Job, output: &Output) -> Result<Folder, FolderError> {
    let name = format!("runs/{}-{}-seed-{}", job.config.data, file_name(&job.config.codec), job.config.seed);
    Folder::create(&output.out.clone().unwrap_or_else(|| name.into()), output.force)
}

fn resume(path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let found = checkpoint::latest(path).map_err(JobError::from)?;
    match Launch::detect() {
        _ if found.config().transport == "zmq" => {
            let what =
                format!("{}: a run of a server; go on with: {} --resume …", path.display(), found.command());
            return Err(Failure::Usage(what));
        }
        Some(launch) if found.config().transport == "mpi" => return resume_as_process(launch, found, out),
        Some(launch) if launch.world > 1 => {
            let what = format!("{}: a run in one process; go on without mpirun", path.display());
            return Err(Failure::Usage(what));
        }
        _ => require_local(found.config())?,
    }
    interrupt::listen();
    let job = Job::prepare(found.config().clone())?;
    let run = found.run_folder().unwrap_or(path).to_path_buf();
    let checkpoint = found.read_all(&job.layout).map_err(JobError::from)?;
    let folder = reopen(&run, &job, &checkpoint)?;
    writeln!(out, "Resuming at step {} of {}", checkpoint.steps, job.steps)?;
    let outcome = resume_into(&job, &folder, &checkpoint, &job.config.codec, LINES);
    present_run(&job, explained(outcome, &folder, "trainer train")?, &folder, out)
}

#[cfg(feature = "mpi")]
fn resume_as_process(launch: Launch, found: Found, out: &mut impl Write) -> Result<(), Failure> {
    crate::under_mpi::resume(launch, found, out)
}

#[cfg(not(feature = "mpi"))]
fn resume_as_process(_: Launch, found: Found, _: &mut impl Write) -> Result<(), Failure> {
    Err(Failure::Usage(format!("{}: a run under mpirun; {WITHOUT_MPI}", found.path().display())))
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

/// Says how to go on after an interrupt.
pub(crate) fn explained(
    outcome: Result<Outcome, RunError>,
    folder: &Folder,
    command: &str,
) -> Result<Outcome, Failure> {
    outcome.map_err(|error| match error {
        RunError::Interrupted { steps } => {
            let command = format!("{command} --resume {}", folder.path().display());
            Failure::Interrupted { steps, command }
        }
        other => other.into(),
    })
}

/// Table and report of one run.
pub(crate) fn present_run(
    job: &Job,
    outcome: Outcome,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let hash = outcome.summary.params_hash.clone();
    report_run(job, outcome, folder, out)?;
    let whose = if job.config.replicas() > 1 { "of the replicas of" } else { "on" };
    writeln!(out, "\nparameters: {hash} {whose} all {} workers", job.config.workers)?;
    writeln!(out, "Results and report: {}", folder.file("report.html").display())?;
    Ok(())
}

/// Table and report of one run, without the last words.
pub(crate) fn report_run(
    job: &Job,
    outcome: Outcome,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    print_and_report(&Comparison::of_one(job, outcome), "Training run", folder, out)
}

fn compare(args: &CompareArgs, out: &mut impl Write) -> Result<(), Failure> {
    require((1..=1000).contains(&args.seeds), "seeds", args.seeds, "1 to 1000")?;
    let settings = settings(&args.settings, args.config.as_ref())?;
    require(
        settings.transport.as_deref().is_none_or(|transport| transport == "local"),
        "transport",
        settings.transport.as_deref().unwrap_or_default(),
        "local, to compare in one process",
    )?;
    let plan = Plan::new(&settings, &args.codecs, args.seeds)?;
    let path = args.output.out.clone().unwrap_or_else(|| "runs/compare".into());
    let folder = Folder::create(&path, args.output.force)?;
    let comparison = plan.run(&folder)?;
    present(&comparison, "Comparison", &folder, out)?;
    writeln!(out, "\nReport: {}", folder.file("report.html").display())?;
    Ok(())
}

/// Table, report and summaries of several runs.
fn present(
    comparison: &Comparison,
    title: &str,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let json = comparison.to_json().map_err(io::Error::from)?;
    folder.write("summary.json", &(json + "\n"))?;
    print_and_report(comparison, title, folder, out)
}

/// The table to `out`, the report to the folder.
fn print_and_report(
    comparison: &Comparison,
    title: &str,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    folder.write("report.html", &report::html(comparison, title))?;
    writeln!(out, "{}\n", report::task_line(comparison))?;
    write!(out, "{}", Table::new(comparison).to_text())?;
    for note in footnotes(comparison) {
        writeln!(out, "{note}.")?;
    }
    for note in report::notes(comparison) {
        writeln!(out, "Note: {note}.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_has_two_options_of_one_name() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands() {
            let mut names: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            names.sort_unstable();
            let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "{}", command.get_name());
        }
    }
}
