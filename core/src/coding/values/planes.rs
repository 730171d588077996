//! Values of a fixed format in two planes: their *heads*, sign, exponent and first digits, in rANS, and their
//! *tails* as they are. The heads of selected values are few and uneven, and neighbours often share their
//! sign; tails are noise.
//!
//! The section is `shift` and the number of heads less 1 (a byte each), the first head as a varint, a rANS
//! section of one symbol a value, and a bit string of the tails. A magnitude is head << `shift` | tail. A
//! symbol is 2 · (head − first head), plus 1 if the sign differs from that of the value before; the sign
//! before the first value is positive.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use super::{ValueFormat, check_magnitude};
use crate::bits::{BitReader, BitWriter, check_padding};
use crate::built::Full;
use crate::coding::entropy::rans::MAX_ALPHABET;
use crate::coding::entropy::section::{CodedSymbols, SLACK, ideal_bits_of, write_symbols};
use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa, scalar::MAGNITUDE};
use crate::wire::reader::Reader;
use crate::wire::writer::{Writer, varint_len};
use core::cmp::Reverse;
use half::{bf16, f16};

/// Bytes above its limit that writing a section may use.
pub(super) const TRIAL_BYTES: usize = SLACK;

/// Heads of the largest alphabet, which has two symbols a head, one for either sign.
const MAX_HEADS: u32 = 128;

/// Bits below the exponent.
fn fraction_bits(format: ValueFormat) -> u32 {
    match format {
        ValueFormat::F16Planes(_) => f16::MANTISSA_DIGITS - 1,
        ValueFormat::Bf16Planes(_) => bf16::MANTISSA_DIGITS - 1,
        _ => f32::MANTISSA_DIGITS - 1,
    }
}

/// The bits of infinity: finite magnitudes are below.
fn infinity(format: ValueFormat) -> u32 {
    match format {
        ValueFormat::F16Planes(_) => u32::from(f16::INFINITY.to_bits()),
        ValueFormat::Bf16Planes(_) => u32::from(bf16::INFINITY.to_bits()),
        _ => f32::INFINITY.to_bits(),
    }
}

/// The bits, in `format`, of the magnitude of a value given as the bits of an f32.
fn narrowed(format: ValueFormat, bits: u32) -> u32 {
    let value = f32::from_bits(bits & MAGNITUDE);
    match format {
        ValueFormat::F16Planes(_) => u32::from(f16::from_f32(value).to_bits()),
        ValueFormat::Bf16Planes(_) => u32::from(bf16::from_f32(value).to_bits()),
        _ => value.to_bits(),
    }
}

/// The value that the bits of a magnitude stand for.
fn widened(format: ValueFormat, magnitude: u32) -> f32 {
    match format {
        ValueFormat::F16Planes(_) => f16::from_bits(magnitude as u16).to_f32(),
        ValueFormat::Bf16Planes(_) => bf16::from_bits(magnitude as u16).to_f32(),
        _ => f32::from_bits(magnitude),
    }
}

/// Turns the counts of the symbols, with heads from `low` on, into the counts for heads of one bit less.
fn fold(low: u32, counts: &mut [u32; MAX_ALPHABET]) {
    let mut folded = [0; MAX_ALPHABET];
    for (head, [same, changed]) in (0..).zip(counts.as_chunks().0) {
        let to = ((low + head) >> 1) - (low >> 1);
        if let Some(sums) = folded.as_chunks_mut::<2>().0.get_mut(to as usize) {
            *sums = [sums[0] + same, sums[1] + changed];
        }
    }
    *counts = folded;
}

/// Where magnitudes are cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    format: ValueFormat,
    /// Bits of a tail.
    shift: u32,
    /// The first head.
    low: u32,
    /// Number of heads.
    heads: u32,
}

impl Cut {
    /// The cut with the fewest bits for these values, the one with the longest tails among equals; `None` if
    /// the exponents alone are too many heads. Leaves the symbols of the finest cut.
    fn best(format: ValueFormat, values: &[u32], symbols: &mut [u8]) -> Option<Self> {
        let magnitudes = values.iter().map(|bits| bits & MAGNITUDE);
        let (low, high) = magnitudes.fold((u32::MAX, 0), |(low, high), bits| (low.min(bits), high.max(bits)));
        let (low, high) = (narrowed(format, low), narrowed(format, high));
        let at = |shift| {
            let low = low >> shift;
            Self { format, shift, low, heads: (high >> shift).saturating_sub(low) + 1 }
        };
        let finest = (0..=fraction_bits(format)).map(at).find(|cut| cut.heads <= MAX_HEADS)?;
        finest.fill(values, symbols);
        let mut counts = [0; MAX_ALPHABET];
        kernels::histogram(Isa::best(), symbols, counts.get_mut(..finest.alphabet())?);
        let cuts = (finest.shift..=fraction_bits(format)).map(at);
        cuts.min_by_key(|cut| {
            if cut.shift > finest.shift {
                fold(low >> (cut.shift - 1), &mut counts);
            }
            let coded = ideal_bits_of(counts.get(..cut.alphabet()).unwrap_or(&counts));
            (coded + values.len() as u64 * u64::from(cut.shift), Reverse(cut.shift))
        })
    }

    fn alphabet(&self) -> usize {
        2 * self.heads as usize
    }

    /// Fills in the symbols of the values.
    fn fill(&self, values: &[u32], symbols: &mut [u8]) {
        let mut before = 0;
        for (symbol, &bits) in symbols.iter_mut().zip(values) {
            let head = (narrowed(self.format, bits) >> self.shift) - self.low;
            let sign = bits >> 31;
            *symbol = (head << 1 | (sign ^ before)) as u8;
            before = sign;
        }
    }

    /// Bytes of `k` tails.
    fn tail_bytes(&self, k: usize) -> Option<usize> {
        Some(k.checked_mul(self.shift as usize)?.div_ceil(8))
    }

    /// Writes the section of the values with these symbols, if that takes fewer than `limit` bytes; otherwise
    /// what it has written is unspecified.
    fn write(&self, values: &[u32], symbols: &[u8], limit: usize, writer: &mut Writer<'_>) -> bool {
        let tail_bytes = self.tail_bytes(values.len()).unwrap_or(usize::MAX);
        let others = tail_bytes.saturating_add(2 + varint_len(u64::from(self.low)));
        let Some(limit) = limit.checked_sub(others) else { return false };
        writer.u8(self.shift as u8);
        writer.u8((self.heads - 1) as u8);
        writer.varint(u64::from(self.low));
        if !write_symbols(symbols, self.alphabet(), limit, writer) {
            return false;
        }
        let mut tails = BitWriter::new(writer.reserve(tail_bytes));
        for &bits in values {
            let tail = narrowed(self.format, bits) & ((1 << self.shift) - 1);
            tails.put(u64::from(tail), self.shift);
        }
        tails.finish().is_some()
    }
}

/// Writes values, given as the bits of their decoded values, in the planes of `format`, if that takes fewer
/// than `limit` bytes; otherwise writes nothing. `symbols` is room for one a value.
pub(super) fn write(
    format: ValueFormat,
    values: &[u32],
    symbols: &mut [u8],
    limit: usize,
    writer: &mut Writer<'_>,
) -> bool {
    let Some(cut) = Cut::best(format, values, symbols) else { return false };
    cut.fill(values, symbols);
    let start = writer.len();
    let is_written = cut.write(values, symbols, limit, writer);
    if !is_written {
        writer.rewind(writer.len() - start);
    }
    is_written
}

/// The section as received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanesView<'a> {
    k: usize,
    cut: Cut,
    symbols: CodedSymbols<'a>,
    tails: &'a [u8],
    /// Bytes of the section.
    bytes: usize,
    _full: Full,
}

impl<'a> PlanesView<'a> {
    pub(super) fn fields(
        full: Full,
        format: ValueFormat,
        k: usize,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let invalid = DecodeError::InvalidField(Field::Planes);
        let start = reader.rest().len();
        let (shift, heads) = (u32::from(reader.u8()?), u32::from(reader.u8()?) + 1);
        let low = u32::try_from(reader.varint()?).map_err(|_| invalid)?;
        if shift > fraction_bits(format) || heads > MAX_HEADS {
            return Err(invalid);
        }
        // Whatever the symbols and tails are, every value is finite.
        if (u64::from(low) + u64::from(heads)) << shift > u64::from(infinity(format)) {
            return Err(invalid);
        }
        let cut = Cut { format, shift, low, heads };
        let symbols = CodedSymbols::fields(k, reader)?;
        let tail_bytes = cut.tail_bytes(k).ok_or(DecodeError::InvalidField(Field::Entries))?;
        let tails = reader.take(tail_bytes)?;
        Ok(Self { k, cut, symbols, tails, bytes: start - reader.rest().len(), _full: full })
    }

    pub(super) fn format(&self) -> ValueFormat {
        self.cut.format
    }

    pub(super) fn section_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn check(&self, max_magnitude: f32, slots: &mut [u32]) -> Result<(), DecodeError> {
        let Cut { format, shift, low, heads } = self.cut;
        self.symbols.check(self.cut.alphabet(), slots)?;
        check_padding(self.tails, self.k as u64 * u64::from(shift))?;
        let mut result = Ok(());
        if widened(format, ((low + heads) << shift) - 1) > max_magnitude {
            self.for_each(slots, |value| result = result.and(check_magnitude(value, max_magnitude)));
        }
        result
    }

    #[inline]
    pub(super) fn for_each(&self, slots: &[u32], mut f: impl FnMut(f32)) {
        let Cut { format, shift, low, .. } = self.cut;
        let mut tails = BitReader::new(self.tails);
        let mut is_negative = false;
        self.symbols.for_each(self.cut.alphabet(), slots, |symbol| {
            let head = low + u32::from(symbol >> 1);
            let magnitude = widened(format, head << shift | tails.take(shift) as u32);
            is_negative ^= symbol & 1 != 0;
            f(if is_negative { -magnitude } else { magnitude });
        });
    }
}
