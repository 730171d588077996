//! From values to the body of a levels unit.

use super::{EntropyChoice, LevelBits, Norm, Qsgd};
use crate::bits::BitWriter;
use crate::entropy::{elias, section};
use crate::kernels::scalar::FIELD_SIGN;
use crate::kernels::{self, Bucket};
use crate::memory::Memory;
use crate::rng::Stream;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// 2¹¹¹: the Euclidean norm of 2³² values below it stays below 2¹²⁷.
pub(super) const L2_BOUND: f32 = f32::from_bits((127 + 111) << 23);
/// 2¹²⁶: the largest level times the scale stays below 2¹²⁷.
pub(super) const MAX_BOUND: f32 = f32::from_bits((127 + 126) << 23);
/// 2⁻¹⁰⁰: below it levels / norm could overflow. Such a bucket is sent as zeros.
const LEAST_NORM: f32 = f32::from_bits((127 - 100) << 23);

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
    norms.checked_add(levels)?.checked_add(1 + 2 * MAX_VARINT_BYTES)
}

/// Bits of the longest code, its sign included.
fn max_elias_bits(levels: u32) -> u32 {
    elias::len(levels + 1) + 1
}

/// One body while it is written.
pub(super) struct Body<'b> {
    pub(super) qsgd: &'b Qsgd,
    /// Bits of the values.
    pub(super) p: &'b [u32],
    /// Draws of stochastic rounding; none for nearest.
    pub(super) stream: Option<Stream>,
    /// One field a coordinate: level, and sign in bit 7.
    pub(super) fields: &'b mut [u8],
    /// Room for one symbol a coordinate.
    pub(super) symbols: &'b mut [u8],
}

impl Body<'_> {
    pub(super) fn write(mut self, memory: Option<&mut Memory<'_>>, writer: &mut Writer<'_>) {
        let form_at = writer.len();
        writer.u8(form(self.qsgd, PACKING_FIXED));
        writer.varint(u64::from(self.qsgd.bucket.get()));
        let coded = self.quantize(memory, writer);
        let packing = self.pack(coded, writer);
        writer.patch(form_at, form(self.qsgd, packing));
    }

    /// Writes the norms, fills the fields, commits the memory, and gathers the symbols of all buckets whose norm is
    /// not zero; returns how many.
    fn quantize(&mut self, memory: Option<&mut Memory<'_>>, writer: &mut Writer<'_>) -> usize {
        let size = self.qsgd.bucket.get() as usize;
        let levels = self.qsgd.bits.levels();
        let mut residual = memory.map(|memory| memory.residual_mut());
        let (mut first, mut coded) = (0, 0);
        for (p, fields) in self.p.chunks(size).zip(self.fields.chunks_mut(size)) {
            let norm = bucket_norm(self.qsgd.norm, p);
            writer.bytes(&norm.to_le_bytes());
            let scale = norm / levels as f32;
            let bucket = Bucket { first: first as u64, inverse: levels as f32 / norm, scale, levels };
            if norm == 0.0 {
                fields.fill(0);
            } else {
                kernels::quantize(p, &bucket, self.stream.as_ref(), fields);
                symbols_of(fields, &mut self.symbols[coded..]);
                coded += fields.len();
            }
            if let Some(residual) = &mut residual {
                commit(p, fields, scale, &mut residual[first..first + p.len()]);
            }
            first += p.len();
        }
        coded
    }

    /// Writes the levels in the packing asked for, or the smaller one; returns which.
    fn pack(&self, coded: usize, writer: &mut Writer<'_>) -> u8 {
        let symbols = &self.symbols[..coded];
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
                write_fixed(self.fields, u32::from(bits), writer.reserve(fixed));
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
fn bucket_norm(norm: Norm, p: &[u32]) -> f32 {
    let norm = match norm {
        Norm::L2 => libm::sqrt(kernels::sum_of_squares(p)) as f32,
        Norm::Max => f32::from_bits(kernels::max_magnitude(p)),
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

/// residual = p − sign · scale · level.
fn commit(p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) {
    for ((residual, &bits), &field) in residual.iter_mut().zip(p).zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        let decoded = if field & FIELD_SIGN != 0 { -magnitude } else { magnitude };
        *residual = f32::from_bits(bits) - decoded;
    }
}

/// Fields of equal width: the level, and the sign in the highest bit.
fn write_fixed(fields: &[u8], bits: u32, out: &mut [u8]) {
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
        out.put(sign, u32::from(level > 0));
    }
    let complete = out.finish().is_some();
    debug_assert!(complete, "the codes were measured before they were written");
}
