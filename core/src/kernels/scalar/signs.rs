//! One bit a coordinate: whether it is below zero.

use crate::kernels::scalar::floats::MAGNITUDE;

/// The sign of a float, as its bit.
const SIGN: u32 = !MAGNITUDE;

/// Whether a value of these bits is below zero: −0.0 is not.
#[inline(always)]
fn is_negative(p: u32) -> bool {
    p > SIGN
}

/// Coordinates whose bits are computed together: a line of bytes, which compilers compare in vectors.
const LINE: usize = 64;

/// Moves the lowest bit of byte i to bit 56 + i. No two of these products meet in one bit, so nothing is
/// carried.
const GATHER: u64 = 0x0102_0408_1020_4080;

#[inline(always)]
pub(in crate::kernels) fn pack_signs(p: &[u32], out: &mut [u8]) {
    let (lines, few) = p.as_chunks::<LINE>();
    let mut bytes = out.chunks_mut(LINE / 8);
    for (line, out) in lines.iter().zip(&mut bytes) {
        pack_line(line, out);
    }
    let mut last = [0; LINE];
    last[..few.len()].copy_from_slice(few);
    bytes.for_each(|out| pack_line(&last, out));
}

#[inline(always)]
fn pack_line(p: &[u32; LINE], out: &mut [u8]) {
    let mut signs = [0; LINE];
    signs.iter_mut().zip(p).for_each(|(sign, &p)| *sign = u8::from(is_negative(p)));
    for (out, eight) in out.iter_mut().zip(signs.as_chunks().0) {
        *out = (u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56) as u8;
    }
}

#[inline(always)]
pub(in crate::kernels) fn keep_signs(p: &[u32], scale: f32, residual: &mut [f32]) -> u32 {
    let mut max = 0;
    for (residual, &bits) in residual.iter_mut().zip(p) {
        let decoded = f32::from_bits(scale.to_bits() | u32::from(is_negative(bits)) << 31);
        *residual = f32::from_bits(bits) - decoded;
        max = max.max(residual.to_bits() & MAGNITUDE);
    }
    max
}

/// Every bit of a word. A table, because compilers turn shifts by the position of an unrolled loop into loads
/// that are far apart.
static BITS: [u32; 32] = {
    let mut bits = [0; 32];
    let mut i = 0;
    while i < bits.len() {
        bits[i] = 1 << i;
        i += 1;
    }
    bits
};

/// Reverses [`pack_signs`], and adds. To negate a factor is to negate the product.
#[inline(always)]
pub(in crate::kernels) fn add_signs(signs: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    let product = weight * scale;
    let value = |word: u32, bit: u32| if word & bit != 0 { -product } else { product };
    let ((words, bytes), (lines, few)) = (signs.as_chunks(), acc.as_chunks_mut::<32>());
    for (acc, &word) in lines.iter_mut().zip(words) {
        let word = u32::from_le_bytes(word);
        acc.iter_mut().zip(&BITS).for_each(|(acc, &bit)| *acc += value(word, bit));
    }
    // Fewer than 32 take all of the last bytes, of which there may be four.
    let rest = words.get(lines.len()).map_or(bytes, |word| word);
    for (acc, &byte) in few.chunks_mut(8).zip(rest) {
        acc.iter_mut().zip(&BITS).for_each(|(acc, &bit)| *acc += value(u32::from(byte), bit));
    }
}
