//! Index coders: the ascending positions of the entries of a sparse unit, in as few bytes as they cost.

mod bitmap;
mod raw;
mod rice;

use crate::error::{DecodeError, Field};
use crate::layout::Span;
use crate::wire::reader::Reader;
use crate::wire::writer::{Writer, varint_len};

/// How the positions of one unit are written. Numbers 3 and 4 are set aside for context-modelled coders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum IndexCoder {
    Raw = 0,
    Bitmap = 1,
    Rice = 2,
}

impl IndexCoder {
    pub(crate) fn from_wire(coder: u8) -> Result<Self, DecodeError> {
        Ok(match coder {
            0 => Self::Raw,
            1 => Self::Bitmap,
            2 => Self::Rice,
            _ => return Err(DecodeError::InvalidField(Field::Coding)),
        })
    }

    /// Name as in a codec spelling.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Bitmap => "bitmap",
            Self::Rice => "rice",
        }
    }
}

/// Which index coder the encoder uses: the key `index=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum IndexChoice {
    /// The cheapest of `raw`, `bitmap` and `rice` by exact bytes; ties go to the first named.
    #[default]
    Auto,
    /// Every position in as many bits as the largest possible one needs.
    Raw,
    /// One bit a coordinate.
    Bitmap,
    /// Gaps in Rice codes, with the best parameter of each block.
    Rice,
}

impl IndexChoice {
    /// Largest number of bytes that the section of `k` positions below `len` can take.
    pub(crate) fn max_section_bytes(self, k: usize, len: usize) -> Option<usize> {
        match self {
            Self::Bitmap => Some(bitmap::section_bytes(len)),
            // `auto` takes the smallest, which is never above `raw`.
            Self::Auto | Self::Raw => raw::section_bytes(k, len),
            Self::Rice => {
                let bytes = rice::max_section_bytes(k, len)?;
                bytes.checked_add(varint_len(bytes as u64))
            }
        }
    }

    /// Whether a run of entries takes few bytes however far they are apart, so that it can be a packet.
    pub(crate) fn is_cut(self) -> bool {
        self != Self::Bitmap
    }

    /// The coder for these positions: by exact section bytes, never by features or machine.
    pub(crate) fn plan<'i>(self, indices: &'i [u32], span: Span<'_>) -> Plan<'i> {
        let plan = |coder: IndexCoder| coder.plan(indices, span);
        match self {
            Self::Raw => plan(IndexCoder::Raw),
            Self::Bitmap => plan(IndexCoder::Bitmap),
            Self::Rice => plan(IndexCoder::Rice),
            Self::Auto => {
                let (raw, bitmap, rice) =
                    (plan(IndexCoder::Raw), plan(IndexCoder::Bitmap), plan(IndexCoder::Rice));
                let fixed = if bitmap.bytes() < raw.bytes() { bitmap } else { raw };
                if rice.bytes() < fixed.bytes() { rice } else { fixed }
            }
        }
    }
}

/// One index coder, measured against the positions it is going to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'i> {
    coder: IndexCoder,
    indices: &'i [u32],
    len: usize,
    planes: rice::Planes,
    bytes: usize,
}

impl Plan<'_> {
    pub(crate) fn coder(&self) -> IndexCoder {
        self.coder
    }

    /// Exact bytes of the section.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the section.
    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        match self.coder {
            IndexCoder::Raw => raw::write(self.indices, self.len, writer),
            IndexCoder::Bitmap => bitmap::write(self.indices, self.len, writer),
            IndexCoder::Rice => {
                writer.varint(self.planes.section_bytes() as u64);
                rice::write(self.indices, self.planes, writer.reserve(self.planes.section_bytes()));
            }
        }
    }
}

impl IndexCoder {
    /// Measures the section for `indices`, ascending and inside `span`.
    fn plan<'i>(self, indices: &'i [u32], span: Span<'_>) -> Plan<'i> {
        debug_assert!(span.is_inside(), "units lie inside the layout");
        let len = span.len;
        let mut planes = rice::Planes::default();
        let bytes = match self {
            Self::Raw => raw::section_bytes(indices.len(), len).unwrap_or(usize::MAX),
            Self::Bitmap => bitmap::section_bytes(len),
            Self::Rice => {
                planes = rice::Planes::measure(indices);
                let bytes = planes.section_bytes();
                bytes.saturating_add(varint_len(bytes as u64))
            }
        };
        Plan { coder: self, indices, len, planes, bytes }
    }

    /// Takes the bytes of the section of `k` positions below `len` off the reader, undecoded.
    pub(crate) fn section<'a>(
        self,
        k: usize,
        len: usize,
        reader: &mut Reader<'a>,
    ) -> Result<&'a [u8], DecodeError> {
        let bytes = match self {
            Self::Raw => raw::section_bytes(k, len).ok_or(DecodeError::InvalidField(Field::Entries))?,
            Self::Bitmap => bitmap::section_bytes(len),
            Self::Rice => reader.varint_usize()?,
        };
        // An entry takes a bit at the least, so that memory for `k` positions is backed by bytes that are there.
        if self == Self::Rice && k.div_ceil(8) > bytes {
            return Err(DecodeError::Truncated { needed: k.div_ceil(8), actual: bytes });
        }
        reader.take(bytes)
    }

    /// Decodes a section into `indices`, one word an entry; the result ascends and stays inside `span`.
    pub(crate) fn read(self, section: &[u8], span: Span<'_>, indices: &mut [u32]) -> Result<(), DecodeError> {
        debug_assert!(span.is_inside(), "units lie inside the layout");
        let len = span.len;
        match self {
            Self::Raw => raw::read(section, len, indices),
            Self::Bitmap => bitmap::read(section, len, indices),
            Self::Rice => rice::read(section, len, indices),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::layout::LayoutRef;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn round_trip(coder: IndexCoder, indices: &[u32], len: usize) {
        let layout = LayoutRef::flat(len);
        let span = Span { layout: &layout, start: 0, len };
        let plan = coder.plan(indices, span);
        let mut out = vec![0xa5; plan.bytes()];
        let mut writer = Writer::new(&mut out);
        plan.write(&mut writer);
        assert_eq!(writer.len(), out.len());
        let mut reader = Reader::new(&out);
        let section = coder.section(indices.len(), len, &mut reader).unwrap();
        reader.finish().unwrap();
        let mut decoded = vec![0; indices.len()];
        coder.read(section, span, &mut decoded).unwrap();
        assert_eq!(decoded, indices, "{coder:?}");
    }

    const ALL: [IndexCoder; 3] = [IndexCoder::Raw, IndexCoder::Bitmap, IndexCoder::Rice];

    #[test]
    fn every_subset_of_small_units_round_trips() {
        for len in 1..=9usize {
            for mask in 1..1u32 << len {
                let indices: Vec<u32> = (0..len as u32).filter(|i| mask >> i & 1 == 1).collect();
                ALL.iter().for_each(|&coder| round_trip(coder, &indices, len));
            }
        }
    }

    #[test]
    fn the_largest_positions_round_trip() {
        for len in [1 << 16, (1 << 16) + 1, u32::MAX as usize] {
            let last = (len - 1) as u32;
            for coder in [IndexCoder::Raw, IndexCoder::Rice] {
                round_trip(coder, &[last], len);
                round_trip(coder, &[0, last], len);
                round_trip(coder, &[0, 1, last - 1, last], len);
            }
        }
    }

    proptest! {
        #[test]
        fn random_subsets_round_trip(
            gaps in proptest::collection::vec(prop_oneof![0u32..4, 0u32..300, 0u32..100_000], 1..700),
            slack in 0u32..1000,
        ) {
            let indices: Vec<u32> = gaps.iter().scan(0u32, |next, gap| {
                let index = *next + gap;
                *next = index + 1;
                Some(index)
            }).collect();
            let len = (indices.last().unwrap() + 1 + slack) as usize;
            ALL.iter().for_each(|&coder| round_trip(coder, &indices, len));
            let bound = IndexChoice::Rice.max_section_bytes(indices.len(), len).unwrap();
            let layout = LayoutRef::flat(len);
            let span = Span { layout: &layout, start: 0, len };
            prop_assert!(IndexCoder::Rice.plan(&indices, span).bytes() <= bound);
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), k in 1usize..300, len in 1usize..2000) {
            let layout = LayoutRef::flat(len);
            let span = Span { layout: &layout, start: 0, len };
            for coder in ALL {
                let mut reader = Reader::new(&bytes);
                let mut decoded = vec![0; k.min(len)];
                let Ok(section) = coder.section(decoded.len(), len, &mut reader) else { continue };
                if coder.read(section, span, &mut decoded).is_ok() {
                    prop_assert!(decoded.windows(2).all(|pair| pair[0] < pair[1]));
                    prop_assert!((*decoded.last().unwrap() as usize) < len);
                }
            }
        }
    }
}
