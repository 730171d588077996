//! The body of a sparse unit as received.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::coding::index::IndexCoder;
use crate::coding::values::{ValueFormat, Values};
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::wire::reader::Reader;

/// Structure of a sparse body: where its sections are. [`check`](Self::check) decodes the positions into scratch
/// memory; after that nothing can fail.
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

impl<'a> SparseFields<'a> {
    pub(crate) fn read(len: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let k = reader.varint_usize()?;
        if k > len {
            return Err(DecodeError::InvalidField(Field::Entries));
        }
        let sections = if k == 0 { None } else { Some(Sections::read(k, len, reader)?) };
        Ok(Self { len, k, sections })
    }

    pub(crate) fn entries(&self) -> usize {
        self.k
    }

    /// One word an entry for its position, and what the index coder needs first and the value coder then.
    pub(crate) fn scratch_words(&self) -> usize {
        self.sections.map_or(0, |sections| {
            self.k.saturating_add(sections.values.scratch_words().max(sections.coder.scratch_words(self.len)))
        })
    }

    /// Decodes and checks the positions, checks the values. `span` is the unit's, and `scratch` has
    /// [`scratch_words`](Self::scratch_words).
    pub(crate) fn check(
        &self,
        span: Span<'_>,
        max_magnitude: f32,
        scratch: &mut [u32],
    ) -> Result<(), DecodeError> {
        let Some(sections) = self.sections else { return Ok(()) };
        let (indices, slots) = scratch.split_at_mut(self.k);
        sections.coder.read(sections.index, span, indices, slots)?;
        sections.values.check(max_magnitude, slots)
    }

    /// Calls `f` with position and value of each entry, positions ascending.
    #[inline]
    pub(crate) fn for_each(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        let Some(sections) = self.sections else { return };
        let (indices, slots) = scratch.split_at(self.k);
        let mut indices = indices.iter();
        sections.values.for_each(slots, |value| {
            if let Some(&index) = indices.next() {
                f(index as usize, value);
            }
        });
    }

    /// Names and bytes of the two coders, for inspection: positions, values.
    pub(crate) fn coders(&self) -> Option<[(&'static str, usize); 2]> {
        self.sections.map(|sections| {
            [
                (sections.coder.name(), sections.index.len()),
                (sections.values.name(), sections.values.section_bytes()),
            ]
        })
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
