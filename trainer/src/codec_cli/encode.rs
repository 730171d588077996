//! `trainer codec encode`: a gradient file to a frame, or to packets one after the other.

use std::io::Write;
use std::path::PathBuf;

use super::error::CliError;
use super::files::{ensure_output, write};
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
    /// Gradient to encode: a safetensors file with F32, F16 or BF16 tensors
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Frame to write. With max_packet_bytes in the codec: its packets, one after the other
    #[arg(long, value_name = "FRAME")]
    pub output: PathBuf,
    /// Overwrite the frame if it exists
    #[arg(long)]
    pub force: bool,
    /// Seed of every random draw
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

pub(super) fn run(args: &EncodeArgs, out: &mut impl Write) -> Result<(), CliError> {
    let spec = parse_spec(&args.codec)?;
    ensure_output(&args.output, args.force, &[&args.input])?;
    let gradient = Gradient::read(&args.input)?;
    let mut job = Job::new(spec, &gradient, args.seed);
    job.encode()?;
    let frames = job.frames();
    write(&args.output, |file| frames.iter().try_for_each(|frame| file.write_all(frame)))?;
    let (n, bytes) = (gradient.values.len(), frames.iter().map(|frame| frame.len()).sum::<usize>());
    let (output, ratio) = (args.output.display(), significant(4.0 * n as f64 / bytes as f64, 4));
    let packets = match spec.packets {
        Some(_) => format!(" of {} packets", grouped(frames.len())),
        None => String::new(),
    };
    let (n, bytes) = (grouped(n), grouped(bytes));
    writeln!(out, "{output}: {n} coordinates in {bytes} bytes{packets}, ratio {ratio}, {spec}")
        .map_err(CliError::Output)
}
