//! Frames in files, and frames whose layout is not at hand.

use std::io::Read;
use std::path::Path;

use gradwire::format::{CodecId, HEADER_BYTES, Header, Limit, frame_extent};
use gradwire::{DecodeError, LayoutRef, Limits};

use super::error::{CliError, FileFault};
use super::files::{check_length, open};

/// Coordinates of a frame whose layout is not at hand, unless told otherwise: 1 GiB as f32.
pub(super) const DEFAULT_MAX_ELEMENTS: usize = 1 << 28;

/// Reads a file that holds one frame. Nothing is allocated for the body before the header says that this is a frame, of as
/// many bytes as the file.
pub(super) fn read_frame(path: &Path) -> Result<Vec<u8>, CliError> {
    let read = || -> Result<Vec<u8>, FileFault> {
        let (mut file, actual) = open(path)?;
        let mut bytes = Vec::new();
        file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
        let header = Header::parse(&bytes)?;
        check_length(header.frame_bytes(), actual)?;
        file.take(header.body_bytes.into()).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|fault| fault.of(path))
}

/// What stands for the layout of a frame that is all there is: its own fingerprint, and the end of its last unit. With it,
/// the limits that come from `max_elements`.
pub(super) fn lone_layout(
    bytes: &[u8],
    max_elements: usize,
) -> Result<(LayoutRef<'static>, Limits), FileFault> {
    let flat = LayoutRef::flat(max_elements);
    let limits = Limits { max_body_bytes: bytes.len(), ..Limits::for_layout(&flat) };
    let too_many = FileFault::TooManyElements { limit: max_elements };
    match frame_extent(bytes, &limits) {
        // A gap before a unit is not counted as an element, but has to be allocated for.
        Ok(len) if len > max_elements => Err(too_many),
        Ok(len) => Ok((LayoutRef::opaque(len, Header::parse(bytes)?.fingerprint), limits)),
        Err(DecodeError::LimitExceeded(Limit::Elements | Limit::Entries)) => Err(too_many),
        Err(error) => Err(error.into()),
    }
}

/// The name that spellings of this codec begin with.
pub(super) fn codec_name(codec: CodecId) -> &'static str {
    codec.name().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use gradwire::{Encoder, Grad, Source, Spec, StepKey, Unit};

    use super::*;

    fn frame(unit: Unit) -> Vec<u8> {
        let spec = Spec::parse("none").unwrap();
        let key = StepKey { seed: 0, step: 0, source: Source::Rank(0) };
        let grad = vec![1.0; 100];
        let layout = LayoutRef::flat(100);
        Encoder::new().encode(&spec.codec, key, &layout, &[unit], Grad::F32(&grad), None).unwrap().to_vec()
    }

    #[test]
    fn a_lone_frame_ends_with_its_last_unit() {
        let bytes = frame(Unit { id: 0, start: 40, len: 20, dense: false });
        let (layout, _) = lone_layout(&bytes, 60).unwrap();
        assert_eq!((layout.len(), layout.fingerprint()), (60, LayoutRef::flat(100).fingerprint()));
    }

    #[test]
    fn gaps_and_units_beyond_the_limit_are_refused() {
        for unit in [Unit { id: 0, start: 40, len: 20, dense: false }, Unit::whole(100)] {
            let fault = lone_layout(&frame(unit), 59).unwrap_err();
            assert!(matches!(fault, FileFault::TooManyElements { limit: 59 }), "{fault}");
        }
    }
}
