//! `trainer codec inspect`: every field of a frame, and its units.

use std::io::Write;
use std::path::PathBuf;

use gradwire::format::{Header, Outline};
use gradwire::{DecodeError, Decoder, Layout, LayoutRef, Limits};

use super::error::{CliError, FileFault};
use super::frame::{
    DEFAULT_MAX_ELEMENTS, Messages, check_layout, claim_limits, lone_limits, name_layout, too_many,
};
use super::gradient::{place, read_layout};
use super::json;
use super::report::{Checked, Content, GradientReport, HeaderReport, Report, UnitReport, VoidReport};

/// Arguments of `trainer codec inspect`.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// Frame to read, or the packets or the frames of the groups of one gradient, one after the other
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

/// The most coordinates for which a file of `bytes` bytes is decoded without a layout: enough for usual
/// frames, and not what any frame can claim. Of larger frames only the structure is checked.
fn decoded_without_layout(bytes: usize) -> usize {
    bytes.saturating_mul(64).saturating_add(1 << 20)
}

/// The most coordinates of a unit that is encoded again by other coders, which takes several times the memory
/// and the time of decoding it.
fn encoded_again(bytes: usize) -> usize {
    bytes.saturating_mul(16).saturating_add(1 << 20)
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
    let claims = if layout.is_some() { usize::MAX } else { args.max_elements.unwrap_or(usize::MAX) };
    let (end, mismatched) = match messages.extent(claims) {
        Ok(end) => (Some(end), None),
        // A void frame has no units, and those of a frame with a wrong checksum are not known.
        Err(FileFault::Frame(DecodeError::Void | DecodeError::ChecksumMismatch { .. })) => (None, None),
        // That a message is of another layout, or is not a frame under this one, is said first.
        Err(error) if layout.is_some() => (None, Some(error)),
        Err(error) => return Err(fault(error)),
    };
    let inspect =
        Inspect { messages: &messages, layout: layout.as_ref().map(|(_, layout)| layout), end, claims };
    let mut reports = Vec::new();
    for bytes in messages.iter() {
        let content = inspect.content(bytes).map_err(|error| match &layout {
            Some((file, _)) => name_layout(error, file),
            None => error,
        });
        let (content, mismatch) = match content {
            Ok(content) => (Some(content), None),
            Err(FileFault::Frame(error @ DecodeError::ChecksumMismatch { .. })) => (None, Some(error)),
            Err(other) => return Err(fault(other)),
        };
        let header = Header::parse(bytes).map_err(|error| fault(error.into()))?;
        let header = HeaderReport::new(&args.frame, &header, bytes, mismatch.is_none());
        reports.push((Report { header, content }, mismatch));
    }
    if let (Some(error), true) = (mismatched, reports.iter().all(|(_, mismatch)| mismatch.is_none())) {
        return Err(fault(error));
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

/// How the messages of a file are read.
struct Inspect<'a> {
    messages: &'a Messages,
    layout: Option<&'a Layout>,
    /// Where the last unit of all messages ends, if that is known.
    end: Option<usize>,
    /// Coordinates that a frame may claim.
    claims: usize,
}

impl Inspect<'_> {
    fn content(&self, bytes: &[u8]) -> Result<Content, FileFault> {
        let layout = self.layout.map(Layout::as_ref);
        if let Some(void) = self.messages.void(layout.as_ref())? {
            let place = self.layout.and_then(|layout| place(layout, void.index));
            return Ok(Content::Void(VoidReport { step: void.step, index: void.index, place }));
        }
        match layout {
            Some(layout) => self.decode(bytes, &layout, &Limits::for_layout(&layout)),
            None => self.without_layout(bytes),
        }
        .map(Content::Gradient)
    }

    /// Outlines the frame, and checks it as far as that takes no memory in proportion to what it claims.
    fn without_layout(&self, bytes: &[u8]) -> Result<GradientReport, FileFault> {
        let outline = Outline::read(bytes, &claim_limits(self.claims));
        let outline = outline.map_err(|error| too_many(error, self.claims))?;
        let own_end = || outline.units().last().map_or(0, |info| info.unit.range().end);
        let layout = LayoutRef::opaque(self.end.unwrap_or_else(own_end), outline.header().fingerprint);
        let bytes_of_file = self.messages.total_bytes();
        let limits = lone_limits(bytes_of_file, decoded_without_layout(bytes_of_file));
        let outlined = |checked| {
            let units = outline.units().map(|info| UnitReport::new(&info)).collect();
            Ok(GradientReport::new(outline.step(), units, bytes.len(), checked))
        };
        match self.decode(bytes, &layout, &limits) {
            Err(FileFault::Frame(DecodeError::LimitExceeded(_))) => outlined(Checked::Claims),
            Err(FileFault::Frame(DecodeError::LayoutUnknown)) => outlined(Checked::Shapes),
            decoded => decoded,
        }
    }

    /// The content of a frame that decodes.
    fn decode(
        &self,
        bytes: &[u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
    ) -> Result<GradientReport, FileFault> {
        let mut decoder = Decoder::new();
        let frame = decoder.parse(bytes, layout, limits)?;
        let most = encoded_again(self.messages.total_bytes());
        let units = frame.units().map(|unit| UnitReport::decoded(&unit, most)).collect();
        Ok(GradientReport::new(frame.step(), units, bytes.len(), Checked::Completely))
    }
}
