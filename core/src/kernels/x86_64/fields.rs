//! Fields of a byte each to and from fields of fewer bits, eight at a time, by the bit instructions of BMI2.

use crate::kernels::scalar::fields::field_mask;
use core::arch::x86_64::{_pdep_u64, _pext_u64};

/// Packs groups of eight fields; `out` has `bits` bytes for each. The caller has detected an
/// [`Isa`](crate::kernels::Isa) above the baseline.
///
/// # Panics
/// When `out` has another length.
pub(crate) fn pack_eights(bits: u32, eights: &[[u8; 8]], out: &mut [u8]) {
    assert_eq!(out.len(), eights.len() * bits as usize, "fields and bytes differ in length");
    // SAFETY: every `Isa` above the baseline has BMI2.
    unsafe { pack_eights_bmi2(bits, eights, out) }
}

#[target_feature(enable = "bmi2")]
fn pack_eights_bmi2(bits: u32, eights: &[[u8; 8]], out: &mut [u8]) {
    let mask = u64::from_le_bytes([field_mask(bits); 8]);
    let bytes = bits as usize;
    for (i, &fields) in eights.iter().enumerate() {
        let word = _pext_u64(u64::from_le_bytes(fields), mask).to_le_bytes();
        let rest = &mut out[i * bytes..];
        // The bytes above the word's own are zeros, which the next word overwrites.
        match rest.first_chunk_mut() {
            Some(out) => *out = word,
            None => rest[..bytes].copy_from_slice(&word[..bytes]),
        }
    }
}

/// Unpacks groups of eight fields, as long as eight bytes are left for each. Returns the number of groups.
/// The caller has detected an [`Isa`](crate::kernels::Isa) above the baseline.
pub(crate) fn unpack_eights(bits: u32, bytes: &[u8], eights: &mut [[u8; 8]]) -> usize {
    // SAFETY: every `Isa` above the baseline has BMI2.
    unsafe { unpack_eights_bmi2(bits, bytes, eights) }
}

#[target_feature(enable = "bmi2")]
fn unpack_eights_bmi2(bits: u32, bytes: &[u8], eights: &mut [[u8; 8]]) -> usize {
    let mask = u64::from_le_bytes([field_mask(bits); 8]);
    for (i, fields) in eights.iter_mut().enumerate() {
        let Some(word) = bytes.get(i * bits as usize..).and_then(<[u8]>::first_chunk) else { return i };
        *fields = _pdep_u64(u64::from_le_bytes(*word), mask).to_le_bytes();
    }
    eights.len()
}
