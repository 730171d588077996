//! Writing a section, if it is small enough.

use super::classes::{ClassRoom, SEGMENT, most_classes};
use super::shape::Shape;
use crate::bits::BitWriter;
use crate::coding::entropy::rans::{self, Encoder, Entries, Table};
use crate::kernels::{self, Isa};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};

/// Symbols of the smallest block that this writer makes.
const LEAST_BLOCK: usize = 1 << 18;

/// Bytes above its limit that writing a section may use: lengths are written with room to spare and then
/// moved together.
pub(crate) const SLACK: usize = 2 * MAX_VARINT_BYTES;

/// Largest section with one table, its length included, for `n` symbols out of `alphabet`.
///
/// A present symbol has at least one of the 4096 slots, so none costs more than 12 bits. A table entry takes
/// at most 25 bits. Every block flushes up to 32 states of four bytes.
pub(crate) fn max_section_bytes(n: usize, alphabet: usize) -> Option<usize> {
    let blocks = n.div_ceil(LEAST_BLOCK);
    let streams =
        n.div_ceil(2).checked_mul(3)?.checked_add(blocks.checked_mul(128 + 2 + MAX_VARINT_BYTES)?)?;
    streams.checked_add(alphabet * 4 + 1 + 2 * MAX_VARINT_BYTES)
}

/// Largest section with as many classes as `n` symbols may have, its length included.
pub(crate) fn max_classed_section_bytes(n: usize, alphabet: usize) -> Option<usize> {
    let more = (most_classes(n) - 1) * alphabet * 4 + 1;
    let differences = max_section_bytes(n.div_ceil(SEGMENT), most_classes(n))?;
    max_section_bytes(n, alphabet)?.checked_add(more)?.checked_add(differences)
}

/// Largest section of a single symbol, its length included: a shape, a table of up to 37 bits, and one state.
pub(crate) const MAX_SINGLE_BYTES: usize = 1 + 1 + 5 + 4;

/// Writes the section with one table if it takes fewer than `limit` bytes, its length included; otherwise
/// writes nothing and returns false. The spare part of the writer's buffer must hold [`max_section_bytes`] or
/// `limit` + [`SLACK`] bytes.
pub(crate) fn write_symbols(symbols: &[u8], alphabet: usize, limit: usize, writer: &mut Writer<'_>) -> bool {
    let mut counts = [0; rans::MAX_ALPHABET];
    let counts = &mut counts[..alphabet];
    kernels::histogram(Isa::best(), symbols, counts);
    let table = Table::from_counts(counts);
    let bits = table.cost_bits(counts);
    if cannot_stay_below(limit, bits + table.table_bits(alphabet)) {
        return false;
    }
    let shape = Shape::best(symbols.len(), bits);
    write(limit, writer, |out| {
        *out.first_mut()? = shape.byte();
        let end = 1 + write_tables(core::iter::once(&table), alphabet, out.get_mut(1..)?)?;
        let mut entries = [[0; 2]; rans::MAX_ALPHABET];
        rans::fill_entries(&mut entries, &table);
        write_streams(symbols, shape, usize::MAX, |_| &entries, end, out)
    })
}

/// Bits of symbols and table in a section with one table, without its shape and states.
pub(crate) fn ideal_bits(symbols: &[u8], alphabet: usize) -> u64 {
    let mut counts = [0; rans::MAX_ALPHABET];
    let counts = &mut counts[..alphabet];
    kernels::histogram(Isa::best(), symbols, counts);
    ideal_bits_of(counts)
}

/// The same for symbols that occur as often as `counts` says, one count for each of the alphabet.
pub(crate) fn ideal_bits_of(counts: &[u32]) -> u64 {
    let table = Table::from_counts(counts);
    table.cost_bits(counts) + table.table_bits(counts.len())
}

/// As [`write_symbols`], with classes where those cost less. The spare part of the writer's buffer must hold
/// [`max_classed_section_bytes`] or `limit` + [`SLACK`] bytes.
pub(crate) fn write_classed_symbols(
    symbols: &[u8],
    alphabet: usize,
    room: ClassRoom<'_>,
    limit: usize,
    writer: &mut Writer<'_>,
) -> bool {
    let Some(mut chosen) = room.choose(Isa::best(), symbols, alphabet) else {
        return write_symbols(symbols, alphabet, limit, writer);
    };
    let bits = chosen.cost_bits();
    if cannot_stay_below(limit, bits) {
        return false;
    }
    let shape = Shape::best(symbols.len(), bits).with_classes();
    write(limit, writer, |out| {
        let mut head = Writer::new(out);
        head.u8(shape.byte());
        head.u8(chosen.byte());
        let fits = chosen.with_differences(|differences, classes| {
            write_symbols(differences, classes, usize::MAX, &mut head)
        });
        let start = fits.then_some(head.len())?;
        let end = start + write_tables(chosen.tables(), alphabet, out.get_mut(start..)?)?;
        let (entries, classes) = chosen.entries();
        let entries_of = |segment: usize| &entries[usize::from(classes[segment])];
        write_streams(symbols, shape, SEGMENT, entries_of, end, out)
    })
}

/// Whether the ideal cost alone, which a stream meets to within 0.1 %, is so far above the limit that
/// encoding is pointless.
fn cannot_stay_below(limit: usize, bits: u64) -> bool {
    let limit_bits = (limit as u64).saturating_mul(8);
    bits > limit_bits.saturating_add(limit_bits / 64)
}

/// Writes the section that `section` makes of a buffer, with its length in front, if that is below `limit`
/// bytes.
fn write(limit: usize, writer: &mut Writer<'_>, section: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
    let spare = writer.spare();
    let room = spare.len().min(limit.saturating_add(SLACK));
    let Some(bytes) = spare[..room].get_mut(MAX_VARINT_BYTES..).and_then(section) else { return false };
    let length = varint_len(bytes as u64);
    if length + bytes >= limit {
        return false;
    }
    spare.copy_within(MAX_VARINT_BYTES..MAX_VARINT_BYTES + bytes, length);
    writer.varint(bytes as u64);
    writer.advance(bytes);
    true
}

/// Writes tables as one bit string; returns its bytes, or `None` if they do not fit.
fn write_tables<T: core::borrow::Borrow<Table>>(
    tables: impl Iterator<Item = T>,
    alphabet: usize,
    out: &mut [u8],
) -> Option<usize> {
    let mut bits = BitWriter::new(out);
    tables.for_each(|table| table.borrow().write(&mut bits, alphabet));
    bits.finish()
}

/// Writes the streams after the first `end` bytes of `out`. Returns the bytes then used, or `None` if they do
/// not fit. Segments have `segment` symbols each.
fn write_streams<'e>(
    symbols: &[u8],
    shape: Shape,
    segment: usize,
    entries_of: impl Fn(usize) -> &'e Entries,
    mut end: usize,
    out: &mut [u8],
) -> Option<usize> {
    let isa = Isa::best();
    let mut first = 0;
    for block in symbols.chunks(shape.block()) {
        let is_last = first + block.len() == symbols.len();
        let start = if is_last { end } else { end + MAX_VARINT_BYTES };
        let mut encoder = Encoder::new(isa, block.len(), shape.lanes_log2, out.get_mut(start..)?);
        for (i, part) in block.chunks(segment).enumerate().rev() {
            encoder.prepend(part, entries_of(first / segment + i))?;
        }
        let bytes = encoder.finish()?;
        if !is_last {
            let mut length = Writer::new(&mut out[end..]);
            length.varint(bytes as u64);
            end += length.len();
        }
        out.copy_within(start..start + bytes, end);
        end += bytes;
        first += block.len();
    }
    Some(end)
}
