//! The body of a dense unit as received.

use super::Dense;
use crate::codec::{Body, BodyInfo};
use crate::coding::values::{ValueFormat, Values};
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;

/// One value a coordinate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseFields<'a>(Values<'a>);

impl<'a> Body<'a> for DenseFields<'a> {
    const KIND: Kind = Kind::DENSE;

    fn read(codec: CodecId, unit: &Unit, _step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let format = ValueFormat::from_wire(reader.u8()?)?;
        if format.fixed_bytes().is_none() {
            return Err(DecodeError::InvalidField(Field::Coding));
        }
        let values = Values::fields(format, unit.len, reader)?;
        if Dense::sends(codec, format) {
            Ok(Self(values))
        } else {
            Err(DecodeError::InvalidField(Field::Coding))
        }
    }

    fn scratch_words(&self) -> usize {
        self.0.scratch_words()
    }

    fn check(&self, _span: Span<'_>, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        self.0.check(max_magnitude, scratch)
    }

    #[inline]
    fn for_each(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        let mut i = 0;
        self.0.for_each(scratch, |value| {
            f(i, value);
            i = i.wrapping_add(1);
        });
    }

    const ADDS: bool = true;

    fn add_scaled_to(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
        self.0.add_scaled_to(scratch, weight, acc);
    }

    fn info(&self) -> BodyInfo {
        BodyInfo { kind: "dense", index: None, values: Some((self.0.name(), self.0.section_bytes())) }
    }
}

impl Dense {
    /// Whether dense units of a codec may have values of that format: f32, or the format of the codec's
    /// casts.
    fn sends(codec: CodecId, format: ValueFormat) -> bool {
        let [_, f16, bf16] = Self::IDS;
        match format {
            ValueFormat::F32 => true,
            ValueFormat::F16(_) => codec == f16,
            ValueFormat::Bf16 => codec == bf16,
            _ => false,
        }
    }
}
