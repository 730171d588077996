//! `trainer codec encode`: a gradient file to a frame, or to packets or the frames of groups one after the
//! other.

use std::io::Write;
use std::path::PathBuf;

use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{Encoder, Grad, Memory, Source, Spec, StepInput, StepKey};

use super::error::CliError;
use super::files::{ensure_output, write};
use super::gradient::Gradient;
use super::job::{Job, explain, parse_spec};
use super::list::codecs_help;
use super::table::{grouped, significant};
use crate::config::read_rules;

/// Arguments of `trainer codec encode`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub struct EncodeArgs {
    /// Codec, such as topk:density=0.01,values=q8
    #[arg(long, value_name = "SPEC", required_unless_present = "rules")]
    pub codec: Option<String>,
    /// Rules in place of a codec: for each tensor the codec of the first pattern that fits its name, such as
    /// '*.bias=none; topk:density=0.01'. Or a file with them
    #[arg(long, value_name = "RULES", conflicts_with = "codec")]
    pub rules: Option<String>,
    /// Gradient to encode: a safetensors file with F32, F16 or BF16 tensors
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Frame to write. With max_packet_bytes in the codec its packets, and with rules a frame for each rule
    /// that has tensors, one after the other
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
    let rules = match (&args.rules, &args.codec) {
        (Some(rules), _) => {
            read_rules(rules).map_err(|error| CliError::Rules { reason: error.to_string() })?
        }
        (None, codec) => parse_spec(codec.as_deref().unwrap_or_default())?.into(),
    };
    ensure_output(&args.output, args.force, &[&args.input])?;
    let gradient = Gradient::read(&args.input)?;
    let (frames, of) = match rules.rules() {
        [only] => packets(*only.spec(), &gradient, args.seed)?,
        _ => groups(&rules, &gradient, args.seed)?,
    };
    write(&args.output, |file| file.write_all(&frames))?;
    let (output, n) = (args.output.display(), gradient.values.len());
    let ratio = significant(4.0 * n as f64 / frames.len() as f64, 4);
    let (n, bytes) = (grouped(n), grouped(frames.len()));
    writeln!(out, "{output}: {n} coordinates in {bytes} bytes{of}, ratio {ratio}, {rules}")
        .map_err(CliError::Output)
}

/// The frame of one codec, or its packets, and how many they are.
fn packets(spec: Spec, gradient: &Gradient, seed: u64) -> Result<(Vec<u8>, String), CliError> {
    let mut job = Job::new(spec, gradient, seed);
    job.encode()?;
    let frames = job.frames();
    let of = spec.packets.map_or(String::new(), |_| format!(" of {} packets", grouped(frames.len())));
    Ok((frames.concat(), of))
}

/// The frames of all groups, and how many they are.
fn groups(rules: &Rules, gradient: &Gradient, seed: u64) -> Result<(Vec<u8>, String), CliError> {
    let layout = gradient.layout.as_ref();
    let plan = Plan::of_rules(rules, &layout);
    let mut memory = Memory::for_plan(&plan, &layout);
    let key = StepKey { seed, step: 0, source: Source::Rank(0) };
    let step = StepInput { key, layout: &layout, units: plan.units(), grad: Grad::F32(&gradient.values) };
    let mut encoder = Encoder::new();
    let frames = encoder.encode_plan(&plan, &step, memory.as_mut());
    let frames = frames.map_err(|error| explain(gradient, &rules.to_string(), error))?;
    Ok((frames.to_vec(), format!(" of {} frames", grouped(plan.groups().len()))))
}
