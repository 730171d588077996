//! Positions in chunks of equal length: the number of entries in each, then Rice codes of the gaps, whose
//! parameter follows from what remains of the chunk.

use crate::bits::{BitReader, BitWriter, check_padding};
use crate::error::{DecodeError, Field};
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};
use core::ops::RangeInclusive;

/// Lengths that a chunk can have, as powers of two, and the one that is used if no other suits.
const CHUNKS_LOG2: RangeInclusive<u32> = 6..=16;
const USUAL_CHUNK_LOG2: u32 = 12;

/// Bits that the number of entries of a chunk can take: the longest chunk may be full.
const MAX_WIDTH: u32 = 17;

/// A section above this many bytes is never written.
///
/// A gap of g, where the chunk has room for at most m, takes g / 2^r < 2·(left + 1)·g / m bits and r + 1
/// more. The sum of g / m over a chunk of 2^c coordinates is at most 1 + ln 2^c < c, so that k entries of a
/// chunk take fewer than 2·(k + 1)·c + k·(c + 1) ≤ (5·c + 1)·k bits.
pub(super) fn max_section_bytes(k: usize, len: usize) -> Option<usize> {
    let gaps = k.checked_mul(5 * *CHUNKS_LOG2.end() as usize + 1)?;
    let numbers = (len >> USUAL_CHUNK_LOG2).checked_mul(MAX_WIDTH as usize)?;
    Some(gaps.checked_add(numbers)? / 8 + MAX_VARINT_BYTES + 3)
}

/// The length of a chunk, the least number of entries of a chunk, the bits of the field that says how many
/// more a chunk has, and all bits after these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    chunk_log2: u32,
    least: usize,
    width: u32,
    bits: u64,
}

impl Shape {
    /// For ascending positions below `len`.
    pub(super) fn measure(indices: &[u32], len: usize) -> Self {
        let even = CHUNKS_LOG2.clone().find(|&log2| is_even(indices, len, log2));
        let chunk_log2 = even.unwrap_or(USUAL_CHUNK_LOG2);
        let (mut least, mut most) = (usize::MAX, 0);
        for_each_chunk(indices, len, chunk_log2, |entries, _, end| {
            if end < len {
                least = least.min(entries.len());
                most = most.max(entries.len());
            }
        });
        let least = least.min(most);
        let width = usize::BITS - (most - least).leading_zeros();
        let mut bits = 0;
        for_each_chunk(indices, len, chunk_log2, |entries, start, end| {
            bits += if end < len { u64::from(width) } else { 0 };
            for_each_gap(entries, start, end, |r, gap| bits += (gap >> r) + 1 + u64::from(r));
        });
        Self { chunk_log2, least, width, bits }
    }

    /// Bytes of the section, its length left out.
    pub(super) fn section_bytes(&self) -> usize {
        let stream = usize::try_from(self.bits.div_ceil(8)).unwrap_or(usize::MAX);
        stream.saturating_add(2 + varint_len(self.least as u64))
    }
}

/// Whether all chunks but the last have the same number of entries, at least one.
fn is_even(indices: &[u32], len: usize, chunk_log2: u32) -> bool {
    let chunk = 1 << chunk_log2;
    let number = indices.partition_point(|&index| (index as usize) < chunk);
    let entry = |at: usize| indices.get(at).map_or(len, |&index| index as usize);
    let mut ends = (chunk..len).step_by(chunk).enumerate();
    ends.all(|(i, end)| {
        let next = (i + 1) * number;
        number > 0 && entry(next - 1) < end && entry(next) >= end
    })
}

/// Calls `f` with the entries of each chunk, where it starts, and where it ends.
fn for_each_chunk(indices: &[u32], len: usize, chunk_log2: u32, mut f: impl FnMut(&[u32], usize, usize)) {
    let chunk = 1 << chunk_log2;
    let mut left = indices;
    for start in (0..len).step_by(chunk) {
        let end = len.min(start + chunk);
        let (entries, others) = left.split_at(left.partition_point(|&index| (index as usize) < end));
        f(entries, start, end);
        left = others;
    }
}

/// Calls `f` with parameter and gap of every entry of a chunk.
#[inline]
fn for_each_gap(entries: &[u32], start: usize, end: usize, mut f: impl FnMut(u32, u64)) {
    let mut next = start;
    for (i, &index) in entries.iter().enumerate() {
        let left = entries.len() - i;
        f(parameter(left, end - next - left), (index as usize - next) as u64);
        next = index as usize + 1;
    }
}

/// The parameter where `left` entries have `room` more coordinates than they need: the largest r with (left +
/// 1)·2^r ≤ room, or 0. So 2^r is about the expected gap.
#[inline]
fn parameter(left: usize, room: usize) -> u32 {
    let shares = left + 1;
    if shares > room {
        return 0;
    }
    let r = room.ilog2() - shares.ilog2();
    r - u32::from(shares << r > room)
}

/// Writes the section that was measured.
pub(super) fn write(indices: &[u32], len: usize, shape: Shape, writer: &mut Writer<'_>) {
    writer.u8(shape.chunk_log2 as u8);
    writer.varint(shape.least as u64);
    writer.u8(shape.width as u8);
    let bytes = shape.section_bytes() - 2 - varint_len(shape.least as u64);
    let mut bits = BitWriter::new(writer.reserve(bytes));
    for_each_chunk(indices, len, shape.chunk_log2, |entries, start, end| {
        if end < len {
            bits.put((entries.len() - shape.least) as u64, shape.width);
        }
        for_each_gap(entries, start, end, |r, gap| {
            bits.put_unary(gap >> r);
            bits.put(gap & ((1 << r) - 1), r);
        });
    });
    let complete = bits.finish() == Some(bytes);
    debug_assert!(complete, "the section was measured");
}

/// Decodes a section into `indices`, ascending and below `len`.
pub(super) fn read(section: &[u8], len: usize, indices: &mut [u32]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(section);
    let chunk_log2 = u32::from(reader.u8()?);
    let least = reader.varint_usize()?;
    let width = u32::from(reader.u8()?);
    if !CHUNKS_LOG2.contains(&chunk_log2) || width > MAX_WIDTH {
        return Err(DecodeError::InvalidField(Field::Chunks));
    }
    let bytes = reader.rest();
    let mut bits = BitReader::new(bytes);
    let mut left = indices;
    for start in (0..len).step_by(1 << chunk_log2) {
        let end = len.min(start + (1 << chunk_log2));
        let number = if end < len { least.saturating_add(bits.take(width) as usize) } else { left.len() };
        if number > left.len().min(end - start) {
            return Err(DecodeError::IndexOutOfRange);
        }
        let (entries, others) = left.split_at_mut(number);
        read_chunk(&mut bits, start, end, entries)?;
        left = others;
    }
    check_padding(bytes, bits.position())
}

/// Decodes the positions of a chunk, which has room for them.
#[inline]
fn read_chunk(
    bits: &mut BitReader<'_>,
    start: usize,
    end: usize,
    entries: &mut [u32],
) -> Result<(), DecodeError> {
    let (mut next, mut left) = (start, entries.len());
    for entry in entries {
        let room = end - next - left;
        let r = parameter(left, room);
        let high = bits.take_unary().ok_or(DecodeError::Truncated { needed: 1, actual: 0 })?;
        if high > room as u64 >> r {
            return Err(DecodeError::IndexOutOfRange);
        }
        let gap = (high << r | bits.take(r)) as usize;
        if gap > room {
            return Err(DecodeError::IndexOutOfRange);
        }
        *entry = (next + gap) as u32;
        next += gap + 1;
        left -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_the_largest_that_leave_a_share_to_every_entry() {
        for left in 1..70usize {
            for room in 0..300usize {
                let largest = (0..10).rev().find(|&r| (left + 1) << r <= room).unwrap_or(0);
                assert_eq!(parameter(left, room), largest, "{left} entries, {room}");
            }
        }
    }

    #[test]
    fn the_shortest_chunks_of_equal_numbers_are_taken() {
        let pairs: [u32; 6] = core::array::from_fn(|i| i as u32 / 2 * 256 + i as u32 % 2 * 77);
        let uneven = [0, 1, 70_000];
        for (indices, len, expected) in [
            (&pairs[..], 600, (8, 2, 0)),
            (&pairs, 700, (8, 2, 0)),
            (&pairs, 1500, (10, 6, 0)),
            (&uneven, 200_000, (12, 0, 2)),
        ] {
            let shape = Shape::measure(indices, len);
            assert_eq!((shape.chunk_log2, shape.least, shape.width), expected, "{len}");
        }
    }
}
