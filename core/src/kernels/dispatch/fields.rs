//! Levels of few bits, packed.

use crate::bits::load_padded;
use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::fields as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::fields as x86_64;

compile_for_each_isa! {
    /// Two fields of four bits a byte, the first in the low half: level, and sign in the highest bit of each.
    pub(crate) fn pack_nibbles(isa, fields: &[[u8; 2]], out: &mut [u8]) = scalar::pack_nibbles;
}

compile_for_each_isa! {
    /// acc[2·i], acc[2·i + 1] += weight · (sign · scale · level) for the two fields of byte i.
    pub(crate) fn add_nibbles(isa, packed: &[u8], scale: f32, weight: f32, acc: &mut [[f32; 2]]) = scalar::add_nibbles;
}

compile_for_each_isa! {
    /// acc[i] += weight · (sign · scale · level) for fields of eight bits.
    pub(crate) fn add_bytes(isa, fields: &[u8], scale: f32, weight: f32, acc: &mut [f32]) = scalar::add_bytes;
}

/// Packs fields of one byte each into `bits` bits each, 2 to 8: the level, and the sign in the highest bit.
/// The first field fills the lowest bits of the first byte. Unused bits of the last byte are 0.
///
/// # Panics
/// When `out` is not as long as that takes.
pub(crate) fn pack_fields(isa: Isa, bits: u32, fields: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), (fields.len() * bits as usize).div_ceil(8), "fields and bytes differ in length");
    match bits {
        8 => out.copy_from_slice(fields),
        4 => {
            let (pairs, single) = fields.as_chunks();
            let (whole, rest) = out.split_at_mut(pairs.len());
            pack_nibbles(isa, pairs, whole);
            pack_tail(bits, single, rest);
        }
        _ => {
            let (eights, few) = fields.as_chunks();
            let (whole, rest) = out.split_at_mut(eights.len() * bits as usize);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx2 => x86_64::pack_eights(bits, eights, whole),
                _ => {
                    for (fields, out) in eights.iter().zip(whole.chunks_exact_mut(bits as usize)) {
                        out.copy_from_slice(
                            &scalar::pack_eight(*fields, bits).to_le_bytes()[..bits as usize],
                        );
                    }
                }
            }
            pack_tail(bits, few, rest);
        }
    }
}

/// Packs fewer than eight fields.
fn pack_tail(bits: u32, fields: &[u8], out: &mut [u8]) {
    let mut eight = [0; 8];
    eight[..fields.len()].copy_from_slice(fields);
    out.copy_from_slice(&scalar::pack_eight(eight, bits).to_le_bytes()[..out.len()]);
}

/// Reverses [`pack_fields`]: fills `fields` from `bytes`, beginning with the first bit. Bytes past the end
/// read as zero.
pub(crate) fn unpack_fields(isa: Isa, bits: u32, bytes: &[u8], fields: &mut [u8]) {
    if bits == 8 {
        return fields.copy_from_slice(&bytes[..fields.len()]);
    }
    let (eights, few) = fields.as_chunks_mut();
    let done = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::unpack_eights(bits, bytes, eights),
        _ => 0,
    };
    let word = |i: usize| load_padded(bytes, i * bits as usize);
    for (i, fields) in eights.iter_mut().enumerate().skip(done) {
        *fields = scalar::unpack_eight(word(i), bits);
    }
    let last = scalar::unpack_eight(word(eights.len()), bits);
    few.copy_from_slice(&last[..few.len()]);
}

compile_for_each_isa! {
    /// Packs fields of level 0 or 1, five a byte, as digits of base 3; the last byte may hold fewer.
    pub(crate) fn pack_ternary(isa, fields: &[u8], out: &mut [u8]) = scalar::pack_ternary;
}

compile_for_each_isa! {
    /// Reverses [`pack_ternary`]: fills `fields` from `bytes`, beginning with the first digit.
    pub(crate) fn unpack_ternary(isa, bytes: &[u8], fields: &mut [u8]) = scalar::unpack_ternary;
}
