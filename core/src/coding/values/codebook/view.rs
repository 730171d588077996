//! The section of a codebook as received.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

use super::prefix::{self, PrefixView};
use super::{
    MAX_LOG2, MAX_MAGNITUDES, PACKING_CHANGES, PACKING_FIXED, PACKING_PREFIX, PACKING_RANS, fixed_bytes,
};
use crate::bits::{BitReader, check_padding};
use crate::built::Full;
use crate::coding::entropy::section::CodedSymbols;
use crate::coding::values::check_magnitude;
use crate::error::{DecodeError, Field};
use crate::wire::reader::Reader;
use crate::wire::writer::varint_len;
use half::bf16;

/// The section as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodebookView<'a> {
    k: usize,
    log2: u32,
    magnitudes: &'a [u8],
    symbols: Symbols<'a>,
    full: Full,
}

#[derive(Clone, Copy, Debug)]
enum Symbols<'a> {
    Fixed(&'a [u8]),
    Coded(CodedSymbols<'a>),
    Changes(CodedSymbols<'a>),
    Prefix(PrefixView<'a>),
}

impl<'a> CodebookView<'a> {
    pub(in crate::coding::values) fn fields(
        full: Full,
        k: usize,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let book = reader.u8()?;
        let log2 = u32::from(book & 0x0f);
        if log2 > MAX_LOG2 {
            return Err(DecodeError::InvalidField(Field::Codebook));
        }
        let magnitudes = reader.take(2 << log2)?;
        let symbols = match book >> 4 {
            PACKING_FIXED => {
                let bytes = fixed_bytes(log2, k).ok_or(DecodeError::InvalidField(Field::Entries))?;
                Symbols::Fixed(reader.take(bytes)?)
            }
            PACKING_RANS => Symbols::Coded(CodedSymbols::fields(k, reader)?),
            PACKING_CHANGES => Symbols::Changes(CodedSymbols::fields(k, reader)?),
            PACKING_PREFIX if (1..=prefix::MAX_LOG2).contains(&log2) => {
                let bytes = reader.varint_usize()?;
                Symbols::Prefix(PrefixView { k, log2, section: reader.take(bytes)? })
            }
            _ => return Err(DecodeError::InvalidField(Field::Packing)),
        };
        Ok(Self { k, log2, magnitudes, symbols, full })
    }

    pub(in crate::coding::values) fn full(&self) -> Full {
        self.full
    }

    pub(in crate::coding::values) fn is_entropy_coded(&self) -> bool {
        matches!(self.symbols, Symbols::Coded(_) | Symbols::Changes(_))
    }

    pub(in crate::coding::values) fn section_bytes(&self) -> usize {
        let symbols = match self.symbols {
            Symbols::Fixed(bytes) => bytes.len(),
            Symbols::Coded(coded) | Symbols::Changes(coded) => {
                coded.section_bytes() + varint_len(coded.section_bytes() as u64)
            }
            Symbols::Prefix(prefix) => prefix.section.len() + varint_len(prefix.section.len() as u64),
        };
        1 + self.magnitudes.len() + symbols
    }

    fn magnitudes(&self) -> impl Iterator<Item = f32> + 'a {
        self.magnitudes.as_chunks::<2>().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32())
    }

    pub(in crate::coding::values) fn check(
        &self,
        max_magnitude: f32,
        slots: &mut [u32],
    ) -> Result<(), DecodeError> {
        let mut below = 0.0;
        for magnitude in self.magnitudes() {
            check_magnitude(magnitude, max_magnitude)?;
            if magnitude <= 0.0 || magnitude < below {
                return Err(DecodeError::InvalidField(Field::Codebook));
            }
            below = magnitude;
        }
        match self.symbols {
            Symbols::Fixed(bytes) => check_padding(bytes, self.k as u64 * u64::from(self.log2 + 1)),
            Symbols::Coded(coded) | Symbols::Changes(coded) => coded.check(2 << self.log2, slots),
            Symbols::Prefix(prefix) => prefix.check(),
        }
    }

    #[inline]
    pub(in crate::coding::values) fn for_each(&self, slots: &[u32], mut f: impl FnMut(f32)) {
        let mut decoded = [0.0; 2 * MAX_MAGNITUDES];
        for (pair, magnitude) in decoded.as_chunks_mut::<2>().0.iter_mut().zip(self.magnitudes()) {
            *pair = [magnitude, -magnitude];
        }
        match self.symbols {
            Symbols::Fixed(bytes) => {
                let mut bits = BitReader::new(bytes);
                (0..self.k).for_each(|_| f(decoded[bits.take(self.log2 + 1) as usize]));
            }
            Symbols::Coded(coded) => {
                coded.for_each(2 << self.log2, slots, |symbol| f(decoded[usize::from(symbol)]));
            }
            Symbols::Changes(coded) => {
                let mut sign = 0;
                coded.for_each(2 << self.log2, slots, |symbol| {
                    sign ^= symbol & 1;
                    f(decoded[usize::from(symbol & !1 | sign)]);
                });
            }
            Symbols::Prefix(prefix) => prefix.for_each(|symbol| f(decoded[usize::from(symbol)])),
        }
    }
}
