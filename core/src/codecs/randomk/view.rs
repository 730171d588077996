//! The body of a seeded unit as received.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use super::draw::Drawing;
use crate::built::Full;
use crate::codec::{Body, BodyInfo};
use crate::coding::values::{ValueFormat, Values};
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::rng::key::{Source, StepKey};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;

/// Structure of a seeded body: the positions follow from seed, step and unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededFields<'a> {
    key: StepKey,
    unit: Unit,
    k: usize,
    drawing: Drawing,
    _full: Full,
    values: Values<'a>,
}

impl<'a> Body<'a> for SeededFields<'a> {
    const KIND: Kind = Kind::new(3);

    fn read(_codec: CodecId, unit: &Unit, step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let full = Full::required()?;
        let seed = reader.u64()?;
        let k = reader.varint_usize()?;
        if k > unit.len {
            return Err(DecodeError::InvalidField(Field::Entries));
        }
        let number = reader.u8()?;
        let format = ValueFormat::from_wire(number & 15)?;
        if format.fixed_bytes().is_none() {
            return Err(DecodeError::InvalidField(Field::Coding));
        }
        let drawing = Drawing::read(number >> 4, unit.len, k, reader)?;
        let values = Values::fields(format, k, reader)?;
        let key = StepKey { seed, step, source: Source::Shared };
        Ok(Self { key, unit: *unit, k, drawing, values, _full: full })
    }

    fn entries(&self) -> usize {
        self.k
    }

    fn scratch_words(&self) -> usize {
        if self.k == 0 { 0 } else { self.k.saturating_add(self.drawing.spare_words(self.unit.len)) }
    }

    /// Checks the values and draws the positions.
    fn check(&self, _span: Span<'_>, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        self.values.check(max_magnitude, &mut [])?;
        if self.k > 0 {
            let (indices, spare) = scratch.split_at_mut(self.k);
            self.drawing.draw(&self.key.shared_selection(self.unit.id), self.unit.len, indices, spare);
        }
        Ok(())
    }

    #[inline]
    fn for_each(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        let mut indices = scratch.iter();
        self.values.for_each(&[], |value| {
            if let Some(&index) = indices.next() {
                f(index as usize, value);
            }
        });
    }

    fn held(&self, _len: usize) -> usize {
        self.k
    }

    fn info(&self) -> BodyInfo {
        let values = (self.values.name(), self.values.section_bytes());
        BodyInfo { kind: "seeded", index: None, values: Some(values) }
    }
}
