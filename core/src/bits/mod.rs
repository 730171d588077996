//! Fields of n bits in a byte buffer. This module knows nothing of gradients.
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

/// Checks that the first `used` bits are there, that fewer than eight follow, and that these are zero.
pub(crate) fn check_padding(bytes: &[u8], used: u64) -> Result<(), DecodeError> {
    // If bits are missing, the difference wraps to a number that is too large as well.
    let zeros = bytes.last().map_or(0, |last| last.leading_zeros().min(7));
    let padding = (bytes.len() as u64 * 8).wrapping_sub(used);
    if padding <= u64::from(zeros) { Ok(()) } else { Err(DecodeError::TrailingBytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_less_than_a_byte_of_zeros() {
        for (bytes, used) in
            [(&[][..], 0), (&[0xff], 8), (&[0x7f], 7), (&[0x01], 1), (&[0xff, 0x00], 9), (&[0xff, 0x80], 16)]
        {
            assert_eq!(check_padding(bytes, used), Ok(()), "{bytes:x?} of {used} bits");
        }
        for (bytes, used) in [
            (&[0x80][..], 7),
            (&[0x02], 1),
            (&[0x00], 0),
            (&[0xff, 0x00], 8),
            (&[0, 0x40], 14),
            (&[], 1),
            (&[0x00], 9),
        ] {
            assert_eq!(
                check_padding(bytes, used),
                Err(DecodeError::TrailingBytes),
                "{bytes:x?} of {used} bits"
            );
        }
    }
}
