//! Positions as they are, each in as many bits as the largest possible one needs.

use crate::bits::{BitReader, BitWriter};
use crate::error::DecodeError;
use crate::wire::writer::Writer;

/// Bits of one position below `len`: 0 where only one position is possible.
fn width(len: usize) -> u32 {
    usize::BITS - len.saturating_sub(1).leading_zeros()
}

pub(super) fn section_bytes(k: usize, len: usize) -> Option<usize> {
    Some(k.checked_mul(width(len) as usize)?.div_ceil(8))
}

pub(super) fn write(indices: &[u32], len: usize, writer: &mut Writer<'_>) {
    let width = width(len);
    let mut bits = BitWriter::new(writer.spare());
    for &index in indices {
        bits.put(u64::from(index), width);
    }
    let written = bits.finish();
    debug_assert!(written.is_some(), "the caller reserved the exact size");
    writer.advance(written.unwrap_or(0));
}

pub(super) fn read(section: &[u8], len: usize, indices: &mut [u32]) -> Result<(), DecodeError> {
    let width = width(len);
    let mut bits = BitReader::new(section);
    let mut next = 0u64;
    for slot in &mut *indices {
        let index = bits.take(width);
        if index < next || index >= len as u64 {
            return Err(DecodeError::IndexOutOfRange);
        }
        *slot = index as u32;
        next = index + 1;
    }
    if bits.take(bits.remaining().min(8) as u32) != 0 {
        return Err(DecodeError::TrailingBytes);
    }
    Ok(())
}
