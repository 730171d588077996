//! `trainer codec inspect`: every field of a frame, and its units.

use std::io::Write;
use std::path::PathBuf;

use gradwire::format::Header;
use gradwire::{DecodeError, Decoder};

use super::error::{CliError, FileFault};
use super::frame::{DEFAULT_MAX_ELEMENTS, lone_layout, read_frame};
use super::json;
use super::report::{Content, HeaderReport, Report, UnitReport};

/// Arguments of `trainer codec inspect`.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// Frame to read
    #[arg(value_name = "FRAME")]
    pub frame: PathBuf,
    /// Write one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Largest number of coordinates to accept
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_ELEMENTS)]
    pub max_elements: usize,
}

/// Shows the frame. Of one whose checksum is wrong it shows the header, and then fails.
pub(super) fn run(args: &InspectArgs, out: &mut impl Write) -> Result<(), CliError> {
    let bytes = read_frame(&args.frame)?;
    let fault = |fault: FileFault| fault.of(&args.frame);
    let (content, mismatch) = match read_content(&bytes, args.max_elements) {
        Ok(content) => (Some(content), None),
        Err(FileFault::Frame(error @ DecodeError::ChecksumMismatch { .. })) => (None, Some(error)),
        Err(other) => return Err(fault(other)),
    };
    let header = Header::parse(&bytes).map_err(|error| fault(error.into()))?;
    let header = HeaderReport::new(&args.frame, &header, &bytes, mismatch.is_none());
    let report = Report { header, content };
    if args.json {
        json::write_line(out, &report)?;
    } else {
        report.write(out).map_err(CliError::Output)?;
    }
    mismatch.map_or(Ok(()), |error| Err(fault(error.into())))
}

/// Checks the frame completely and takes stock of it.
fn read_content(bytes: &[u8], max_elements: usize) -> Result<Content, FileFault> {
    let (layout, limits) = lone_layout(bytes, max_elements)?;
    let mut decoder = Decoder::new();
    let frame = decoder.parse(bytes, &layout, &limits)?;
    let units: Vec<UnitReport> = frame.units().map(|unit| UnitReport::new(&unit)).collect();
    let n = units.iter().map(|unit| unit.len).sum();
    Ok(Content { step: frame.step(), n, ratio: 4.0 * n as f64 / bytes.len() as f64, units })
}
