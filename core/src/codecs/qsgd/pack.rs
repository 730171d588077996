//! Packs levels into bytes, in the packings that use no frequencies.

use super::LevelBits;
use crate::bits::BitWriter;
use crate::built::Full;
use crate::coding::entropy::elias;
use crate::kernels::{self, Isa};
use crate::wire::writer::Writer;

/// `bits` of a body that states the number of levels in a field of its own.
pub(super) const COUNTED_BITS: u8 = 10;

/// Packings as the `form` byte numbers them.
pub(super) const PACKING_FIXED: u8 = 0;
pub(super) const PACKING_ELIAS: u8 = 1;
pub(super) const PACKING_RANS: u8 = 2;
pub(super) const PACKING_TERNARY: u8 = 3;
pub(super) const PACKING_CONTEXT: u8 = 4;

/// Coordinates of one byte of ternary levels: 3⁵ = 243 ≤ 256.
pub(super) const TERNARY_PER_BYTE: usize = 5;

/// Bytes of `len` levels that all have the same width.
pub(super) fn fixed_bytes(bits: LevelBits, len: usize) -> Option<usize> {
    match bits {
        LevelBits::Ternary => Some(len.div_ceil(TERNARY_PER_BYTE)),
        bits => Some(len.checked_mul(bits.width() as usize)?.div_ceil(8)),
    }
}

/// Packs fields of equal width, or five a byte for ternary levels.
pub(super) fn fixed(isa: Isa, bits: LevelBits, fields: &[u8], out: &mut [u8]) {
    match bits {
        // A small build has refused ternary levels.
        LevelBits::Ternary if Full::build().is_some() => kernels::pack_ternary(isa, fields, out),
        bits => kernels::pack_fields(isa, bits.width(), fields, out),
    }
}

/// The number of the packing that [`fixed`] writes.
pub(super) fn fixed_packing(bits: LevelBits) -> u8 {
    match bits {
        LevelBits::Bits(_) | LevelBits::Levels(_) => PACKING_FIXED,
        LevelBits::Ternary => PACKING_TERNARY,
    }
}

/// Bits of the longest Elias code of a level, its sign included.
pub(super) fn max_elias_bits(levels: u32) -> u32 {
    elias::len(levels + 1) + 1
}

/// Bytes that [`elias`] writes after the length.
pub(super) fn elias_bytes(symbols: &[u8]) -> usize {
    elias::symbols_bits(symbols).div_ceil(8) as usize
}

/// Elias omega of level + 1, then a sign bit if the level is not 0. The length in bytes comes first.
pub(super) fn elias(symbols: &[u8], writer: &mut Writer<'_>) {
    let bytes = elias_bytes(symbols);
    writer.varint(bytes as u64);
    let mut out = BitWriter::new(writer.reserve(bytes));
    elias::put_symbols(&mut out, symbols);
    let complete = out.finish().is_some();
    debug_assert!(complete, "the codes were measured before they were written");
}
