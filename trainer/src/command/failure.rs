//! Why a command ends without having done its work.

use std::io::{self, ErrorKind, Write, stderr};
use std::path::Path;

use gradwire_transports::tcp::TcpError;

use super::again::Again;
#[cfg(feature = "zmq")]
use super::remote_error::RemoteError;
use crate::checkpoint::Store;
use crate::codec_cli::CliError;
use crate::job::JobError;
use crate::log;
use crate::process::interrupt;
use crate::process::launch::UnknownWorld;
use crate::process::threads::NoThread;
use crate::range::RangeError;
use crate::record::LogError;
use crate::record::folder::{Folder, FolderError};
use crate::run::RunError;
use crate::terminal;

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
    /// Runs that were written down.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A command under `codec`.
    #[error(transparent)]
    Codec(#[from] CliError),
    /// The run itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Training over the network.
    #[cfg(feature = "zmq")]
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The user ended the run.
    #[error("interrupted after {steps} steps; go on with: {command}")]
    Interrupted {
        /// Steps done.
        steps: u64,
        /// The command that continues.
        command: String,
    },
    /// The ranks of a run over TCP do not come together.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The user ended a rank before all were there.
    #[error("ended before the run began: {waited_for} was missing")]
    NotBegun {
        /// Who was missing.
        waited_for: String,
    },
    /// The run was ended, as a rank learns that has no folder.
    #[error(
        "the run was ended after {steps} steps; rank 0 says how to go on, this rank is started as before"
    )]
    Ended {
        /// Steps done.
        steps: u64,
    },
    /// Another rank is gone.
    #[error("{error}; {then}")]
    Lost {
        /// Where this rank noticed.
        error: RunError,
        /// What to do.
        then: String,
    },
    /// The user ended a worker without a folder.
    #[cfg(feature = "zmq")]
    #[error(
        "left the run after {steps} steps; of what was kept back, norm {lost_norm:.6} is lost: with --out DIR it \
         would be in a file"
    )]
    Left {
        /// Steps done.
        steps: u64,
        /// Norm of its residual.
        lost_norm: f64,
    },
    /// The other end of a run over the network did not come, or files cannot be written any more.
    #[error("{why}; {steps} steps are kept; go on with: {command}")]
    Stopped {
        /// Who or what is missing, where, and what may help.
        why: String,
        /// Steps in the newest checkpoint.
        steps: u64,
        /// The command that continues.
        command: String,
    },
    /// The user ended a comparison.
    #[error("interrupted with {done} of {runs} runs done; go on with: {command}")]
    ComparisonInterrupted {
        /// Runs that have a result.
        done: usize,
        /// Runs of the comparison.
        runs: usize,
        /// The command that continues.
        command: String,
    },
    /// The system makes no thread.
    #[error(transparent)]
    NoThread(#[from] NoThread),
    /// Some runs of a comparison have no result.
    #[error("{broken} of {runs} runs without a result: {first}{}", if *broken > 1 { "; …" } else { "" })]
    Broken {
        /// Runs without a result.
        broken: usize,
        /// Runs of the comparison.
        runs: usize,
        /// The first of them, and its known details.
        first: String,
    },
    /// Results that were shown cannot be written.
    #[error("{error}; the results are shown above, and not all of them are in the folder{way_out}")]
    Unwritten {
        /// The file.
        error: FolderError,
        /// The command that writes them, after a semicolon, if there is one.
        way_out: String,
    },
    /// The result cannot be shown.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// What is wrong with a file that the command line names.
    pub(crate) fn of_file(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Usage(format!("{}: {what}", path.display()))
    }

    /// What to tell the user. Most messages repeat an argument, and a shell may have put a secret key there.
    pub fn message(&self) -> String {
        without_secrets(&self.to_string())
    }

    /// 2 for bad input, for which nothing was written; 1 for a later failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Job(_) | Self::Folder(_) | Self::Log(_) | Self::Codec(_) => 2,
            Self::Tcp(TcpError::NotAllThere { .. } | TcpError::Lost { .. }) | Self::Lost { .. } => 1,
            Self::Tcp(_) => 2,
            Self::NotBegun { .. } | Self::Ended { .. } => interrupt::EXIT_CODE,
            #[cfg(feature = "zmq")]
            Self::Remote(RemoteError::Zmq(_)) => 2,
            #[cfg(feature = "zmq")]
            Self::Remote(_) => 1,
            #[cfg(feature = "zmq")]
            Self::Left { .. } => interrupt::EXIT_CODE,
            Self::Interrupted { .. } | Self::ComparisonInterrupted { .. } => interrupt::EXIT_CODE,
            Self::Run(_)
            | Self::Stopped { .. }
            | Self::NoThread(_)
            | Self::Broken { .. }
            | Self::Unwritten { .. }
            | Self::Output(_) => 1,
        }
    }
}

/// Tells the user why the program ends, in one line.
pub fn report(failure: &Failure) {
    let is_wished = failure.exit_code() == interrupt::EXIT_CODE;
    let message = failure.message();
    match failure {
        // If standard error is closed, there is no one left to tell.
        _ if !log::is_started() => drop(writeln!(stderr(), "{}: {message}", terminal::program())),
        _ if is_wished => tracing::warn!("{message}"),
        _ => tracing::error!("{message}"),
    }
}

impl From<UnknownWorld> for Failure {
    fn from(error: UnknownWorld) -> Self {
        Self::Usage(error.to_string())
    }
}

/// The mark of a secret in a key file.
const SECRET: &str = "gradwire-secret";

/// Hides what follows each mark of a secret.
fn without_secrets(text: &str) -> String {
    let mut parts = text.split(SECRET);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let secret = part.trim_start();
        let rest =
            secret.trim_start_matches(|next: char| next.is_ascii_graphic() && !"'\"`\\".contains(next));
        shown += &format!("{SECRET} (not shown){rest}");
    }
    shown
}

impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::Job(error.into())
    }
}

/// A reader of standard output that went away is no failure.
pub(crate) fn unless_nobody_reads(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Adds how to continue after an interrupt, or when the folder can be written again.
pub(crate) fn explained(error: RunError, folder: &Folder, again: &Again) -> Failure {
    match error {
        RunError::Interrupted { steps } => Failure::Interrupted { steps, command: again.from(folder.path()) },
        RunError::Observer(why) => match Store::of_run(folder.path()).newest_steps() {
            Some(steps) => Failure::Stopped { why, steps, command: again.from(folder.path()) },
            None => RunError::Observer(format!("{why}; there is no checkpoint to go on from")).into(),
        },
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_follows_the_mark_of_a_secret_is_shown() {
        for (text, shown) in [
            ("no secret", "no secret"),
            ("'gradwire-secret aB#-:x' found", "'gradwire-secret (not shown)' found"),
            (
                "gradwire-public K\ngradwire-secret S!\n: no file",
                "gradwire-public K\ngradwire-secret (not shown)\n: no file",
            ),
            (
                "gradwire-secretS and gradwire-secret  T",
                "gradwire-secret (not shown) and gradwire-secret (not shown)",
            ),
            ("gradwire-secret", "gradwire-secret (not shown)"),
        ] {
            assert_eq!(Failure::Usage(text.to_owned()).message(), shown);
        }
    }
}
