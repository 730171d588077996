//! The body of a sparse unit as received.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::codec::{Body, BodyInfo};
use crate::coding::index::IndexCoder;
use crate::coding::values::{ValueFormat, Values};
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;

/// Structure of a sparse body: where its sections are. [`check`](Self::check) decodes the positions into
/// scratch memory; after that nothing can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SparseFields<'a> {
    len: usize,
    k: usize,
    sections: Option<Sections<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Sections<'a> {
    coder: IndexCoder,
    index: &'a [u8],
    values: Values<'a>,
}

impl<'a> Body<'a> for SparseFields<'a> {
    const KIND: Kind = Kind::new(1);

    fn read(_codec: CodecId, unit: &Unit, _step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = unit.len;
        let k = reader.varint_usize()?;
        if k > len {
            return Err(DecodeError::InvalidField(Field::Entries));
        }
        let sections = if k == 0 { None } else { Some(Sections::read(k, len, reader)?) };
        Ok(Self { len, k, sections })
    }

    fn entries(&self) -> usize {
        self.k
    }

    /// One word per entry for its position, and words that first the index coder and then the value coder
    /// uses.
    fn scratch_words(&self) -> usize {
        self.sections.map_or(0, |sections| {
            self.k.saturating_add(sections.values.scratch_words().max(sections.coder.scratch_words(self.len)))
        })
    }

    /// Decodes and checks the positions, and checks the values. `span` is the unit's, and `scratch` has
    /// [`scratch_words`](Self::scratch_words).
    fn check(&self, span: Span<'_>, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        let Some(sections) = self.sections else { return Ok(()) };
        let (indices, slots) = scratch.split_at_mut(self.k);
        sections.coder.read(sections.index, span, indices, slots)?;
        sections.values.check(max_magnitude, slots)
    }

    /// Calls `f` with position and value of each entry, positions ascending.
    #[inline]
    fn for_each(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        let Some(sections) = self.sections else { return };
        let (indices, slots) = scratch.split_at(self.k);
        let mut indices = indices.iter();
        sections.values.for_each(slots, |value| {
            if let Some(&index) = indices.next() {
                f(index as usize, value);
            }
        });
    }

    fn held(&self, _len: usize) -> usize {
        self.k
    }

    fn positions<'s>(&self, scratch: &'s [u32]) -> &'s [u32] {
        scratch.get(..self.k).unwrap_or_default()
    }

    fn info(&self) -> BodyInfo {
        let index = self.sections.map(|sections| (sections.coder.name(), sections.index.len()));
        let values = self.sections.map(|sections| (sections.values.name(), sections.values.section_bytes()));
        BodyInfo { kind: "sparse", index, values }
    }
}

impl<'a> Sections<'a> {
    fn read(k: usize, len: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let coding = reader.u8()?;
        let coder = IndexCoder::from_wire(coding & 0x0f)?;
        let format = ValueFormat::from_wire(coding >> 4)?;
        let index = coder.section(k, len, reader)?;
        let values = Values::fields(format, k, reader)?;
        Ok(Self { coder, index, values })
    }
}
