//! The command that resumes what this one began, to be pasted into a shell.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

#[cfg(feature = "mpi")]
use crate::process::launch::Launch;
use crate::process::shell::quoted;

/// How this program was called, as far as the command that goes on is called the same.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// A launcher, if there is one, and this program.
    program: Vec<OsString>,
    command: String,
    /// Options of this process, which no folder holds: name and values.
    options: Vec<(String, Vec<OsString>)>,
}

/// These say where a run is, which the folder to continue from replaces.
const PLACES: [&str; 4] = ["out", "force", "resume", "resume_or_start"];

impl Again {
    /// The call of a command, with those of `own` options that the command line gave.
    pub(crate) fn of(program: &OsStr, command: &str, matches: &ArgMatches, own: &clap::Command) -> Self {
        let is_given = |argument: &&clap::Arg| {
            let id = argument.get_id().as_str();
            !PLACES.contains(&id) && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        let option = |argument: &clap::Arg| {
            let values = matches.get_raw(argument.get_id().as_str()).into_iter().flatten();
            let values = values.filter(|_| argument.get_action().takes_values());
            let values: Vec<OsString> = values.map(OsStr::to_owned).collect();
            let values = match argument.get_value_delimiter() {
                Some(delimiter) if !values.is_empty() => {
                    vec![values.join(OsStr::new(&delimiter.to_string()))]
                }
                _ => values,
            };
            Some((argument.get_long()?.to_owned(), values))
        };
        let options = own.get_arguments().filter(is_given).filter_map(option).collect();
        Self { program: vec![program.to_owned()], command: command.to_owned(), options }
    }

    /// The same, in as many processes as a launcher has started.
    #[cfg(feature = "mpi")]
    pub(crate) fn under(self, launch: Launch) -> Self {
        let launcher = launch.words().into_iter().map(OsString::from);
        Self { program: launcher.chain(self.program).collect(), ..self }
    }

    /// The same with another value of an option.
    #[cfg(feature = "zmq")]
    pub(crate) fn with(mut self, option: &str, value: &str) -> Self {
        self.options.retain(|(name, _)| name != option);
        self.options.push((option.to_owned(), vec![value.into()]));
        self
    }

    /// The command that continues from a folder.
    pub(crate) fn from(&self, folder: &Path) -> String {
        let mut words: Vec<String> = self.program.iter().map(quoted).collect();
        words.extend([self.command.clone(), "--resume".to_owned(), quoted(folder)]);
        for (name, values) in &self.options {
            match values.as_slice() {
                // It could be taken for an option.
                [value] if value.as_encoded_bytes().starts_with(b"-") => {
                    words.push(format!("--{name}={}", quoted(value)));
                }
                values => {
                    words.push(format!("--{name}"));
                    words.extend(values.iter().map(quoted));
                }
            }
        }
        words.join(" ")
    }
}
