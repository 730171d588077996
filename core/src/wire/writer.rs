//! The cursor that frames are written through.

use crate::built::Full;
use crate::wire::checksum::{crc32c, joined};

/// Appends fields to the caller's buffer.
///
/// The buffer was checked against the codec's bound before the first field is written, so running over it is
/// a bug in the bound. The writer then panics by slice index rather than write a broken frame.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
    /// How many bytes the checksum covers so far, and that checksum.
    summed: usize,
    sum: u32,
}

/// Bytes of the longest varint.
pub(crate) const MAX_VARINT_BYTES: usize = 10;

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0, summed: 0, sum: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the bytes written so far to the checksum, while they are in the cache. They must not change
    /// afterwards. Most small machines have no cache, so a small build computes the whole checksum at the
    /// end.
    pub(crate) fn sum_up(&mut self) {
        if Full::build().is_none() {
            return;
        }
        self.sum = crc32c(self.sum, &self.out[self.summed..self.len]);
        self.summed = self.len;
    }

    /// Records the checksum of the bytes that follow those already in the checksum.
    #[cfg(feature = "parallel")]
    pub(crate) fn summed_up(&mut self, sum: u32, bytes: usize) {
        self.sum = joined(self.sum, sum, bytes);
        self.summed += bytes;
    }

    /// The checksum of everything written, continuing that of the bytes before it.
    pub(crate) fn checksum(&self, front: u32) -> u32 {
        let rest = &self.out[self.summed..self.len];
        if self.summed == 0 || Full::build().is_none() {
            crc32c(front, rest)
        } else {
            crc32c(joined(front, self.sum, self.summed), rest)
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    /// Overwrites the byte at `position`, which is already written.
    pub(crate) fn patch(&mut self, position: usize, value: u8) {
        debug_assert!((self.summed..self.len).contains(&position));
        self.out[position] = value;
    }

    /// The bytes written so far.
    pub(crate) fn written(&self) -> &[u8] {
        &self.out[..self.len]
    }

    /// Takes back the last `len` bytes.
    pub(crate) fn rewind(&mut self, len: usize) {
        debug_assert!(len <= self.len - self.summed);
        self.len -= len;
    }

    /// The last `len` bytes written, and the part of the buffer not yet written.
    pub(crate) fn last_and_spare(&mut self, len: usize) -> (&[u8], &mut [u8]) {
        let (written, spare) = self.out.split_at_mut(self.len);
        (&written[self.len - len..], spare)
    }

    /// Replaces the last `replaced` bytes written by the first `len` bytes of [`spare`](Self::spare).
    pub(crate) fn keep_spare(&mut self, replaced: usize, len: usize) {
        self.out.copy_within(self.len..self.len + len, self.len - replaced);
        self.len = self.len - replaced + len;
    }

    /// An unsigned LEB128 integer in its shortest form.
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    /// The part of the buffer not yet written; [`advance`](Self::advance) says how much of it was filled.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        &mut self.out[self.len..]
    }

    /// Counts `len` bytes of [`spare`](Self::spare) as written.
    pub(crate) fn advance(&mut self, len: usize) {
        debug_assert!(len <= self.out.len() - self.len);
        self.len += len;
    }

    /// The next `len` bytes, counted as written, for the caller to fill.
    pub(crate) fn reserve(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        &mut self.out[start..start + len]
    }
}

/// Bytes of `value` as a varint.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
