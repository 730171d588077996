//! `trainer codec`: the codecs on the user's own gradients, from the command line.
//!
//! | command | does |
//! | --- | --- |
//! | `bench` | size, error, speed and break-even bandwidth of codecs on gradient files |
//! | `encode` | one gradient file to one frame, to packets, or by rules to a frame for each group |
//! | `decode` | what `encode` wrote to a file that any safetensors reader opens |
//! | `inspect` | what a frame is made of |
//! | `list` | every codec, its keys and examples |
//! | `help` | one codec: its keys, their defaults and what they allow |
//!
//! Gradients are safetensors files with F32, F16 or BF16 tensors; the flat gradient is the tensors in the
//! order of their data, as f32. A frame file is one frame, or the packets or groups of one gradient one after
//! the other, and nothing else. Files are checked before memory is allocated for what they claim, and outputs
//! appear whole or not at all.

mod alternatives;
mod bench;
mod break_even;
mod cost;
mod decode;
mod encode;
mod error;
mod files;
mod frame;
mod gradient;
mod help;
mod inspect;
mod job;
mod json;
mod list;
mod measure;
mod quality;
mod report;
mod rounds;
mod table;

use std::io::{ErrorKind, Write};

pub use bench::BenchArgs;
pub(crate) use cost::{Cost, CostKind, cost};
pub use decode::DecodeArgs;
pub use encode::EncodeArgs;
pub use error::{CliError, FileFault};
pub(crate) use gradient::Gradient;
pub use help::HelpArgs;
pub use inspect::InspectArgs;
pub(crate) use job::parse_spec;
pub use list::ListArgs;
pub(crate) use list::codecs_help;
pub(crate) use measure::{median, timed};
pub(crate) use rounds::{is_summed, rounds};
pub(crate) use table::{grouped, significant};

/// Arguments of `trainer codec`.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct CodecArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CodecCommand,
}

/// The commands under `trainer codec`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CodecCommand {
    /// Measure codecs on gradient files: bytes, error, time, break-even bandwidth
    Bench(BenchArgs),
    /// Write the frame that a codec makes of a gradient file
    Encode(EncodeArgs),
    /// Write the gradient that a frame decodes to
    Decode(DecodeArgs),
    /// Show every field of a frame and of its units
    Inspect(InspectArgs),
    /// List every codec: names, numbers, kind, keys, examples
    List(ListArgs),
    /// Explain one codec: its keys, their defaults and what they allow
    Help(HelpArgs),
}

/// Runs one command and writes its output to `out`. It is not an error if the reader of `out` went away.
///
/// # Errors
/// [`CliError`], whose text is one line with the fault and its place. No file was written then.
pub fn run(args: CodecArgs, out: &mut impl Write) -> Result<(), CliError> {
    let result = match args.command {
        CodecCommand::Bench(args) => bench::run(&args, out),
        CodecCommand::Encode(args) => encode::run(&args, out),
        CodecCommand::Decode(args) => decode::run(&args, out),
        CodecCommand::Inspect(args) => inspect::run(&args, out),
        CodecCommand::List(args) => list::run(&args, out),
        CodecCommand::Help(args) => help::run(&args, out),
    };
    match result.and_then(|()| out.flush().map_err(CliError::Output)) {
        Err(CliError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
