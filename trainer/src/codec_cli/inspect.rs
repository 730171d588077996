//! `trainer codec inspect`: every field of a frame, and its units.

use std::io::Write;
use std::path::{Path, PathBuf};

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
    let layout = args.layout.as_deref().map(|file| Ok((file, layout_of(file, args)?))).transpose()?;
    let layout = layout.as_ref().map(|(file, layout)| (*file, layout));
    let fault = |fault: FileFault| fault.of(&args.frame);
    let reports = Inspect::reports(args, &messages, layout).map_err(fault)?;
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

fn layout_of(file: &Path, args: &InspectArgs) -> Result<Layout, CliError> {
    let layout = read_layout(file)?;
    let most = args.max_elements.unwrap_or(DEFAULT_MAX_ELEMENTS);
    check_layout(&layout.as_ref(), most).map_err(|fault| fault.of(file))?;
    Ok(layout)
}

/// How the messages of a file are read.
struct Inspect<'a> {
    messages: &'a Messages,
    /// The file with the layout, and what is in it.
    layout: Option<(&'a Path, &'a Layout)>,
    /// Where the last unit of all messages ends, if that is known.
    end: Option<usize>,
    /// Coordinates that a frame may claim.
    claims: usize,
}

impl Inspect<'_> {
    /// What each message says, and what is wrong with its checksum.
    fn reports(
        args: &InspectArgs,
        messages: &Messages,
        layout: Option<(&Path, &Layout)>,
    ) -> Result<Vec<(Report, Option<DecodeError>)>, FileFault> {
        let claims = args.max_elements.filter(|_| layout.is_none()).unwrap_or(usize::MAX);
        let (end, apart) = match messages.extent(claims) {
            Ok(end) => (Some(end), None),
            // A void frame has no units, and those of a frame with a wrong checksum are not known.
            Err(FileFault::Frame(DecodeError::Void | DecodeError::ChecksumMismatch { .. })) => (None, None),
            // That a message is of another layout, or is not a frame under this one, is said first.
            Err(error) if layout.is_some() => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let inspect = Inspect { messages, layout, end, claims };
        let reports = messages.iter().map(|bytes| inspect.report(bytes, &args.frame));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        match apart {
            Some(error) if reports.iter().all(|(_, mismatch)| mismatch.is_none()) => Err(error),
            _ => Ok(reports),
        }
    }

    fn report(&self, bytes: &[u8], file: &Path) -> Result<(Report, Option<DecodeError>), FileFault> {
        let (content, mismatch) = match self.content(bytes) {
            Ok(content) => (Some(content), None),
            Err(FileFault::Frame(error @ DecodeError::ChecksumMismatch { .. })) => (None, Some(error)),
            Err(error) => {
                return Err(match self.layout {
                    Some((file, _)) => name_layout(error, file),
                    None => error,
                });
            }
        };
        let header = HeaderReport::new(file, &Header::parse(bytes)?, bytes, mismatch.is_none());
        Ok((Report { header, content }, mismatch))
    }

    fn content(&self, bytes: &[u8]) -> Result<Content, FileFault> {
        let layout = self.layout.map(|(_, layout)| layout.as_ref());
        if let Some(void) = self.messages.void(layout.as_ref())? {
            let place = self.layout.and_then(|(_, layout)| place(layout, void.index));
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
