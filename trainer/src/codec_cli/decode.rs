//! `trainer codec decode`: a frame, or the packets or groups of a gradient, to a gradient file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire::format::{Header, VoidFrame};
use gradwire::{Decoder, LayoutRef, Limits, TensorRef};

use super::error::{CliError, FileFault};
use super::files::ensure_output;
use super::frame::{
    DEFAULT_MAX_ELEMENTS, Messages, check_layout, codec_name, default_claim, lone_limits, name_layout,
};
use super::gradient::{read_layout, write, zeroed};
use super::table::grouped;

/// Arguments of `trainer codec decode`.
#[derive(Clone, Debug, clap::Args)]
pub struct DecodeArgs {
    /// Frame to read, or the packets or the frames of the groups of one gradient, one after the other
    #[arg(long, value_name = "FRAME")]
    pub input: PathBuf,
    /// Gradient to write: a safetensors file with F32 tensors
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Overwrite the gradient if it exists
    #[arg(long)]
    pub force: bool,
    /// Safetensors file with the layout: names and shapes of the tensors. A frame of another layout is
    /// refused. Without this option the output has one flat tensor named `gradient`, which ends with the
    /// frame's last unit
    #[arg(long, value_name = "FILE")]
    pub layout: Option<PathBuf>,
    /// Most coordinates that a frame or a layout may have [default: 268435456. Without --layout also at most
    /// 4096 for each byte of the file, or 4194304 if that is more]
    #[arg(long, value_name = "N")]
    pub max_elements: Option<usize>,
}

/// Notes that go into the metadata of the output.
type Notes = BTreeMap<&'static str, String>;

pub(super) fn run(args: &DecodeArgs, out: &mut impl Write) -> Result<(), CliError> {
    let inputs: Vec<&Path> =
        [Some(&args.input), args.layout.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect();
    ensure_output(&args.output, args.force, &inputs)?;
    let messages = Messages::read(&args.input)?;
    let fault = |fault: FileFault| fault.of(&args.input);
    let (n, tensors) = match &args.layout {
        Some(file) => {
            let layout = read_layout(file)?;
            let (layout, limits) = (layout.as_ref(), Limits::for_layout(&layout.as_ref()));
            let most = args.max_elements.unwrap_or(DEFAULT_MAX_ELEMENTS);
            check_layout(&layout, most).map_err(|fault| fault.of(file))?;
            let void = messages.void(Some(&layout)).map_err(|error| fault(name_layout(error, file)))?;
            refuse_void(void).map_err(fault)?;
            let decoded = decode(&messages, &layout, &limits);
            let decoded = decoded.map_err(|error| fault(name_layout(error, file)))?;
            // Each is now known to be a frame of this layout.
            messages.extent(layout.len()).map_err(fault)?;
            save(&args.output, &layout, decoded)?
        }
        None => {
            messages.void(None).and_then(refuse_void).map_err(fault)?;
            let most = args.max_elements.unwrap_or_else(|| default_claim(messages.total_bytes()));
            let trusted = messages.lone_layout(most).map_err(fault)?;
            let limits = lone_limits(messages.total_bytes(), most);
            let decoded = decode(&messages, &trusted, &limits).map_err(fault)?;
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

/// A void frame has no gradient to write.
fn refuse_void(void: Option<VoidFrame>) -> Result<(), FileFault> {
    void.map_or(Ok(()), |VoidFrame { step, index, .. }| Err(FileFault::Void { step, index }))
}

/// The values that the messages add to an accumulator of zeros, and the content of their headers.
fn decode(
    messages: &Messages,
    layout: &LayoutRef<'_>,
    limits: &Limits,
) -> Result<(Vec<f32>, Notes), FileFault> {
    let (mut decoder, mut values, mut notes) = (Decoder::new(), Vec::new(), Notes::new());
    let mut codecs: Vec<&str> = Vec::new();
    for bytes in messages.iter() {
        let frame = decoder.parse(bytes, layout, limits)?;
        if values.is_empty() {
            values = zeroed(layout.len())?;
        }
        let Header { fingerprint, codec, .. } = *frame.header();
        notes.insert("fingerprint", format!("{fingerprint:016x}"));
        notes.insert("step", frame.step().to_string());
        if !codecs.contains(&codec_name(codec)) {
            codecs.push(codec_name(codec));
        }
        frame.add_scaled_to(1.0, &mut values);
    }
    notes.insert("codec", codecs.join("+"));
    Ok((values, notes))
}

fn save(path: &Path, layout: &LayoutRef<'_>, decoded: (Vec<f32>, Notes)) -> Result<(usize, usize), CliError> {
    let (values, notes) = decoded;
    write(path, layout, &values, &notes)?;
    Ok((values.len(), layout.tensor_count()))
}
