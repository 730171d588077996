//! A run of symbols in rANS as it stands in a frame: its length, one frequency table, and blocks of streams.
//!
//! `varint` bytes of the section; the table, padded to a byte; for each block of 2¹⁸ symbols but the last a varint with
//! the bytes of its stream; the streams. Blocks keep states apart, so that threads can code them on their own.

use super::rans::{self, Decoder, Table};
use crate::bits::{BitReader, BitWriter};
use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa};
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};

/// Symbols of a block.
const BLOCK: usize = 1 << 18;

/// Words of scratch memory that decoding a section needs: the slot table.
pub(crate) const SLOT_WORDS: usize = rans::SLOTS;

/// Bytes above its limit that writing a section may use: lengths are written with room to spare and then moved together.
pub(crate) const SLACK: usize = 2 * MAX_VARINT_BYTES;

/// Symbols decoded at a time.
const CHUNK: usize = 256;

/// Largest section, its length included, for `n` symbols out of `alphabet`.
///
/// A present symbol has at least one of the 4096 slots, so none costs more than 12 bits, and a table entry takes no
/// more than 25 bits; every block flushes up to 32 states of four bytes.
pub(crate) fn max_section_bytes(n: usize, alphabet: usize) -> Option<usize> {
    let blocks = n.div_ceil(BLOCK);
    let streams =
        n.div_ceil(2).checked_mul(3)?.checked_add(blocks.checked_mul(128 + 2 + MAX_VARINT_BYTES)?)?;
    streams.checked_add(alphabet * 4 + 2 * MAX_VARINT_BYTES)
}

/// Writes the section if it takes fewer than `limit` bytes, its length included; else writes nothing and returns
/// false. The spare part of the writer's buffer must hold [`max_section_bytes`] or `limit` + [`SLACK`] bytes.
pub(crate) fn write_symbols(symbols: &[u8], alphabet: usize, limit: usize, writer: &mut Writer<'_>) -> bool {
    let mut counts = [0; rans::MAX_ALPHABET];
    kernels::histogram(Isa::best(), symbols, &mut counts[..alphabet]);
    let table = Table::from_counts(&counts[..alphabet]);
    if cannot_stay_below(limit, &table, &counts[..alphabet]) {
        return false;
    }
    let spare = writer.spare();
    let room = spare.len().min(limit.saturating_add(SLACK));
    let (_, section) = spare[..room].split_at_mut(MAX_VARINT_BYTES);
    let Some(bytes) = encode_section(symbols, alphabet, &table, section) else { return false };
    let length = varint_len(bytes as u64);
    if length + bytes >= limit {
        return false;
    }
    spare.copy_within(MAX_VARINT_BYTES..MAX_VARINT_BYTES + bytes, length);
    writer.varint(bytes as u64);
    writer.advance(bytes);
    true
}

/// Whether the ideal cost alone, which a stream meets to within 0.1 %, is so far above the limit that encoding would be
/// in vain.
fn cannot_stay_below(limit: usize, table: &Table, counts: &[u32]) -> bool {
    let limit_bits = (limit as u64).saturating_mul(8);
    table.cost_bits(counts) + table.table_bits(counts.len()) > limit_bits.saturating_add(limit_bits / 64)
}

/// Table and streams to the front of `out`; `None` if they do not fit.
fn encode_section(symbols: &[u8], alphabet: usize, table: &Table, out: &mut [u8]) -> Option<usize> {
    let mut bits = BitWriter::new(out);
    table.write(&mut bits, alphabet);
    let mut end = bits.finish()?;
    let isa = Isa::best();
    let mut blocks = symbols.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        let is_last = blocks.peek().is_none();
        let start = if is_last { end } else { end + MAX_VARINT_BYTES };
        let bytes =
            rans::encode(isa, block, table, rans::lanes_log2_for(block.len()), out.get_mut(start..)?)?;
        if !is_last {
            let mut length = Writer::new(&mut out[end..]);
            length.varint(bytes as u64);
            end += length.len();
        }
        out.copy_within(start..start + bytes, end);
        end += bytes;
    }
    Some(end)
}

/// A section as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedSymbols<'a> {
    n: usize,
    section: &'a [u8],
}

impl<'a> CodedSymbols<'a> {
    /// Takes the section of `n` symbols off the reader.
    pub(crate) fn fields(n: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = reader.varint_usize()?;
        Ok(Self { n, section: reader.take(bytes)? })
    }

    /// Bytes of the section without its length.
    pub(crate) fn section_bytes(&self) -> usize {
        self.section.len()
    }

    /// Reads the table into `slots`; checks that it is valid, that every stream has the length of its states at least,
    /// and that nothing is left over. After that any bits decode to symbols of the alphabet.
    pub(crate) fn check(&self, alphabet: usize, slots: &mut [u32]) -> Result<(), DecodeError> {
        let mut bits = BitReader::new(self.section);
        let invalid = DecodeError::InvalidField(Field::Table);
        let table = Table::read(&mut bits, alphabet).filter(|_| !bits.overran()).ok_or(invalid)?;
        let padding = bits.take((bits.position().next_multiple_of(8) - bits.position()) as u32);
        if padding != 0 {
            return Err(DecodeError::TrailingBytes);
        }
        let slots = slots.first_chunk_mut().ok_or(invalid)?;
        table.fill_lookup(slots);
        let mut streams = self.streams(alphabet)?;
        for n in block_lens(self.n) {
            let stream = streams.next(n)?;
            let states = 4usize << rans::lanes_log2_for(n);
            if stream.len() < states {
                return Err(DecodeError::Truncated { needed: states, actual: stream.len() });
            }
        }
        streams.reader.finish()
    }

    /// The bytes behind the table.
    fn streams(&self, alphabet: usize) -> Result<Streams<'a>, DecodeError> {
        let mut bits = BitReader::new(self.section);
        Table::read(&mut bits, alphabet).ok_or(DecodeError::InvalidField(Field::Table))?;
        let mut reader = Reader::new(self.section);
        reader.take(bits.position().div_ceil(8) as usize)?;
        Ok(Streams { reader, left: self.n })
    }

    /// Calls `f` with each symbol in order. `slots` is what [`check`](Self::check) filled, for the same alphabet.
    #[inline]
    pub(crate) fn for_each(&self, alphabet: usize, slots: &[u32], mut f: impl FnMut(u8)) {
        self.for_each_chunk(alphabet, slots, |symbols| symbols.iter().for_each(|&symbol| f(symbol)));
    }

    /// Calls `f` with the symbols in order, a few at a time.
    #[inline]
    pub(crate) fn for_each_chunk(&self, alphabet: usize, slots: &[u32], mut f: impl FnMut(&[u8])) {
        let (Some(slots), Ok(mut streams)) = (slots.first_chunk(), self.streams(alphabet)) else { return };
        let mut chunk = [0; CHUNK];
        for n in block_lens(self.n) {
            let Ok(stream) = streams.next(n) else { return };
            let mut decoder = Decoder::new(Isa::best(), stream, slots, rans::lanes_log2_for(n));
            for first in (0..n).step_by(CHUNK) {
                let symbols = &mut chunk[..CHUNK.min(n - first)];
                decoder.decode_into(symbols);
                f(symbols);
            }
        }
    }
}

/// Symbols of each block.
fn block_lens(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(BLOCK).map(move |first| BLOCK.min(n - first))
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
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    fn round_trip(symbols: &[u8], alphabet: usize) -> usize {
        let mut out = vec![0xa5; max_section_bytes(symbols.len(), alphabet).unwrap()];
        let mut writer = Writer::new(&mut out);
        assert!(write_symbols(symbols, alphabet, usize::MAX, &mut writer));
        let written = writer.len();
        let mut reader = Reader::new(&out[..written]);
        let coded = CodedSymbols::fields(symbols.len(), &mut reader).unwrap();
        reader.finish().unwrap();
        let mut slots = vec![0; SLOT_WORDS];
        coded.check(alphabet, &mut slots).unwrap();
        let mut decoded = Vec::new();
        coded.for_each(alphabet, &slots, |symbol| decoded.push(symbol));
        assert_eq!(decoded, symbols);
        written
    }

    fn skewed(n: usize, alphabet: u32) -> Vec<u8> {
        let mut state = 1u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        (0..n).map(|_| (draw() % alphabet).min(draw() % alphabet) as u8).collect()
    }

    #[test]
    fn runs_of_any_length_round_trip() {
        for n in [0, 1, 2, 31, 33, 511, 512, 5000, 16_384, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 700] {
            for alphabet in [3, 15, 255, 256] {
                round_trip(&skewed(n, alphabet as u32), alphabet);
            }
        }
    }

    #[test]
    fn one_repeated_symbol_costs_next_to_nothing() {
        assert!(round_trip(&[2; 100_000], 15) < 150);
    }

    #[test]
    fn a_section_not_below_the_limit_is_not_written() {
        let symbols = skewed(2000, 15);
        let mut out = vec![0; 4000];
        let mut writer = Writer::new(&mut out);
        assert!(write_symbols(&symbols, 15, usize::MAX, &mut writer));
        let exact = writer.len();
        for (limit, fits) in [(exact + 1, true), (exact, false), (20, false)] {
            let mut out = vec![0; limit + SLACK];
            let mut writer = Writer::new(&mut out);
            assert_eq!(write_symbols(&symbols, 15, limit, &mut writer), fits);
            assert_eq!(writer.len(), if fits { exact } else { 0 });
        }
    }

    #[test]
    fn truncated_and_longer_sections_are_refused() {
        let symbols = skewed(2000, 15);
        let mut out = vec![0; 4000];
        let mut writer = Writer::new(&mut out);
        write_symbols(&symbols, 15, usize::MAX, &mut writer);
        let mut slots = vec![0; SLOT_WORDS];
        let written = writer.len();
        let section = &out[2..written];
        assert!(CodedSymbols { n: 2000, section: &section[..20] }.check(15, &mut slots).is_err());
        assert!(CodedSymbols { n: 2000, section: &[] }.check(15, &mut slots).is_err());
        assert!(CodedSymbols { n: 0, section }.check(15, &mut slots).is_err());
    }
}
