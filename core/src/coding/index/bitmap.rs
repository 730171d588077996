//! One bit a coordinate, the first coordinate in the lowest bit of the first byte.

use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa, ONES, TURN};
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
    let isa = Isa::best();
    let mut ones = [0; ONES];
    let mut next = 0u64;
    for slots in indices.chunks_mut(TURN) {
        let n = slots.len();
        if kernels::ones(isa, section, next, n, &mut ones) < n {
            return Err(DecodeError::InvalidField(Field::Bitmap));
        }
        slots.iter_mut().zip(&ones).for_each(|(slot, one)| *slot = (next as u32).wrapping_add(*one));
        next += u64::from(ones[n - 1]) + 1;
    }
    let is_complete = next <= len as u64 && kernels::ones(isa, section, next, 1, &mut ones) == 0;
    if is_complete { Ok(()) } else { Err(DecodeError::InvalidField(Field::Bitmap)) }
}
