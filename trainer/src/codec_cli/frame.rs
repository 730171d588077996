//! Frames in files, and frames whose layout is not at hand.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gradwire::experiments::Experiment;
use gradwire::format::{CodecId, HEADER_BYTES, Header, Limit, Outline, VoidFrame};
use gradwire::{DecodeError, LayoutRef, Limits, Unit};

use super::error::{CliError, FileFault};
use super::files::{self, open};

/// Coordinates of a layout, or of frames without one, unless told otherwise: 1 GiB as f32.
pub(super) const DEFAULT_MAX_ELEMENTS: usize = 1 << 28;

/// Coordinates that a file of `bytes` bytes may claim without a layout, by default, to be decoded: enough for
/// an honest frame, and not a gigabyte for a hundred bytes.
pub(super) fn default_claim(bytes: usize) -> usize {
    (1 << 22usize).max(bytes.saturating_mul(1 << 12)).min(DEFAULT_MAX_ELEMENTS)
}

/// The messages of a file, in its order; at least one.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Messages {
    /// Reads a file that holds messages, one after the other, and nothing else. Allocates nothing for a body
    /// before its header proves to be that of a frame, and the file is long enough for it.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let read = || -> Result<Self, FileFault> {
            let (mut file, actual) = open(path)?;
            let mut messages = Self { bytes: Vec::new(), ends: Vec::new() };
            while messages.ends.is_empty() || (messages.bytes.len() as u64) < actual {
                messages.read_one(&mut file, actual)?;
            }
            Ok(messages)
        };
        let named = |fault| match (fault, files::kind(path)) {
            (FileFault::Frame(DecodeError::BadMagic | DecodeError::Truncated { .. }), Some(kind))
                if !kind.is_frame() =>
            {
                FileFault::NotAFrame(kind.to_string())
            }
            (fault, _) => fault,
        };
        read().map_err(|fault| named(fault).of(path))
    }

    fn read_one(&mut self, file: &mut File, actual: u64) -> Result<(), FileFault> {
        let start = self.bytes.len();
        file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut self.bytes)?;
        let header = match Header::parse(&self.bytes[start..]) {
            Ok(header) => header,
            // Bytes that follow a message and do not begin like a message are not one.
            Err(_) if start > 0 => return Err(FileFault::TrailingBytes { count: actual - start as u64 }),
            Err(error) => return Err(error.into()),
        };
        let needed = start as u64 + header.frame_bytes();
        if needed > actual {
            return Err(FileFault::Truncated { needed, actual });
        }
        if start == 0 {
            // Most files are one frame, whose bytes need no more room than they have.
            self.bytes.reserve_exact(header.body_bytes as usize);
        }
        file.take(header.body_bytes.into()).read_to_end(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// The messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    /// Bytes of all messages.
    pub(super) fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number of messages.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// What the file says if it is a void frame, the only message. Without a layout, of a coordinate that any
    /// layout may have.
    pub(super) fn void(&self, layout: Option<&LayoutRef<'_>>) -> Result<Option<VoidFrame>, FileFault> {
        let header = Header::parse(&self.bytes)?;
        if self.count() > 1 || !header.is_void {
            return Ok(None);
        }
        let any = LayoutRef::opaque(usize::MAX, header.fingerprint);
        Ok(VoidFrame::parse(&self.bytes, layout.unwrap_or(&any))?)
    }

    /// Checks that the messages belong to one gradient, as FORMAT.md, section 2.4, says. Returns where the
    /// last unit ends. Allocates in proportion to the number of units, whatever they claim.
    pub(super) fn extent(&self, max_elements: usize) -> Result<usize, FileFault> {
        let limits = claim_limits(max_elements);
        let (mut units, mut first) = (Vec::new(), None);
        for (number, bytes) in (1..).zip(self.iter()) {
            let wrong = |what| FileFault::Message { number, what };
            let outline = match Outline::read(bytes, &limits) {
                Err(DecodeError::Void) if self.count() > 1 => {
                    return Err(wrong("a void frame, which is alone in its file"));
                }
                outline => outline.map_err(|error| too_many(error, max_elements))?,
            };
            let header = *outline.header();
            let own = (header.fingerprint, header.divisor, outline.step());
            if *first.get_or_insert(own) != own {
                return Err(wrong("layout, divisor or step are not those of the first"));
            }
            units.reserve(header.unit_count.into());
            units.extend(outline.units().map(|info| (info.unit, number)));
        }
        let end = end_of(&mut units)?;
        // A gap before a unit does not count as elements, but needs memory.
        if end > max_elements { Err(FileFault::TooManyElements { limit: max_elements }) } else { Ok(end) }
    }

    /// The layout used if there are only messages: their own fingerprint, and the end of their last unit.
    pub(super) fn lone_layout(&self, max_elements: usize) -> Result<LayoutRef<'static>, FileFault> {
        let len = self.extent(max_elements)?;
        Ok(LayoutRef::opaque(len, Header::parse(&self.bytes)?.fingerprint))
    }
}

/// Where the last unit ends, of units that do not overlap and whose identifiers ascend with their places: the
/// pieces of one unit have one. Each has the number of its message.
fn end_of(units: &mut [(Unit, usize)]) -> Result<usize, FileFault> {
    units.sort_unstable_by_key(|(unit, number)| (unit.start, unit.id, *number));
    let (mut end, mut before) = (0, None);
    for &(Unit { id, start, len, .. }, number) in &*units {
        if start < end || before.is_some_and(|before| id < before) {
            let what = "its units overlap or contradict those of another message";
            return Err(FileFault::Message { number, what });
        }
        (end, before) = (start.saturating_add(len), Some(id));
    }
    Ok(end)
}

/// Limits on what messages may claim, for readers that take no memory for it.
pub(super) fn claim_limits(max_elements: usize) -> Limits {
    Limits {
        max_elements,
        max_entries: max_elements,
        max_body_bytes: usize::MAX,
        max_scratch_words: usize::MAX,
        max_units: usize::MAX,
        max_magnitude: f32::MAX,
    }
}

/// Limits of a frame of `bytes` bytes without a layout that covers at most `max_elements` coordinates.
pub(super) fn lone_limits(bytes: usize, max_elements: usize) -> Limits {
    let flat = LayoutRef::flat(max_elements);
    Limits { max_body_bytes: bytes, ..Limits::for_layout(&flat) }
}

/// Refuses a layout of more coordinates than the limit.
pub(super) fn check_layout(layout: &LayoutRef<'_>, limit: usize) -> Result<(), FileFault> {
    if layout.len() > limit { Err(FileFault::TooManyElements { limit }) } else { Ok(()) }
}

/// Says which option raises the limit that was exceeded.
pub(super) fn too_many(error: DecodeError, limit: usize) -> FileFault {
    match error {
        DecodeError::LimitExceeded(Limit::Elements | Limit::Entries) => FileFault::TooManyElements { limit },
        error => error.into(),
    }
}

/// Says which file a frame's layout was compared with.
pub(super) fn name_layout(fault: FileFault, file: &Path) -> FileFault {
    match fault {
        FileFault::Frame(DecodeError::LayoutMismatch { frame, layout }) => {
            FileFault::Layout { file: file.to_path_buf(), frame, layout }
        }
        other => other,
    }
}

/// The name that spellings of this codec begin with.
pub(super) fn codec_name(codec: CodecId) -> &'static str {
    let is_experiment = Experiment::new(codec.number()).is_some();
    codec.name().unwrap_or(if is_experiment { "experiment" } else { "unknown" })
}

#[cfg(test)]
mod tests {
    use gradwire::{Encoder, Grad, Source, Spec, StepInput, StepKey, Unit};

    use super::*;

    fn frame(unit: Unit) -> Vec<u8> {
        let spec = Spec::parse("none").unwrap();
        let key = StepKey { seed: 0, step: 0, source: Source::Rank(0) };
        let grad = vec![1.0; 100];
        let layout = LayoutRef::flat(100);
        let input = StepInput { key, layout: &layout, units: &[unit], grad: Grad::F32(&grad) };
        Encoder::new().encode(&spec.codec, &input, None).unwrap().to_vec()
    }

    /// A file with a frame of each unit.
    fn messages(units: &[Unit]) -> Messages {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frames");
        std::fs::write(&path, units.iter().flat_map(|&unit| frame(unit)).collect::<Vec<_>>()).unwrap();
        Messages::read(&path).unwrap()
    }

    #[test]
    fn messages_that_overlap_or_contradict_each_other_are_refused() {
        let [low, high] = [0, 40].map(|start| Unit { id: 1, start, len: 41, dense: false });
        let apart = Unit { start: 41, ..high };
        let none = Unit { id: 2, start: 41, len: 0, dense: false };
        for units in [&[low, apart][..], &[apart, low], &[low, none, Unit { id: 7, ..apart }]] {
            assert_eq!(messages(units).extent(100).unwrap(), 82);
        }
        for (units, wrong) in [
            ([low, high], 2),
            ([low, low], 2),
            ([high, low], 1),
            ([low, Unit { id: 0, ..apart }], 2),
            ([Unit { id: 0, ..apart }, low], 1),
        ] {
            let fault = messages(&units).extent(100).unwrap_err();
            assert!(matches!(fault, FileFault::Message { number, .. } if number == wrong), "{fault}");
        }
    }

    #[test]
    fn a_lone_frame_ends_with_its_last_unit() {
        let layout = messages(&[Unit { id: 0, start: 40, len: 20, dense: false }]).lone_layout(60).unwrap();
        assert_eq!((layout.len(), layout.fingerprint()), (60, LayoutRef::flat(100).fingerprint()));
    }

    #[test]
    fn gaps_and_units_beyond_the_limit_are_refused() {
        for unit in [Unit { id: 0, start: 40, len: 20, dense: false }, Unit::whole(100)] {
            let fault = messages(&[unit]).lone_layout(59).unwrap_err();
            assert!(matches!(fault, FileFault::TooManyElements { limit: 59 }), "{fault}");
        }
    }
}
