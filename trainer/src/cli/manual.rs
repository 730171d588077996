//! What packages install beside the program: completions for shells, and manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap_complete::Shell;

use super::command;
use crate::command::Failure;

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Folder that is there, for a page of trainer and one of each command
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> Result<(), Failure> {
    // The generator panics where its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "trainer", &mut script);
    Ok(out.write_all(&script)?)
}

pub(super) fn man(args: &ManArgs) -> Result<(), Failure> {
    clap_mangen::generate_to(command(), &args.folder).map_err(|error| Failure::of_file(&args.folder, error))
}
