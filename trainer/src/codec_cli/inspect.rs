//! `trainer codec inspect`: every field of a frame, and its units.

use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire::format::Header;
use gradwire::format::Outline;
use gradwire::{DecodeError, Decoder, LayoutRef, Limits};

use super::error::{CliError, FileFault};
use super::frame::{
    DEFAULT_MAX_ELEMENTS, Messages, check_layout, claim_limits, lone_limits, name_layout, too_many,
};
use super::gradient::read_layout;
use super::json;
use super::report::{Checked, Content, HeaderReport, Report, UnitReport};

/// Arguments of `trainer codec inspect`.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// Frame to read, or the packets of one gradient, one after the other
    #[arg(value_name = "FRAME")]
    pub frame: PathBuf,
    /// Write JSON lines instead of tables: an object for each frame
    #[arg(long)]
    pub json: bool,
    /// Safetensors file with the layout. The frame is checked against its shapes, and a frame of another
    /// layout is refused. Without this option, positions and values are not checked if the frame claims far
    /// more coordinates than it has bytes, or if its positions need the shapes
    #[arg(long, value_name = "FILE")]
    pub layout: Option<PathBuf>,
    /// Most coordinates that a frame or a layout may have [default: 268435456 for a layout. A frame without a
    /// layout may claim any number, as that takes no memory]
    #[arg(long, value_name = "N")]
    pub max_elements: Option<usize>,
}

/// The most coordinates for which a frame of `bytes` bytes is decoded without a layout: enough for usual
/// frames, and not what any frame can claim. Of larger frames only the structure is checked.
fn decoded_without_layout(bytes: usize) -> usize {
    bytes.saturating_mul(64).saturating_add(1 << 20)
}

/// Shows the frames. For a frame with a wrong checksum it shows the header, and then fails.
pub(super) fn run(args: &InspectArgs, out: &mut impl Write) -> Result<(), CliError> {
    let messages = Messages::read(&args.frame)?;
    let layout = args.layout.as_deref().map(|file| Ok((file, read_layout(file)?))).transpose()?;
    let fault = |fault: FileFault| fault.of(&args.frame);
    if let Some((file, layout)) = &layout {
        let most = args.max_elements.unwrap_or(DEFAULT_MAX_ELEMENTS);
        check_layout(&layout.as_ref(), most).map_err(|fault| fault.of(file))?;
    }
    let mut reports = Vec::new();
    for bytes in messages.iter() {
        let content = match &layout {
            Some((file, layout)) => with_layout(bytes, &layout.as_ref(), file),
            None => without_layout(bytes, args.max_elements.unwrap_or(usize::MAX)),
        };
        let (content, mismatch) = match content {
            Ok(content) => (Some(content), None),
            Err(FileFault::Frame(error @ DecodeError::ChecksumMismatch { .. })) => (None, Some(error)),
            Err(other) => return Err(fault(other)),
        };
        let header = Header::parse(bytes).map_err(|error| fault(error.into()))?;
        let header = HeaderReport::new(&args.frame, &header, bytes, mismatch.is_none());
        reports.push((Report { header, content }, mismatch));
    }
    if reports.iter().all(|(_, mismatch)| mismatch.is_none()) {
        messages.extent(usize::MAX).map_err(fault)?;
    }
    for (number, (report, mismatch)) in (1..).zip(reports) {
        if args.json {
            json::write_line(out, &report)?;
        } else {
            report.write((number, messages.count()), out).map_err(CliError::Output)?;
        }
        mismatch.map_or(Ok(()), |error| Err(fault(error.into())))?;
    }
    Ok(())
}

/// Checks the frame completely and takes stock of it.
fn with_layout(bytes: &[u8], layout: &LayoutRef<'_>, file: &Path) -> Result<Content, FileFault> {
    let limits = Limits::for_layout(layout);
    decode(bytes, layout, &limits).map_err(|fault| name_layout(fault, file))
}

/// Outlines the frame, and checks it as far as that takes no memory in proportion to what it claims.
fn without_layout(bytes: &[u8], max_elements: usize) -> Result<Content, FileFault> {
    let claims = claim_limits(max_elements);
    let outline = Outline::read(bytes, &claims).map_err(|error| too_many(error, max_elements))?;
    let end = outline.units().last().map_or(0, |info| info.unit.range().end);
    if end > max_elements {
        return Err(FileFault::TooManyElements { limit: max_elements });
    }
    let limits = lone_limits(bytes.len(), decoded_without_layout(bytes.len()));
    let layout = LayoutRef::opaque(end, outline.header().fingerprint);
    match decode(bytes, &layout, &limits) {
        Err(FileFault::Frame(DecodeError::LimitExceeded(_))) => Ok(content(&outline, bytes, Checked::Claims)),
        Err(FileFault::Frame(DecodeError::LayoutUnknown)) => Ok(content(&outline, bytes, Checked::Shapes)),
        decoded => decoded,
    }
}

/// The content of a frame that decodes.
fn decode(bytes: &[u8], layout: &LayoutRef<'_>, limits: &Limits) -> Result<Content, FileFault> {
    let mut decoder = Decoder::new();
    let frame = decoder.parse(bytes, layout, limits)?;
    let units = frame.units().map(|unit| UnitReport::decoded(&unit)).collect();
    Ok(Content::new(frame.step(), units, bytes.len(), Checked::Completely))
}

/// What a frame says about itself.
fn content(outline: &Outline<'_>, bytes: &[u8], checked: Checked) -> Content {
    let units = outline.units().map(|info| UnitReport::new(&info)).collect();
    Content::new(outline.step(), units, bytes.len(), checked)
}
