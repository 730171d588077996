//! From values to the body of a levels unit.

use super::{EntropyChoice, LevelBits, Norm, Qsgd};
use crate::bits::BitWriter;
use crate::entropy::{elias, section};
use crate::error::EncodeError;
use crate::gather::{EncodeUnit, UnitInput};
use crate::kernels::scalar::FIELD_SIGN;
use crate::kernels::{self, Bucket, Isa};
use crate::rng::Stream;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// 2¹¹¹: the Euclidean norm of 2³² values below it stays below 2¹²⁷.
pub(super) const L2_BOUND: f32 = f32::from_bits((127 + 111) << 23);
/// 2¹²⁶: the largest level times the scale stays below 2¹²⁷.
pub(super) const MAX_BOUND: f32 = f32::from_bits((127 + 126) << 23);
/// 2⁻¹⁰⁰: below it levels / norm could overflow. Such a bucket is sent as zeros.
pub(crate) const LEAST_NORM: f32 = f32::from_bits((127 - 100) << 23);

/// Packings as the `form` byte numbers them.
pub(super) const PACKING_FIXED: u8 = 0;
pub(super) const PACKING_ELIAS: u8 = 1;
pub(super) const PACKING_RANS: u8 = 2;
pub(super) const PACKING_TERNARY: u8 = 3;

/// Coordinates of one byte of ternary levels: 3⁵ = 243 ≤ 256.
pub(super) const TERNARY_PER_BYTE: usize = 5;

/// `bits` in the low nibble, `norm` in bits 4 and 5, `packing` in bits 6 and 7.
fn form(qsgd: &Qsgd, packing: u8) -> u8 {
    qsgd.bits.field_bits() as u8 | (qsgd.norm as u8) << 4 | packing << 6
}

fn fixed_bytes(bits: LevelBits, len: usize) -> Option<usize> {
    match bits {
        LevelBits::Bits(bits) => Some(len.checked_mul(usize::from(bits))?.div_ceil(8)),
        LevelBits::Ternary => Some(len.div_ceil(TERNARY_PER_BYTE)),
    }
}

pub(super) fn max_body_bytes(qsgd: &Qsgd, len: usize) -> Option<usize> {
    let norms = len.div_ceil(qsgd.bucket.get() as usize).checked_mul(4)?;
    let levels = match qsgd.entropy {
        EntropyChoice::Fixed | EntropyChoice::Auto => fixed_bytes(qsgd.bits, len)?,
        EntropyChoice::Elias => len.checked_mul(max_elias_bits(qsgd.bits.levels()) as usize)?.div_ceil(8),
        EntropyChoice::Rans => section::max_section_bytes(len, 2 * qsgd.bits.levels() as usize + 1)?,
    };
    // The form, the bucket size, and the length of the levels.
    norms.checked_add(levels)?.checked_add(1 + 3 * MAX_VARINT_BYTES)
}

/// Bits of the longest code, its sign included.
fn max_elias_bits(levels: u32) -> u32 {
    elias::len(levels + 1) + 1
}

/// One body while it is written.
pub(super) struct Body<'b> {
    pub(super) qsgd: &'b Qsgd,
    pub(super) isa: Isa,
    /// Draws of stochastic rounding; none for nearest.
    pub(super) stream: Option<Stream>,
    /// One field a coordinate: level, and sign in bit 7.
    pub(super) fields: &'b mut [u8],
    /// Room for one symbol a coordinate.
    pub(super) symbols: &'b mut [u8],
    /// Symbols so far: those of all buckets whose norm is not zero.
    pub(super) coded: usize,
}

impl Body<'_> {
    /// Writes norms and levels. `words` has one element a coordinate.
    pub(super) fn write(
        mut self,
        input: UnitInput<'_, '_>,
        words: &mut [u32],
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let form_at = writer.len();
        writer.u8(form(self.qsgd, PACKING_FIXED));
        writer.varint(u64::from(self.qsgd.bucket.get()));
        let size = self.qsgd.bucket.get() as usize;
        let norms = writer.reserve(self.fields.len().div_ceil(size) * 4).as_chunks_mut().0;
        if input.memory.is_some() {
            self.quantize_with_memory(input, words, norms)?;
        } else {
            self.quantize_alone(&input, words, norms)?;
        }
        let packing = self.pack(writer);
        writer.patch(form_at, form(self.qsgd, packing));
        Ok(())
    }

    /// Bucket by bucket, while it is in the cache.
    fn quantize_alone(
        &mut self,
        input: &UnitInput<'_, '_>,
        words: &mut [u32],
        norms: &mut [[u8; 4]],
    ) -> Result<(), EncodeError> {
        let size = self.qsgd.bucket.get() as usize;
        let source = input.source(self.qsgd.overflow_bound());
        for (i, norm) in norms.iter_mut().enumerate() {
            let first = i * size;
            let p = source.bits(self.isa, first, &mut words[..size.min(source.len() - first)])?;
            self.quantize_bucket(first, p, norm);
        }
        Ok(())
    }

    /// The whole unit is looked at first, because an error must leave the memory as it was.
    fn quantize_with_memory(
        &mut self,
        input: UnitInput<'_, '_>,
        words: &mut [u32],
        norms: &mut [[u8; 4]],
    ) -> Result<(), EncodeError> {
        let size = self.qsgd.bucket.get() as usize;
        input.source(self.qsgd.overflow_bound()).fold(self.isa, 0, words)?;
        let mut residual = input.memory.map(|memory| memory.residual_mut());
        for (i, (p, norm)) in words.chunks(size).zip(norms).enumerate() {
            let range = i * size..i * size + p.len();
            let scale = self.quantize_bucket(range.start, p, norm);
            if let Some(residual) = &mut residual {
                let fields = &self.fields[range.clone()];
                kernels::keep_rounding(self.isa, p, fields, scale, &mut residual[range]);
            }
        }
        Ok(())
    }

    /// Writes the norm of one bucket, fills its fields, and gathers its symbols; returns the value of level 1.
    fn quantize_bucket(&mut self, first: usize, p: &[u32], out: &mut [u8; 4]) -> f32 {
        let levels = self.qsgd.bits.levels();
        let norm = bucket_norm(self.isa, self.qsgd.norm, p);
        *out = norm.to_le_bytes();
        let fields = &mut self.fields[first..first + p.len()];
        let scale = norm / levels as f32;
        if norm == 0.0 {
            fields.fill(0);
            return scale;
        }
        let bucket = Bucket { first: first as u64, inverse: levels as f32 / norm, scale, levels };
        kernels::quantize(self.isa, p, &bucket, self.stream.as_ref(), fields);
        if self.qsgd.entropy != EntropyChoice::Fixed {
            symbols_of(fields, &mut self.symbols[self.coded..]);
            self.coded += fields.len();
        }
        scale
    }

    /// Writes the levels in the packing asked for, or the smaller one; returns which.
    fn pack(&self, writer: &mut Writer<'_>) -> u8 {
        let symbols = &self.symbols[..self.coded];
        let alphabet = 2 * self.qsgd.bits.levels() as usize + 1;
        let fixed = fixed_bytes(self.qsgd.bits, self.fields.len()).unwrap_or(usize::MAX);
        match self.qsgd.entropy {
            EntropyChoice::Elias => {
                write_elias(symbols, writer);
                return PACKING_ELIAS;
            }
            EntropyChoice::Rans if section::write_symbols(symbols, alphabet, usize::MAX, writer) => {
                return PACKING_RANS;
            }
            EntropyChoice::Auto if section::write_symbols(symbols, alphabet, fixed, writer) => {
                return PACKING_RANS;
            }
            _ => {}
        }
        match self.qsgd.bits {
            LevelBits::Bits(bits) => {
                write_fixed(self.isa, self.fields, u32::from(bits), writer.reserve(fixed));
                PACKING_FIXED
            }
            LevelBits::Ternary => {
                write_ternary(self.fields, writer.reserve(fixed));
                PACKING_TERNARY
            }
        }
    }
}

/// The norm as the wire carries it: f32, zero when too small to divide by.
fn bucket_norm(isa: Isa, norm: Norm, p: &[u32]) -> f32 {
    let norm = match norm {
        Norm::L2 => libm::sqrt(kernels::sum_of_squares(isa, p)) as f32,
        Norm::Max => f32::from_bits(kernels::max_magnitude(isa, p)),
    };
    if norm < LEAST_NORM { 0.0 } else { norm }
}

/// Symbols in order of likelihood: 0, +1, −1, +2, −2, …
fn symbols_of(fields: &[u8], symbols: &mut [u8]) {
    for (symbol, &field) in symbols.iter_mut().zip(fields) {
        let level = field & !FIELD_SIGN;
        let is_negative = field & FIELD_SIGN != 0;
        *symbol = (2 * level).saturating_sub(u8::from(!is_negative));
    }
}

/// Fields of equal width: the level, and the sign in the highest bit.
fn write_fixed(isa: Isa, fields: &[u8], bits: u32, out: &mut [u8]) {
    // Eight bits are the fields as they are.
    if bits == 8 {
        return out.copy_from_slice(fields);
    }
    // Two fields a byte have a loop of their own; a single one may be left.
    let (pairs, fields, out) = match fields.as_chunks::<2>() {
        (pairs, rest) if bits == 4 => (pairs, rest, out),
        _ => (&[][..], fields, out),
    };
    let (nibbles, out) = out.split_at_mut(pairs.len());
    kernels::pack_nibbles(isa, pairs, nibbles);
    let mut writer = BitWriter::new(out);
    for &field in fields {
        let sign = u64::from(field >> 7) << (bits - 1);
        writer.put(u64::from(field & !FIELD_SIGN) | sign, bits);
    }
    let complete = writer.finish().is_some();
    debug_assert!(complete, "fields of fixed width have a known size");
}

/// Five base-3 digits a byte, the first coordinate lowest: 0, 1 for +1, 2 for −1.
fn write_ternary(fields: &[u8], out: &mut [u8]) {
    for (byte, fields) in out.iter_mut().zip(fields.chunks(TERNARY_PER_BYTE)) {
        let digit = |&field: &u8| (field & 1) << (field >> 7);
        *byte = fields.iter().rev().fold(0, |sum, field| sum * 3 + digit(field));
    }
}

/// Elias omega of level + 1, then a sign bit where the level is not 0; the length in bytes stands in front.
fn write_elias(symbols: &[u8], writer: &mut Writer<'_>) {
    let split = |&symbol: &u8| (u32::from(symbol).div_ceil(2), u64::from(symbol & 1 == 0));
    let bits: u64 = symbols
        .iter()
        .map(split)
        .map(|(level, _)| u64::from(elias::len(level + 1)) + u64::from(level > 0))
        .sum();
    let bytes = bits.div_ceil(8);
    writer.varint(bytes);
    let mut out = BitWriter::new(writer.reserve(bytes as usize));
    for (level, sign) in symbols.iter().map(split) {
        elias::put(&mut out, level + 1);
        out.put(sign & u64::from(level > 0), u32::from(level > 0));
    }
    let complete = out.finish().is_some();
    debug_assert!(complete, "the codes were measured before they were written");
}
