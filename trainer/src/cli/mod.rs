//! The command line: which command is called, and with what.

mod advise;
mod compare;
mod manual;
mod numbers;
mod recorded;
#[cfg(feature = "zmq")]
mod remote_args;
mod report;
mod settings;
mod simulate;
mod train;

use std::ffi::OsStr;
use std::io::Write;
use std::sync::LazyLock;

#[cfg(not(all(feature = "zmq", feature = "metrics")))]
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::advise::{AdviseArgs, advise};
use self::compare::{CompareArgs, compare, quick_start};
use self::manual::{CompletionsArgs, ManArgs, completions, man};
#[cfg(feature = "zmq")]
use self::remote_args::RemoteArgs;
use self::report::{ReportArgs, report};
use self::simulate::{SimulateArgs, simulate};
use self::train::{TrainArgs, train};
use crate::checkpoint;
use crate::codec_cli::{self, CodecArgs};
use crate::command::{Again, LogArgs, Output, unless_nobody_reads};
pub use crate::command::{Failure, report as report_failure};
use crate::over_tcp::TcpArgs;
use crate::process::interrupt;
use crate::process::launch::Launch;
#[cfg(feature = "zmq")]
use crate::remote;

/// Trains real models with compressed gradients, and reports what compression cost and what it gained.
///
/// Without a command, trainer runs the quick start. It trains dense and with three codecs, on shipped data
/// with four workers in this process, in about a minute. It then prints a table and writes a report to open
/// in a browser.
#[derive(Debug, Parser)]
#[command(name = "trainer", version, long_version = FORMATS.as_str(), args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Print source, licence and attribution of the shipped data, and exit
    #[arg(long)]
    licenses: bool,
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What `--version` prints: the release, and which versions of every format it reads.
static FORMATS: LazyLock<String> = LazyLock::new(|| {
    fn list<N: ToString>(versions: &[N]) -> String {
        versions.iter().map(N::to_string).collect::<Vec<_>>().join(", ")
    }
    let (wire, memories) = (list(gradwire::format::VERSIONS), list(gradwire::state::SAVED_VERSIONS));
    let (release, checkpoints) = (env!("CARGO_PKG_VERSION"), list(checkpoint::VERSIONS));
    format!(
        "{release}\nreads frames of version {wire}, saved memories of {memories}, checkpoints of {checkpoints}"
    )
});

#[derive(Debug, Subcommand)]
enum Command {
    /// Train one model with one codec
    Train(Box<TrainArgs>),
    /// Train several codecs on the same task, and compare them in a table and a report
    Compare(Box<CompareArgs>),
    /// Write a page about runs from their metrics.jsonl, also about runs of the Python package
    Report(ReportArgs),
    /// Say which codec makes the shortest step for given workers and links, or that none does
    Advise(Box<AdviseArgs>),
    /// Replay a recorded run on a cluster that a file describes: links, stragglers, loss, sites
    Simulate(SimulateArgs),
    /// List the codecs, and run them on your own gradients and frames
    Codec(CodecArgs),
    /// Print a script that completes commands and options in a shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
    /// Serve a run to workers on other machines, and train as rank 0
    #[cfg(feature = "zmq")]
    Serve(Box<RemoteArgs<remote::ServeArgs>>),
    /// Join a served run as a worker, with the settings that the server has
    #[cfg(feature = "zmq")]
    Join(Box<RemoteArgs<remote::JoinArgs>>),
    /// Make a key pair for a server or a worker
    #[cfg(feature = "zmq")]
    Keygen(remote::KeygenArgs),
}

/// Reads the arguments, the program's name first, and runs the command.
///
/// # Errors
///
/// [`Failure`], for the caller to print. A reader of `out` that went away is not one.
pub fn main(
    arguments: impl Iterator<Item = std::ffi::OsString>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    interrupt::end_at_once_as_first_process();
    interrupt::outlive_limits_on_files();
    let mut arguments = arguments.peekable();
    let program = arguments.peek().cloned().unwrap_or_default();
    let parsed = command().try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, again(&program, &matches))));
    let result = match parsed {
        Ok((cli, again)) => cli.run(&again, out),
        Err(error) if error.use_stderr() => Err(Failure::Usage(usage(&error))),
        Err(help_or_version) => write!(out, "{help_or_version}").map_err(Failure::Output),
    };
    unless_nobody_reads(result)
}

/// The command that resumes what this one begins.
fn again(program: &OsStr, matches: &ArgMatches) -> Again {
    let Some((command, matches)) = matches.subcommand() else {
        return Again::of(program, "compare", matches, &clap::Command::new(""));
    };
    let own = clap::Command::new("");
    let own = match command {
        #[cfg(feature = "zmq")]
        "serve" => LogArgs::augment_args(remote::ServeArgs::augment_args(own)),
        #[cfg(feature = "zmq")]
        "join" => LogArgs::augment_args(remote::JoinArgs::augment_args(own)),
        "train" => LogArgs::augment_args(TcpArgs::augment_args(own)),
        _ => own,
    };
    Again::of(program, command, matches, &own)
}

/// The parser's message or, if the parser cannot know the reason, what it means.
fn usage(error: &clap::Error) -> String {
    let text = PLAIN
        .iter()
        .fold(first_paragraph(&error.to_string()), |text, (said, meant)| text.replace(said, meant));
    #[cfg(not(feature = "metrics"))]
    if error.kind() == ErrorKind::UnknownArgument && text.contains("'--metrics-listen'") {
        return format!("{text}: this program was built without it; build it with --features metrics");
    }
    #[cfg(not(feature = "zmq"))]
    if error.kind() == ErrorKind::InvalidSubcommand
        && OF_ZMQ.iter().any(|name| text.contains(&format!("'{name}'")))
    {
        return format!("{text}: this program was built without ZeroMQ; build it with --features zmq");
    }
    text
}

/// What the standard library says of a number, and what it means to who wrote it.
const PLAIN: [(&str, &str); 6] = [
    ("invalid digit found in string", "expected digits only, such as 1000"),
    ("cannot parse integer from empty string", "expected digits only, such as 1000"),
    ("cannot parse float from empty string", "expected a number, such as 0.1"),
    ("invalid float literal", "expected a number, such as 0.1"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
];

/// Commands that a program without ZeroMQ lacks.
#[cfg(not(feature = "zmq"))]
const OF_ZMQ: [&str; 3] = ["serve", "join", "keygen"];

/// The parser's message before its explanation, and what it thinks was meant, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let message = lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    tip.filter(|tip| tip.contains("similar")).map_or(message.clone(), |tip| format!("{message}; {tip}"))
}

/// The command line as `clap` knows it, for checks and completions.
pub fn command() -> clap::Command {
    with_negative_numbers(Cli::command())
}

/// A negative number is a value, which its range refuses, and no option that nobody knows.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let with = |argument: clap::Arg| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    };
    command.mut_args(with).mut_subcommands(with_negative_numbers)
}

impl Cli {
    fn log_args(&self) -> LogArgs {
        match &self.command {
            Some(Command::Train(args)) => args.log,
            #[cfg(feature = "zmq")]
            Some(Command::Serve(args)) => args.log,
            #[cfg(feature = "zmq")]
            Some(Command::Join(args)) => args.log,
            _ => LogArgs::default(),
        }
    }

    /// Whether several processes may do this: together, or each as the worker that it is told to be.
    fn is_for_all(&self) -> bool {
        match self.command {
            Some(Command::Train(_) | Command::Compare(_) | Command::Advise(_)) => true,
            #[cfg(feature = "zmq")]
            Some(Command::Join(_)) => true,
            _ => false,
        }
    }

    fn run(self, again: &Again, out: &mut impl Write) -> Result<(), Failure> {
        if self.licenses {
            return Ok(write!(out, "{}", crate::data::DATA_LICENSES)?);
        }
        if let Some(launch) = Launch::detect()?.filter(|launch| launch.world > 1 && !self.is_for_all()) {
            return Err(Failure::Usage(format!(
                "under {} only `train`, `compare` and `advise` work",
                launch.by
            )));
        }
        self.log_args().start()?;
        match self.command {
            None => quick_start(&self.output, again, out),
            Some(Command::Train(args)) => train(&args, again, out),
            Some(Command::Compare(args)) => compare(&args, again, out),
            Some(Command::Report(args)) => report(&args, out),
            Some(Command::Advise(args)) => advise(&args, out),
            Some(Command::Simulate(args)) => simulate(&args, out),
            Some(Command::Codec(args)) => Ok(codec_cli::run(args, out)?),
            Some(Command::Completions(args)) => completions(&args, out),
            Some(Command::Man(args)) => man(&args),
            #[cfg(feature = "zmq")]
            Some(Command::Serve(args)) => {
                remote::serve(&args.own, (args.settings()?, args.file()), again, out)
            }
            #[cfg(feature = "zmq")]
            Some(Command::Join(args)) => remote::join(&args.own, (args.settings()?, args.file()), again, out),
            #[cfg(feature = "zmq")]
            Some(Command::Keygen(args)) => remote::keygen(&args, out),
        }
    }
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
    /// Calls `f` with every command, however deep.
    fn each_command(command: &clap::Command, f: &mut impl FnMut(&clap::Command)) {
        f(command);
        command.get_subcommands().for_each(|command| each_command(command, f));
    }

    #[test]
    fn options_have_dashes_and_are_read_with_underscores_too() {
        let mut cli = Cli::command();
        cli.build();
        let (mut options, mut settings) = (0, 0);
        each_command(&cli, &mut |command| {
            for argument in command.get_arguments() {
                let Some(long) = argument.get_long() else { continue };
                options += 1;
                let aliases = argument.get_all_aliases().unwrap_or_default();
                assert!(!long.contains('_'), "{} --{long}", command.get_name());
                // Only the settings of a run stand under headings of their own.
                let is_setting = argument.get_help_heading().is_some();
                if long.contains('-') && (is_setting || long == "link-gbps") {
                    settings += 1;
                    assert_eq!(aliases, [long.replace('-', "_")], "{} --{long}", command.get_name());
                    assert!(argument.get_visible_aliases().unwrap_or_default().is_empty(), "--{long}");
                }
            }
        });
        assert!(options > 60 && settings > 15, "{options} options, {settings} settings");
    }
}
