//! One bit a coordinate, the first coordinate in the lowest bit of the first byte.

use crate::error::{DecodeError, Field};
use crate::wire::writer::Writer;
use bitvec::{order::Lsb0, slice::BitSlice};

pub(super) fn section_bytes(len: usize) -> usize {
    len.div_ceil(8)
}

pub(super) fn write(indices: &[u32], len: usize, writer: &mut Writer<'_>) {
    let section = writer.reserve(section_bytes(len));
    section.fill(0);
    let bits = BitSlice::<u8, Lsb0>::from_slice_mut(section);
    for &index in indices {
        bits.set(index as usize, true);
    }
}

pub(super) fn read(section: &[u8], len: usize, indices: &mut [u32]) -> Result<(), DecodeError> {
    let invalid = Err(DecodeError::InvalidField(Field::Bitmap));
    let mut slots = indices.iter_mut();
    for (first, &byte) in (0..).step_by(8).zip(section) {
        let mut ones = byte;
        while ones != 0 {
            let Some(slot) = slots.next() else { return invalid };
            *slot = first + ones.trailing_zeros();
            ones &= ones - 1;
        }
    }
    let complete = slots.next().is_none();
    let in_range = indices.last().is_none_or(|&last| (last as usize) < len);
    if complete && in_range { Ok(()) } else { invalid }
}
