//! What `inspect` shows, as JSON and as a table. Fields of the frame have their names on the wire.

use std::io::{self, Write};
use std::path::Path;

use gradwire::format::{Divisor, FrameUnit, Header, UnitInfo};
use serde::Serialize;

use super::alternatives::Alternatives;
use super::error::{Place, one_line};
use super::frame::codec_name;
use super::quality::{bits_per, value_bytes};
use super::table::{Table, grouped, optional, significant};

/// A frame. If its checksum is wrong, its content is not worth showing.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) header: HeaderReport,
    #[serde(flatten)]
    pub(super) content: Option<Content>,
}

/// What follows the header.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Content {
    /// Of a frame with a gradient.
    Gradient(GradientReport),
    /// Of a void frame.
    Void(VoidReport),
}

/// The fields of the header.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HeaderReport {
    file: String,
    frame_bytes: u64,
    magic: String,
    version: u8,
    codec: u8,
    codec_name: &'static str,
    flags: u16,
    /// Of a frame with a gradient.
    divisor: Option<&'static str>,
    is_void: bool,
    unit_count: u16,
    fingerprint: String,
    body_bytes: u32,
    checksum: String,
    checksum_is_right: bool,
}

/// What a void frame says.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VoidReport {
    /// The step that the missing frame belongs to.
    pub(super) step: u64,
    /// The coordinate that could not be encoded.
    pub(super) index: usize,
    /// The tensor that holds it, and the element there, if the layout is known.
    pub(super) place: Option<(String, usize)>,
}

/// Step and units.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GradientReport {
    /// Step of the run.
    pub(super) step: u64,
    /// Coordinates of all units together.
    pub(super) n: usize,
    /// Dense f32 bytes of these coordinates over bytes of the frame.
    pub(super) ratio: f64,
    /// How much of the frame was checked.
    checked: Checked,
    /// One entry a unit, in the order of the frame.
    pub(super) units: Vec<UnitReport>,
}

/// How much of a frame was checked.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Checked {
    /// All of it.
    Completely,
    /// Everything except positions and values: decoding what the frame claims would take memory out of
    /// proportion to its bytes.
    Claims,
    /// Not positions and values: the positions need the shapes.
    Shapes,
}

impl Checked {
    fn text(self) -> &'static str {
        match self {
            Self::Completely => "completely",
            Self::Claims => {
                "header, checksum and structure: it claims so many coordinates that decoding needs --layout"
            }
            Self::Shapes => "header, checksum and structure: its positions cannot be read without --layout",
        }
    }
}

/// One unit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnitReport {
    unit: u32,
    start: usize,
    pub(super) len: usize,
    kind: &'static str,
    held: usize,
    index_coder: Option<&'static str>,
    index_bytes: Option<usize>,
    value_coder: Option<&'static str>,
    value_bytes: Option<usize>,
    body_bytes: usize,
    bits_per_coord: Option<f64>,
    alternatives: Option<Alternatives>,
}

impl HeaderReport {
    /// The header in front of `bytes`.
    pub(super) fn new(file: &Path, header: &Header, bytes: &[u8], checksum_is_right: bool) -> Self {
        let field = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        Self {
            file: file.display().to_string(),
            frame_bytes: header.frame_bytes(),
            magic: String::from_utf8_lossy(field(0..2)).into_owned(),
            version: header.version,
            codec: header.codec.number(),
            codec_name: codec_name(header.codec),
            flags: field(4..6).iter().rev().fold(0, |flags, &byte| flags << 8 | u16::from(byte)),
            divisor: (!header.is_void).then_some(match header.divisor {
                Divisor::Contributors => "contributors",
                Divisor::Senders => "senders",
                _ => "unknown",
            }),
            is_void: header.is_void,
            unit_count: header.unit_count,
            fingerprint: format!("{:016x}", header.fingerprint),
            body_bytes: header.body_bytes,
            checksum: format!("{:08x}", header.checksum),
            checksum_is_right,
        }
    }

    fn rows(&self) -> [(&'static str, String); 9] {
        let verdict = if self.checksum_is_right { "right" } else { "WRONG" };
        let flags = match self.divisor {
            Some(divisor) => format!("{:#06x} (divisor: {divisor})", self.flags),
            None => format!("{:#06x} (void: no gradient)", self.flags),
        };
        [
            ("magic", self.magic.clone()),
            ("version", self.version.to_string()),
            ("codec", format!("{} ({})", self.codec, self.codec_name)),
            ("flags", flags),
            ("unit_count", self.unit_count.to_string()),
            ("fingerprint", self.fingerprint.clone()),
            ("body_bytes", grouped(self.body_bytes as usize)),
            ("checksum", format!("{} ({verdict})", self.checksum)),
            ("frame bytes", grouped(self.frame_bytes as usize)),
        ]
    }
}

impl UnitReport {
    /// One unit of a parsed frame, with its size under other coders if it has at most `most` coordinates.
    pub(super) fn decoded(unit: &FrameUnit<'_>, most: usize) -> Self {
        Self { alternatives: Alternatives::of(unit, most), ..Self::new(&unit.info()) }
    }

    /// What a unit says about itself.
    pub(super) fn new(info: &UnitInfo) -> Self {
        let bytes = info.index.map_or(0, |(_, bytes)| bytes) + value_bytes(info);
        Self {
            unit: info.unit.id,
            start: info.unit.start,
            len: info.unit.len,
            kind: info.kind,
            held: info.held,
            index_coder: info.index.map(|(name, _)| name),
            index_bytes: info.index.map(|(_, bytes)| bytes),
            value_coder: info.values.map(|(name, _)| name),
            value_bytes: info.values.map(|(_, bytes)| bytes),
            body_bytes: info.body_bytes,
            bits_per_coord: bits_per(bytes, info.unit.len),
            alternatives: None,
        }
    }

    fn cells(&self) -> Vec<String> {
        let name = |name: Option<&str>| name.unwrap_or("-").to_owned();
        let bytes = |bytes: Option<usize>| bytes.map_or_else(|| "-".to_owned(), grouped);
        vec![
            self.unit.to_string(),
            grouped(self.start),
            grouped(self.len),
            self.kind.to_owned(),
            grouped(self.held),
            name(self.index_coder),
            bytes(self.index_bytes),
            name(self.value_coder),
            bytes(self.value_bytes),
            optional(self.bits_per_coord, 4),
        ]
    }
}

/// Units that the table shows: nobody reads more, and each takes kilobytes while the table is made.
const MOST_ROWS: usize = 1000;

/// Titles of the table of units.
const UNIT_TITLES: [(&str, &str); 10] = [
    ("unit", ""),
    ("start", ""),
    ("len", ""),
    ("kind", ""),
    ("held", ""),
    ("index", "coder"),
    ("index", "bytes"),
    ("value", "coder"),
    ("value", "bytes"),
    ("bits/", "coord"),
];

impl GradientReport {
    /// The units of a frame of `bytes` bytes.
    pub(super) fn new(step: u64, units: Vec<UnitReport>, bytes: usize, checked: Checked) -> Self {
        let n = units.iter().map(|unit| unit.len).fold(0, usize::saturating_add);
        Self { step, n, ratio: 4.0 * n as f64 / bytes as f64, checked, units }
    }
}

impl Report {
    /// Writes the header field by field, then the units as a table. `place` is the number of the frame in its
    /// file, and the number of frames.
    pub(super) fn write(&self, place: (usize, usize), out: &mut impl Write) -> io::Result<()> {
        match place {
            (_, 1) => writeln!(out, "{}", self.header.file)?,
            (number, count) => {
                let gap = if number > 1 { "\n" } else { "" };
                writeln!(out, "{gap}{}: message {number} of {count}", self.header.file)?;
            }
        }
        let mut rows = self.header.rows().to_vec();
        rows.extend(self.content.iter().flat_map(Content::rows));
        rows.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<11}  {value}"))?;
        match &self.content {
            Some(Content::Gradient(content)) => content.write_units(out),
            Some(Content::Void(_)) | None => Ok(()),
        }
    }
}

impl Content {
    fn rows(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Gradient(content) => content.rows(),
            Self::Void(void) => void.rows(),
        }
    }
}

impl VoidReport {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let place = Place(self.place.clone());
        let what = one_line(format_args!("coordinate {}{place} could not be encoded", grouped(self.index)));
        vec![("step", self.step.to_string()), ("void", what)]
    }
}

impl GradientReport {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let ratio = format!("{} (dense f32 bytes / frame bytes)", significant(self.ratio, 4));
        vec![
            ("step", self.step.to_string()),
            ("coordinates", grouped(self.n)),
            ("ratio", ratio),
            ("checked", self.checked.text().to_owned()),
        ]
    }

    /// The units as a table, and what other coders would take.
    fn write_units(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out)?;
        let mut table = Table::new(&UNIT_TITLES);
        self.units.iter().take(MOST_ROWS).for_each(|unit| table.push(unit.cells()));
        table.write(out)?;
        if self.units.len() > MOST_ROWS {
            writeln!(out, "and {} more units: --json shows all", grouped(self.units.len() - MOST_ROWS))?;
        }
        writeln!(
            out,
            "held: coordinates with a value; index: of levels units, the norms; bits/coord: index and values together"
        )?;
        let others = self.units.iter().filter_map(|unit| Some((unit.unit, unit.alternatives.as_ref()?)));
        let mut others = others.take(MOST_ROWS).peekable();
        if others.peek().is_some() {
            writeln!(
                out,
                "\nbytes under each coder; positions are coded without the shapes, levels include their norms:"
            )?;
        }
        others.try_for_each(|(unit, others)| writeln!(out, "  unit {unit}: {}", others.line()))
    }
}
