//! A sign and one of a few magnitudes, fitted to the values of the unit.
//!
//! The section is `book` (one byte: log2 of the number of magnitudes in the low nibble, `packing` in the high one),
//! the magnitudes as bfloat16, ascending, and one symbol an entry: magnitude number · 2 + sign.

use super::{Coded, Entries, check_magnitude, difference_is_exact, write_symbols};
use crate::bits::{BitReader, BitWriter};
use crate::built::Full;
use crate::error::{DecodeError, Field};
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};
use half::bf16;

const MAX_LOG2: u32 = 7;
const MAX_MAGNITUDES: usize = 1 << MAX_LOG2;

/// Refinements of the fit; the squared error moves by less than 1 % after these.
const LLOYD_ROUNDS: u32 = 12;

/// Symbols in fields of fixed width.
const PACKING_FIXED: u8 = 0;
/// Symbols in rANS.
const PACKING_RANS: u8 = 1;

/// The fitted magnitudes: the first `1 << log2` of `magnitudes`, ascending.
#[derive(Debug)]
pub(super) struct Codebook {
    magnitudes: [f32; MAX_MAGNITUDES],
    log2: u32,
    _full: Full,
}

/// Bytes of symbols in fields of fixed width.
fn fixed_bytes(log2: u32, k: usize) -> Option<usize> {
    Some(k.checked_mul(log2 as usize + 1)?.div_ceil(8))
}

pub(super) fn max_section_bytes(log2: u32, k: usize) -> Option<usize> {
    // rANS is taken only where it is smaller, but is tried in the buffer.
    fixed_bytes(log2, k)?.checked_add((2 << log2) + 1 + 2 * MAX_VARINT_BYTES)
}

/// The codebook is never larger than the values need: with k entries at most k magnitudes, rounded up to a power of
/// two.
fn book_log2(max_log2: u32, k: usize) -> u32 {
    (usize::BITS - k.saturating_sub(1).leading_zeros()).min(max_log2)
}

pub(super) fn prepare(full: Full, max_log2: u32, entries: &mut Entries<'_>) -> (usize, Codebook) {
    let k = entries.values.len();
    let log2 = book_log2(max_log2, k);
    for (sorted, &bits) in entries.decoded.iter_mut().zip(entries.values.iter()) {
        *sorted = bits & MAGNITUDE_MASK;
    }
    entries.decoded.sort_unstable();
    let book = Codebook::fit(full, log2, entries.decoded);
    let mut kept = 0;
    for i in 0..k {
        let value = f32::from_bits(entries.values[i]);
        if let Some((symbol, decoded)) = book.symbol(value) {
            entries.indices[kept] = entries.indices[i];
            entries.values[kept] = entries.values[i];
            entries.decoded[kept] = decoded.to_bits();
            entries.symbols[kept] = symbol;
            kept += 1;
        }
    }
    (kept, book)
}

const MAGNITUDE_MASK: u32 = 0x7fff_ffff;

impl Codebook {
    /// Lloyd's iteration from magnitudes spaced evenly in the logarithm, on magnitudes sorted in ascending order.
    ///
    /// # Determinism
    /// Sums are f64, in ascending order; centroids are rounded to bfloat16 at the end.
    ///
    /// # Source
    /// Lloyd, Least squares quantization in PCM (IEEE Transactions on Information Theory 28, 1982), method I.
    fn fit(full: Full, log2: u32, sorted: &[u32]) -> Self {
        let mut book = Self { magnitudes: [0.0; MAX_MAGNITUDES], log2, _full: full };
        let (Some(&low), Some(&high)) = (sorted.first(), sorted.last()) else { return book };
        book.start(low, high);
        for _ in 0..LLOYD_ROUNDS {
            book.refine(sorted);
        }
        book.settle(f32::from_bits(low));
        book
    }

    fn magnitudes(&self) -> &[f32] {
        &self.magnitudes[..1 << self.log2]
    }

    /// Spaces the magnitudes evenly between `low` and `high` as integers: float bits are a piecewise linear
    /// logarithm, the same on every platform.
    fn start(&mut self, low: u32, high: u32) {
        let count = 1u64 << self.log2;
        for (i, magnitude) in self.magnitudes[..1 << self.log2].iter_mut().enumerate() {
            let offset = u64::from(high - low) * (2 * i as u64 + 1) / (2 * count);
            *magnitude = f32::from_bits(low + offset as u32);
        }
    }

    /// Moves every magnitude to the mean of the values nearest to it; one that has none stays.
    fn refine(&mut self, sorted: &[u32]) {
        let count = 1usize << self.log2;
        let mut rest = sorted;
        for i in 0..count {
            let upper = if i + 1 < count {
                midpoint(self.magnitudes[i], self.magnitudes[i + 1])
            } else {
                f32::INFINITY
            };
            let cell_len = rest.partition_point(|&bits| f32::from_bits(bits) < upper);
            let (cell, above) = rest.split_at(cell_len);
            if !cell.is_empty() {
                let sum: f64 = cell.iter().map(|&bits| f64::from(f32::from_bits(bits))).sum();
                self.magnitudes[i] = (sum / cell.len() as f64) as f32;
            }
            rest = above;
        }
    }

    /// Rounds to what the wire carries, keeps the order, and keeps the smallest magnitude within twice the smallest
    /// value, so that every value has a magnitude at which its error is exact.
    fn settle(&mut self, low: f32) {
        let mut floor = bf16::from_bits(1);
        for (i, magnitude) in self.magnitudes[..1 << self.log2].iter_mut().enumerate() {
            let bounded = if i == 0 { magnitude.min(2.0 * low) } else { *magnitude };
            let mut rounded = bf16::from_f32(bounded);
            if !rounded.is_finite() {
                rounded = bf16::MAX;
            }
            floor = if rounded > floor { rounded } else { floor };
            *magnitude = floor.to_f32();
        }
    }

    /// The symbol of `value` and what it decodes to: the nearest magnitude (the larger one of two equally near) or,
    /// where the error at that one is not exact, the next smaller at which it is.
    fn symbol(&self, value: f32) -> Option<(u8, f32)> {
        let magnitudes = self.magnitudes();
        let target = value.abs();
        let above = magnitudes.partition_point(|&magnitude| magnitude <= target);
        let nearest = match (above.checked_sub(1).map(|i| magnitudes[i]), magnitudes.get(above)) {
            (Some(below), Some(&next)) if target < midpoint(below, next) => above - 1,
            (Some(_), None) => above - 1,
            _ => above,
        };
        let exact = (0..=nearest).rev().find(|&i| difference_is_exact(target, magnitudes[i]))?;
        let sign = value.is_sign_negative();
        let decoded = if sign { -magnitudes[exact] } else { magnitudes[exact] };
        Some((exact as u8 * 2 + u8::from(sign), decoded))
    }

    /// Writes the section: magnitudes, then symbols in the smaller of fixed fields and rANS.
    pub(super) fn write(&self, symbols: &[u8], writer: &mut Writer<'_>) {
        let book = writer.len();
        writer.u8(self.log2 as u8 | PACKING_FIXED << 4);
        for &magnitude in self.magnitudes() {
            writer.bytes(&bf16::from_f32(magnitude).to_le_bytes());
        }
        let fixed = fixed_bytes(self.log2, symbols.len()).unwrap_or(usize::MAX);
        let coded = write_symbols(symbols, 2 << self.log2, fixed, writer);
        if coded {
            writer.patch(book, self.log2 as u8 | PACKING_RANS << 4);
        } else {
            let mut bits = BitWriter::new(writer.reserve(fixed));
            symbols.iter().for_each(|&symbol| bits.put(u64::from(symbol), self.log2 + 1));
            let complete = bits.finish().is_some();
            debug_assert!(complete, "fields of fixed width have a known size");
        }
    }
}

/// Halves first, so that two large magnitudes do not overflow.
fn midpoint(a: f32, b: f32) -> f32 {
    a * 0.5 + b * 0.5
}

/// The section as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodebookView<'a> {
    k: usize,
    log2: u32,
    magnitudes: &'a [u8],
    symbols: Symbols<'a>,
    _full: Full,
}

#[derive(Clone, Copy, Debug)]
enum Symbols<'a> {
    Fixed(&'a [u8]),
    Coded(Coded<'a>),
}

impl<'a> CodebookView<'a> {
    pub(super) fn fields(k: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let full = Full::required()?;
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
            PACKING_RANS => Symbols::Coded(Coded::fields(k, reader)?),
            _ => return Err(DecodeError::InvalidField(Field::Packing)),
        };
        Ok(Self { k, log2, magnitudes, symbols, _full: full })
    }

    pub(super) fn is_entropy_coded(&self) -> bool {
        matches!(self.symbols, Symbols::Coded(_))
    }

    pub(super) fn section_bytes(&self) -> usize {
        let symbols = match self.symbols {
            Symbols::Fixed(bytes) => bytes.len(),
            Symbols::Coded(coded) => coded.section_bytes() + varint_len(coded.section_bytes() as u64),
        };
        1 + self.magnitudes.len() + symbols
    }

    fn magnitudes(&self) -> impl Iterator<Item = f32> + 'a {
        self.magnitudes.as_chunks::<2>().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32())
    }

    pub(super) fn check(&self, max_magnitude: f32, slots: &mut [u32]) -> Result<(), DecodeError> {
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
            Symbols::Coded(coded) => coded.check(2 << self.log2, slots),
        }
    }

    #[inline]
    pub(super) fn for_each(&self, slots: &[u32], mut f: impl FnMut(f32)) {
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
        }
    }
}

/// The bits behind the first `used` ones must be zero.
pub(crate) fn check_padding(bytes: &[u8], used: u64) -> Result<(), DecodeError> {
    let padding = (bytes.len() as u64 * 8).saturating_sub(used) as u32;
    match bytes.last() {
        Some(&last) if padding > 0 && last >> (8 - padding) != 0 => Err(DecodeError::TrailingBytes),
        _ => Ok(()),
    }
}
