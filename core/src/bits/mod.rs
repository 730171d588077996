//! Fields of n bits in a byte buffer; knows nothing of gradients.
//!
//! One order everywhere: bits fill a byte from its least significant bit up, bytes follow in order. A field's
//! own least significant bit comes first, so a field of 8 bits at a byte boundary is that byte, and one of 32
//! bits is a little-endian `u32`.

mod reader;
mod writer;

use crate::error::DecodeError;
pub(crate) use reader::BitReader;
pub(crate) use writer::BitWriter;

/// Widest field that one call writes or reads, in bits: 64 less the 7 that may precede it in its first byte,
/// rounded down to whole bytes.
pub(crate) const MAX_FIELD_BITS: u32 = 56;

/// The eight bytes of `bytes` that begin at `at`, as a little-endian number; bytes past the end read as zero.
#[inline]
pub(crate) fn load_padded(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => load_tail(rest),
    }
}

/// [`load_padded`] where fewer than eight bytes remain.
#[cold]
fn load_tail(rest: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// The bits behind the first `used` ones, fewer than eight, must be zero.
pub(crate) fn check_padding(bytes: &[u8], used: u64) -> Result<(), DecodeError> {
    let padding = (bytes.len() as u64 * 8).saturating_sub(used) as u32;
    match bytes.last() {
        Some(&last) if padding > 0 && last >> (8 - padding) != 0 => Err(DecodeError::TrailingBytes),
        _ => Ok(()),
    }
}
