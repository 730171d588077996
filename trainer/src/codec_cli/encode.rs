//! `trainer codec encode`: a gradient file to a frame.

use std::io::Write;
use std::path::PathBuf;

use super::error::CliError;
use super::files::write_atomically;
use super::gradient::Gradient;
use super::job::{Job, parse_spec};
use super::list::codecs_help;
use super::table::{grouped, significant};

/// Arguments of `trainer codec encode`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub struct EncodeArgs {
    /// Codec, such as topk:density=0.01,values=q8
    #[arg(long, value_name = "SPEC")]
    pub codec: String,
    /// Gradient: a safetensors file with F32, F16 or BF16 tensors
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Frame to write
    #[arg(long, value_name = "FRAME")]
    pub output: PathBuf,
    /// Seed of every random draw
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

pub(super) fn run(args: &EncodeArgs, out: &mut impl Write) -> Result<(), CliError> {
    let spec = parse_spec(&args.codec)?;
    let gradient = Gradient::read(&args.input)?;
    let mut job = Job::new(spec, &gradient, args.seed);
    let frame = job.encode()?;
    write_atomically(&args.output, |file| file.write_all(frame))?;
    let n = gradient.values.len();
    let (bytes, ratio) = (frame.len(), 4.0 * n as f64 / frame.len() as f64);
    let (output, ratio) = (args.output.display(), significant(ratio, 4));
    writeln!(out, "{output}: {} coordinates in {} bytes, ratio {ratio}, {spec}", grouped(n), grouped(bytes))
        .map_err(CliError::Output)
}
