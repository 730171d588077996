//! `trainer codec decode`: a frame to a gradient file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire::{DecodeError, Decoder, LayoutRef, Limits, TensorRef};

use super::error::{CliError, FileFault};
use super::frame::{DEFAULT_MAX_ELEMENTS, codec_name, lone_layout, read_frame};
use super::gradient::{read_layout, write, zeroed};
use super::table::grouped;

/// Arguments of `trainer codec decode`.
#[derive(Clone, Debug, clap::Args)]
pub struct DecodeArgs {
    /// Frame to read
    #[arg(long, value_name = "FRAME")]
    pub input: PathBuf,
    /// Gradient to write: a safetensors file with F32 tensors
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Take names and shapes from this safetensors file, and refuse a frame of another layout. Without it the output has
    /// one flat tensor named `gradient` that ends with the frame's last unit
    #[arg(long, value_name = "FILE")]
    pub layout: Option<PathBuf>,
    /// Largest number of coordinates to accept where no layout is given
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_ELEMENTS)]
    pub max_elements: usize,
}

/// Notes that go into the metadata of the output.
type Notes = BTreeMap<&'static str, String>;

pub(super) fn run(args: &DecodeArgs, out: &mut impl Write) -> Result<(), CliError> {
    let bytes = read_frame(&args.input)?;
    let fault = |fault: FileFault| fault.of(&args.input);
    let (n, tensors) = match &args.layout {
        Some(file) => {
            let layout = read_layout(file)?;
            let (layout, limits) = (layout.as_ref(), Limits::for_layout(&layout.as_ref()));
            let decoded =
                decode(&bytes, &layout, &limits).map_err(|error| fault(name_layout(error, file)))?;
            save(&args.output, &layout, decoded)?
        }
        None => {
            let (trusted, limits) = lone_layout(&bytes, args.max_elements).map_err(fault)?;
            let decoded = decode(&bytes, &trusted, &limits).map_err(fault)?;
            let shape = [trusted.len()];
            let table = [TensorRef { name: "gradient", shape: &shape, offset: 0 }];
            let named = LayoutRef::new(&table).unwrap_or(trusted);
            save(&args.output, &named, decoded)?
        }
    };
    let tensors = if tensors == 1 { "1 tensor".to_owned() } else { format!("{tensors} tensors") };
    writeln!(out, "{}: {} coordinates in {tensors}", args.output.display(), grouped(n))
        .map_err(CliError::Output)
}

/// What the frame adds to an accumulator of zeros, and what its header says.
fn decode(bytes: &[u8], layout: &LayoutRef<'_>, limits: &Limits) -> Result<(Vec<f32>, Notes), FileFault> {
    let mut decoder = Decoder::new();
    let frame = decoder.parse(bytes, layout, limits)?;
    let mut values = zeroed(layout.len())?;
    frame.add_scaled_to(1.0, &mut values);
    let header = frame.header();
    let notes = BTreeMap::from([
        ("fingerprint", format!("{:016x}", header.fingerprint)),
        ("codec", codec_name(header.codec).to_owned()),
        ("step", frame.step().to_string()),
    ]);
    Ok((values, notes))
}

fn save(path: &Path, layout: &LayoutRef<'_>, decoded: (Vec<f32>, Notes)) -> Result<(usize, usize), CliError> {
    let (values, notes) = decoded;
    write(path, layout, &values, &notes)?;
    Ok((values.len(), layout.tensor_count()))
}

/// Says which file a frame's layout was compared with.
fn name_layout(fault: FileFault, file: &Path) -> FileFault {
    match fault {
        FileFault::Frame(DecodeError::LayoutMismatch { frame, layout }) => {
            FileFault::Layout { file: file.to_path_buf(), frame, layout }
        }
        other => other,
    }
}
