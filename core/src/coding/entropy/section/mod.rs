//! A run of symbols in rANS as a frame holds it: its length, how it is cut, its tables, and blocks of
//! streams.
//!
//! `varint` bytes of the section; the [shape](shape::Shape); classes, if it has any; a table for each class,
//! or one table, as one bit string; for each block but the last a varint with the bytes of its stream; the
//! streams.
//!
//! With classes, every segment of the symbols belongs to one of up to 16 classes, each with a table of its
//! own, so that unevenly spread symbols cost less. The differences between the classes of neighbouring
//! segments are a section themselves.

mod classes;
mod shape;
mod write;

use super::rans::{self, Decoder, Table};
use crate::bits::BitReader;
use crate::error::{DecodeError, Field};
use crate::kernels::Isa;
use crate::wire::reader::Reader;
pub(crate) use classes::ClassRoom;
use shape::Shape;
pub(crate) use write::{
    MAX_SINGLE_BYTES, SLACK, ideal_bits, ideal_bits_of, max_classed_section_bytes, max_section_bytes,
    write_classed_symbols, write_symbols,
};

/// Words of scratch memory that decoding a section with one table needs: its slots.
pub(crate) const SLOT_WORDS: usize = rans::SLOTS;

/// Symbols decoded at a time.
const CHUNK: usize = 256;

/// log2 of the symbols of the shortest segment that the `classes` byte can name: whole rounds of all lanes.
const LEAST_SEGMENT_LOG2: u32 = 5;

/// Classes that one word of scratch memory holds.
const CLASSES_PER_WORD: usize = 4;

/// A section as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedSymbols<'a> {
    n: usize,
    bytes: usize,
    classes: Option<Classes<'a>>,
    coded: Coded<'a>,
}

/// Which table codes which segment.
#[derive(Clone, Copy, Debug)]
struct Classes<'a> {
    tables: usize,
    segment_log2: u32,
    /// From the class of one segment to the next, modulo the number of classes; the class before the first is
    /// 0.
    differences: Coded<'a>,
}

impl<'a> CodedSymbols<'a> {
    /// Takes the section of `n` symbols, with one table, off the reader.
    pub(crate) fn fields(n: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let section = Self::classed_fields(n, reader)?;
        if section.classes.is_some() {
            return Err(DecodeError::InvalidField(Field::Classes));
        }
        Ok(section)
    }

    /// Takes the section of `n` symbols off the reader. [`with_len`](Self::with_len) may set another number
    /// later.
    pub(crate) fn classed_fields(n: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = reader.varint_usize()?;
        let mut reader = Reader::new(reader.take(bytes)?);
        let shape = take_shape(&mut reader)?;
        let classes = if shape.has_classes { Some(Classes::fields(&mut reader)?) } else { None };
        Ok(Self { n, bytes, classes, coded: Coded { shape, body: reader.rest() } })
    }

    /// The same for `n` symbols, no more than before.
    pub(crate) fn with_len(self, n: usize) -> Self {
        debug_assert!(n <= self.n, "{n} symbols where there was room for {}", self.n);
        Self { n, ..self }
    }

    /// Bytes of the section without its length.
    pub(crate) fn section_bytes(&self) -> usize {
        self.bytes
    }

    /// Tables of the section.
    pub(crate) fn tables(&self) -> usize {
        self.classes.map_or(1, |classes| classes.tables)
    }

    /// Words of scratch memory that decoding needs: slots, and a byte for the class of each segment.
    pub(crate) fn scratch_words(&self) -> usize {
        let segments = self.classes.map_or(0, |classes| classes.segments(self.n));
        self.tables() * SLOT_WORDS + segments.div_ceil(CLASSES_PER_WORD)
    }

    /// Reads classes and tables into `words`. Checks that they are valid, that every stream has at least the
    /// length of its states, and that nothing is left over. After that any bits decode to symbols of the
    /// alphabet.
    pub(crate) fn check(&self, alphabet: usize, words: &mut [u32]) -> Result<(), DecodeError> {
        let tables = self.tables();
        let invalid = DecodeError::InvalidField(Field::Table);
        let (slots, class_words) = words.split_at_mut_checked(tables * SLOT_WORDS).ok_or(invalid)?;
        if let Some(classes) = &self.classes {
            classes.check(self.n, slots, class_words)?;
        }
        self.coded.check(self.n, alphabet, tables, slots)
    }

    /// Calls `f` with each symbol in order. `words` is what [`check`](Self::check) filled, for the same
    /// alphabet.
    #[inline]
    pub(crate) fn for_each(&self, alphabet: usize, words: &[u32], mut f: impl FnMut(u8)) {
        self.for_each_chunk(alphabet, words, |symbols| symbols.iter().for_each(|&symbol| f(symbol)));
    }

    /// Calls `f` with the symbols in order, a few at a time.
    #[inline]
    pub(crate) fn for_each_chunk(&self, alphabet: usize, words: &[u32], f: impl FnMut(&[u8])) {
        let (slots, class_words) = words.split_at_checked(self.tables() * SLOT_WORDS).unwrap_or_default();
        let slots = slots.as_chunks().0;
        match self.classes {
            None => self.coded.for_each_chunk(self.n, alphabet, slots, usize::MAX, |_| 0, f),
            Some(classes) => {
                let class = |segment| class_at(class_words, segment);
                self.coded.for_each_chunk(self.n, alphabet, slots, 1 << classes.segment_log2, class, f);
            }
        }
    }
}

/// Class of a segment, from words that hold four each.
fn class_at(words: &[u32], segment: usize) -> usize {
    let word = words.get(segment / CLASSES_PER_WORD).copied().unwrap_or(0);
    (word >> (8 * (segment % CLASSES_PER_WORD)) & 0xff) as usize
}

impl<'a> Classes<'a> {
    /// The number of classes less one in bits 0 … 3, from 1 on; log2 of the symbols of a segment less 5 in
    /// bits 4 … 7; then the section of the differences.
    fn fields(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let byte = reader.u8()?;
        let tables = usize::from(byte & 15) + 1;
        if tables == 1 {
            return Err(DecodeError::InvalidField(Field::Classes));
        }
        let bytes = reader.varint_usize()?;
        let mut section = Reader::new(reader.take(bytes)?);
        let shape = take_shape(&mut section)?;
        if shape.has_classes {
            return Err(DecodeError::InvalidField(Field::Classes));
        }
        let segment_log2 = LEAST_SEGMENT_LOG2 + u32::from(byte >> 4);
        Ok(Self { tables, segment_log2, differences: Coded { shape, body: section.rest() } })
    }

    fn segments(&self, n: usize) -> usize {
        n.div_ceil(1 << self.segment_log2)
    }

    /// Decodes the classes of `n` symbols into `words`, with the help of slots that the tables fill later.
    fn check(&self, n: usize, slots: &mut [u32], words: &mut [u32]) -> Result<(), DecodeError> {
        let segments = self.segments(n);
        self.differences.check(segments, self.tables, 1, slots)?;
        words.fill(0);
        let (mut segment, mut class) = (0, 0);
        let store = |differences: &[u8]| {
            for &difference in differences {
                class = (class + usize::from(difference)) % self.tables;
                if let Some(word) = words.get_mut(segment / CLASSES_PER_WORD) {
                    *word |= (class as u32) << (8 * (segment % CLASSES_PER_WORD));
                }
                segment += 1;
            }
        };
        let slots = slots.as_chunks().0.get(..1).unwrap_or_default();
        self.differences.for_each_chunk(segments, self.tables, slots, usize::MAX, |_| 0, store);
        Ok(())
    }
}

fn take_shape(reader: &mut Reader<'_>) -> Result<Shape, DecodeError> {
    Shape::from_byte(reader.u8()?).ok_or(DecodeError::InvalidField(Field::Lanes))
}

/// Tables and streams.
#[derive(Clone, Copy, Debug)]
struct Coded<'a> {
    shape: Shape,
    body: &'a [u8],
}

impl<'a> Coded<'a> {
    /// Reads the tables into slots, 4096 for each; checks them and the lengths of the streams.
    fn check(&self, n: usize, alphabet: usize, tables: usize, slots: &mut [u32]) -> Result<(), DecodeError> {
        let mut bits = BitReader::new(self.body);
        let invalid = DecodeError::InvalidField(Field::Table);
        let mut slots = slots.as_chunks_mut().0.iter_mut();
        for _ in 0..tables {
            let table = Table::read(&mut bits, alphabet).ok_or(invalid)?;
            table.fill_lookup(slots.next().ok_or(invalid)?);
        }
        if bits.overran() {
            return Err(invalid);
        }
        let padding = bits.take((bits.position().next_multiple_of(8) - bits.position()) as u32);
        if padding != 0 {
            return Err(DecodeError::TrailingBytes);
        }
        let mut streams = self.streams(n, alphabet, tables)?;
        for n in self.shape.block_lens(n) {
            let (stream, needed) = (streams.next(n)?, self.shape.state_bytes());
            if stream.len() < needed {
                return Err(DecodeError::Truncated { needed, actual: stream.len() });
            }
        }
        streams.reader.finish()
    }

    /// The bytes after the tables.
    fn streams(&self, n: usize, alphabet: usize, tables: usize) -> Result<Streams<'a>, DecodeError> {
        let mut bits = BitReader::new(self.body);
        for _ in 0..tables {
            Table::read(&mut bits, alphabet).ok_or(DecodeError::InvalidField(Field::Table))?;
        }
        let mut reader = Reader::new(self.body);
        reader.take(bits.position().div_ceil(8) as usize)?;
        Ok(Streams { reader, left: n })
    }

    /// Calls `f` with the symbols in order, a few at a time. Segments have `segment` symbols each, and
    /// `class` says which of the `slots` decode one.
    #[inline(always)]
    fn for_each_chunk(
        &self,
        n: usize,
        alphabet: usize,
        slots: &[[u32; rans::SLOTS]],
        segment: usize,
        class: impl Fn(usize) -> usize,
        mut f: impl FnMut(&[u8]),
    ) {
        let Ok(mut streams) = self.streams(n, alphabet, slots.len()) else { return };
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        for block in self.shape.block_lens(n) {
            let Ok(stream) = streams.next(block) else { return };
            let mut decoder = Decoder::new(Isa::best(), stream, self.shape.lanes_log2);
            for first in (0..block).step_by(CHUNK) {
                let symbols = &mut chunk[..CHUNK.min(block - first)];
                for part in symbols.chunks_mut(segment) {
                    let Some(slots) = slots.get(class(at / segment)) else { return };
                    decoder.decode_into(slots, part);
                    at += part.len();
                }
                f(symbols);
            }
        }
    }
}

/// The streams of a section, one block at a time.
struct Streams<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Streams<'a> {
    /// The stream of the next block, of `n` symbols.
    fn next(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        self.left -= n;
        let bytes = if self.left == 0 { self.reader.rest().len() } else { self.reader.varint_usize()? };
        self.reader.take(bytes)
    }
}

#[cfg(test)]
mod tests;
