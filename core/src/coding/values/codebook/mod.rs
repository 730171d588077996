//! A sign and one of a few magnitudes, fitted to the values of the unit.
//!
//! The section is `book` (one byte: log2 of the number of magnitudes in the low nibble, `packing` in the high
//! one), the magnitudes as bfloat16, ascending, and one symbol an entry: magnitude number · 2 + sign.

mod fit;
mod prefix;
mod unbiased;
mod view;

use super::entries::{Entries, difference_is_exact};
use crate::bits::BitWriter;
use crate::built::Full;
use crate::coding::entropy::section::{ideal_bits, write_symbols};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};
use fit::{Cells, Histogram};
use half::bf16;
use prefix::Code;

pub(crate) use fit::FIT_WORDS;
pub(crate) use unbiased::COVERED_BOUND;
pub(super) use unbiased::prepare_unbiased;
pub(crate) use view::CodebookView;

const MAX_LOG2: u32 = 7;
const MAX_MAGNITUDES: usize = 1 << MAX_LOG2;

/// Symbols in fields of fixed width.
const PACKING_FIXED: u8 = 0;
/// Symbols in rANS.
const PACKING_RANS: u8 = 1;
/// Signs, and magnitudes in prefix codes.
const PACKING_PREFIX: u8 = 2;
/// Symbols in rANS, with a change of sign in the place of the sign.
const PACKING_CHANGES: u8 = 3;

/// The fitted magnitudes: the first `1 << log2` of `magnitudes`, ascending.
#[derive(Clone, Debug)]
pub(super) struct Codebook {
    magnitudes: [f32; MAX_MAGNITUDES],
    log2: u32,
    full: Full,
}

/// Bytes of symbols in fields of fixed width.
fn fixed_bytes(log2: u32, k: usize) -> Option<usize> {
    Some(k.checked_mul(log2 as usize + 1)?.div_ceil(8))
}

pub(super) fn max_section_bytes(log2: u32, k: usize) -> Option<usize> {
    // Other packings are used only if they are smaller, but rANS is tried in the buffer.
    fixed_bytes(log2, k)?.checked_add((2 << log2) + 1 + 2 * MAX_VARINT_BYTES)
}

/// Bytes of a section with a single entry: the book, one magnitude, and a sign.
pub(super) const ENTRY_BYTES: usize = 1 + 2 + 1;

/// The requested number of magnitudes, rounded up to a power of two, as its exponent.
fn log2_for(magnitudes: usize) -> u32 {
    usize::BITS - magnitudes.saturating_sub(1).leading_zeros()
}

pub(super) fn prepare(full: Full, max_log2: u32, entries: &mut Entries<'_>) -> (usize, Codebook) {
    let k = entries.values.len();
    let mut histogram = Histogram::new(entries.values, entries.fit);
    // The codebook is never larger than the values need.
    let book = histogram.fit(full, log2_for(k).min(max_log2));
    let cells = Cells::new(&book, &histogram);
    let mut kept = 0;
    for i in 0..k {
        let value = f32::from_bits(entries.values[i]);
        let magnitude = value.abs();
        let nearest = cells.of(histogram.bin(magnitude.to_bits()), magnitude.to_bits());
        if let Some((symbol, decoded)) = book.symbol(value, nearest) {
            entries.indices[kept] = entries.indices[i];
            entries.values[kept] = entries.values[i];
            entries.decoded[kept] = decoded.to_bits();
            entries.symbols[kept] = symbol;
            kept += 1;
        }
    }
    (kept, book)
}

/// Halves first, so that two large magnitudes do not overflow.
fn midpoint(a: f32, b: f32) -> f32 {
    a * 0.5 + b * 0.5
}

/// How often each magnitude occurs.
fn magnitude_counts(symbols: &[u8]) -> [u32; MAX_MAGNITUDES] {
    let mut counts = [0; MAX_MAGNITUDES];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol / 2) % MAX_MAGNITUDES] += 1);
    counts
}

/// A codebook without the magnitudes that a part of the entries does not use, and how the numbers of the two
/// books correspond.
struct Reduced {
    book: Codebook,
    /// For each number in the whole book, the number in the reduced one.
    to: [u8; MAX_MAGNITUDES],
    /// For each number in the reduced book, the number in the whole one.
    from: [u8; MAX_MAGNITUDES],
}

fn renumber(symbols: &mut [u8], numbers: &[u8; MAX_MAGNITUDES]) {
    for symbol in symbols {
        *symbol = (2 * numbers[usize::from(*symbol / 2) % MAX_MAGNITUDES]) | *symbol & 1;
    }
}

/// Replaces each sign by whether it differs from the one before; the sign before the first is positive.
fn to_changes(symbols: &mut [u8]) {
    let mut before = 0;
    for symbol in symbols {
        let sign = *symbol & 1;
        *symbol ^= before;
        before = sign;
    }
}

/// Reverses [`to_changes`].
fn from_changes(symbols: &mut [u8]) {
    let mut sign = 0;
    for symbol in symbols {
        *symbol ^= sign;
        sign = *symbol & 1;
    }
}

/// Writes the symbols in rANS if that takes fewer than `limit` bytes, and returns the packing. With
/// `packs_values`, the packing codes signs or changes of sign, whichever costs fewer bits, and signs if both
/// cost the same.
fn write_rans(
    symbols: &mut [u8],
    alphabet: usize,
    packs_values: bool,
    limit: usize,
    writer: &mut Writer<'_>,
) -> Option<u8> {
    if packs_values {
        let bits = ideal_bits(symbols, alphabet);
        to_changes(symbols);
        let is_less = ideal_bits(symbols, alphabet) < bits;
        let is_written = is_less && write_symbols(symbols, alphabet, limit, writer);
        from_changes(symbols);
        if is_less {
            return is_written.then_some(PACKING_CHANGES);
        }
    }
    write_symbols(symbols, alphabet, limit, writer).then_some(PACKING_RANS)
}

impl Codebook {
    fn magnitudes(&self) -> &[f32] {
        &self.magnitudes[..1 << self.log2]
    }

    /// The symbol of `value` and its decoded value. It uses the magnitude with this number, the nearest one;
    /// if the error there is not exact, it uses the next smaller magnitude at which it is. A magnitude is
    /// never above twice the value, so no error is larger than the value itself.
    #[inline]
    fn symbol(&self, value: f32, nearest: usize) -> Option<(u8, f32)> {
        let magnitudes = self.magnitudes();
        let target = value.abs();
        let is_kept =
            |&i: &usize| magnitudes[i] <= 2.0 * target && difference_is_exact(target, magnitudes[i]);
        let exact = (0..=nearest).rev().find(is_kept)?;
        let sign = value.is_sign_negative();
        let decoded = if sign { -magnitudes[exact] } else { magnitudes[exact] };
        Some((exact as u8 * 2 + u8::from(sign), decoded))
    }

    /// The book of the magnitudes in use, filled up with the last, if half of the magnitudes or fewer are in
    /// use.
    fn reduced(&self, counts: &[u32; MAX_MAGNITUDES]) -> Option<Reduced> {
        let used = counts.iter().filter(|count| **count > 0).count();
        let log2 = log2_for(used);
        if log2 >= self.log2 {
            return None;
        }
        let (mut to, mut from) = ([0; MAX_MAGNITUDES], [0; MAX_MAGNITUDES]);
        let mut magnitudes = [0.0; MAX_MAGNITUDES];
        let in_use = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        for (number, (i, _)) in in_use.enumerate() {
            to[i] = number as u8;
            from[number] = i as u8;
            magnitudes[number..].fill(self.magnitudes[i]);
        }
        Some(Reduced { book: Self { magnitudes, log2, full: self.full }, to, from })
    }

    /// Writes the section if it takes no more than `room` bytes: the magnitudes, then the symbols in the
    /// smallest packing. Leaves out unused magnitudes if that makes the book smaller. Signs are coded as
    /// changes only with `packs_values`.
    pub(super) fn write(
        &self,
        symbols: &mut [u8],
        packs_values: bool,
        room: usize,
        writer: &mut Writer<'_>,
    ) -> bool {
        let counts = magnitude_counts(symbols);
        let Some(reduced) = self.reduced(&counts) else {
            return self.write_all(symbols, &counts, packs_values, room, writer);
        };
        renumber(symbols, &reduced.to);
        let fits = reduced.book.write_all(symbols, &magnitude_counts(symbols), packs_values, room, writer);
        renumber(symbols, &reduced.from);
        fits
    }

    fn write_all(
        &self,
        symbols: &mut [u8],
        counts: &[u32; MAX_MAGNITUDES],
        packs_values: bool,
        room: usize,
        writer: &mut Writer<'_>,
    ) -> bool {
        let Some(room) = room.checked_sub(1 + (2 << self.log2)) else { return false };
        let book = writer.len();
        writer.u8(self.log2 as u8);
        for &magnitude in self.magnitudes() {
            writer.bytes(&bf16::from_f32(magnitude).to_le_bytes());
        }
        let counts = &counts[..1 << self.log2];
        let Some(packing) = self.write_symbols(symbols, counts, packs_values, room, writer) else {
            return false;
        };
        writer.patch(book, self.log2 as u8 | packing << 4);
        true
    }

    /// Writes the symbols in the smallest packing, the first of equals; returns which, or `None` if none
    /// fits.
    fn write_symbols(
        &self,
        symbols: &mut [u8],
        counts: &[u32],
        packs_values: bool,
        room: usize,
        writer: &mut Writer<'_>,
    ) -> Option<u8> {
        let fixed = fixed_bytes(self.log2, symbols.len()).unwrap_or(usize::MAX);
        let code = (1..=prefix::MAX_LOG2).contains(&self.log2).then(|| Code::new(counts));
        let prefix = code.map_or(usize::MAX, |code| code.section_bytes(counts));
        let limit = fixed.min(prefix.saturating_add(1)).min(room.saturating_add(1));
        if let Some(packing) = write_rans(symbols, 2 << self.log2, packs_values, limit, writer) {
            return Some(packing);
        }
        if fixed.min(prefix) > room {
            return None;
        }
        match code {
            Some(code) if prefix < fixed => {
                code.write(symbols, counts, writer);
                Some(PACKING_PREFIX)
            }
            _ => {
                let mut bits = BitWriter::new(writer.reserve(fixed));
                symbols.iter().for_each(|&symbol| bits.put(u64::from(symbol), self.log2 + 1));
                let complete = bits.finish().is_some();
                debug_assert!(complete, "fields of fixed width have a known size");
                Some(PACKING_FIXED)
            }
        }
    }
}
