//! Index coders: the ascending positions of `k` entries below `len`.

use super::bits::{BitSource, Bits};
use super::context::{self, Adaptive, Place};
use super::decode::{Bytes, Checked, ensure};
use super::header::varint;
use gradwire::codecs::IndexChoice;
use std::ops::RangeInclusive;

/// Numbers of the index coders on the wire.
const RAW: u8 = 0;
const BITMAP: u8 = 1;
const RICE: u8 = 2;
const CONTEXT: u8 = 3;
const CONTEXT_MAX: u8 = 4;
const CHUNKS: u8 = 6;

/// Entries that share a Rice parameter, as powers of two: all, and the one that is taken unless another is
/// much shorter.
const RICE_BLOCKS_LOG2: RangeInclusive<u8> = 4..=16;
const USUAL_RICE_BLOCK_LOG2: u8 = 7;

/// Bits of one raw position: as many as the largest, len − 1, has digits.
fn raw_width(len: usize) -> u32 {
    (0..64).find(|&width| (len - 1) >> width == 0).expect("a position has fewer than 64 digits")
}

fn raw(indices: &[usize], len: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    indices.iter().for_each(|&index| bits.field(index as u64, raw_width(len)));
    bits.bytes()
}

fn bitmap(indices: &[usize], len: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    (0..len).for_each(|i| bits.field(u64::from(indices.binary_search(&i).is_ok()), 1));
    bits.bytes()
}

/// How many positions lie between an entry and the one before it.
fn gaps(indices: &[usize]) -> Vec<u64> {
    let before = std::iter::once(0).chain(indices.iter().map(|&index| index + 1));
    indices.iter().zip(before).map(|(&index, next)| (index - next) as u64).collect()
}

/// The smallest r with the fewest bits, by trying all of them.
#[must_use]
pub fn best_rice_parameter(gaps: &[u64]) -> u32 {
    let cost = |r: u32| gaps.iter().map(|gap| (gap >> r) + 1 + u64::from(r)).sum::<u64>();
    (0..32).min_by_key(|&r| cost(r)).expect("there are 32 parameters")
}

/// The block size, then the planes: parameters, low bits, unary high parts.
fn rice_in_blocks(indices: &[usize], block_log2: u8) -> Vec<u8> {
    let [mut parameters, mut lows, mut highs] = [const { Vec::<bool>::new() }; 3].map(|_| Bits::default());
    for block in gaps(indices).chunks(1 << block_log2) {
        let r = best_rice_parameter(block);
        parameters.field(u64::from(r), 5);
        for gap in block {
            lows.field(gap % (1 << r), r);
            highs.unary(gap >> r);
        }
    }
    [vec![block_log2], parameters.bytes(), lows.bytes(), highs.bytes()].concat()
}

/// Blocks of 128 entries, or of the size with the fewest bytes if that saves more than 1/128 of them, and
/// more than one.
fn rice(indices: &[usize]) -> Vec<u8> {
    let usual = rice_in_blocks(indices, USUAL_RICE_BLOCK_LOG2);
    let all = RICE_BLOCKS_LOG2.map(|block_log2| rice_in_blocks(indices, block_log2));
    let best = all.min_by_key(Vec::len).expect("there are sizes");
    with_length(if usual.len() - best.len() > (usual.len() / 128).max(1) { best } else { usual })
}

/// The largest r that gives each of the entries that are left, and one more, 2^r of the coordinates to spare.
fn chunk_parameter(left: usize, room: usize) -> u32 {
    (0..17).rev().find(|&r| (left + 1) << r <= room).unwrap_or(0)
}

/// The entries of each chunk, counted from its start.
fn in_chunks(indices: &[usize], len: usize, chunk: usize) -> Vec<Vec<usize>> {
    let inside =
        |start: usize| indices.iter().filter(move |&&i| i / chunk == start / chunk).map(move |i| i - start);
    (0..len).step_by(chunk).map(|start| inside(start).collect()).collect()
}

/// Cut into the shortest chunks that hold as many entries each, or into 4096 coordinates.
fn chunks(indices: &[usize], len: usize) -> Vec<u8> {
    let numbers = |log2: u8| -> Vec<usize> {
        let chunks = in_chunks(indices, len, 1 << log2);
        chunks[..chunks.len() - 1].iter().map(Vec::len).collect()
    };
    let is_even = |log2: &u8| {
        let numbers = numbers(*log2);
        numbers.iter().all(|&number| number > 0 && number == numbers[0])
    };
    let log2 = (6..=16).find(is_even).unwrap_or(12);
    let numbers = numbers(log2);
    let least = numbers.iter().copied().min().unwrap_or(0);
    let width =
        (0..64).find(|&width| numbers.iter().all(|number| (number - least) >> width == 0)).unwrap_or(0);
    let mut bits = Bits::default();
    for (number, entries) in in_chunks(indices, len, 1 << log2).iter().enumerate() {
        if let Some(number) = numbers.get(number) {
            bits.field((number - least) as u64, width);
        }
        let end = (len - (number << log2)).min(1 << log2);
        let mut next = 0;
        for (before, &entry) in entries.iter().enumerate() {
            let left = entries.len() - before;
            let r = chunk_parameter(left, end - next - left);
            bits.unary((entry - next) as u64 >> r);
            bits.field((entry - next) as u64 % (1 << r), r);
            next = entry + 1;
        }
    }
    with_length([vec![log2], varint(least as u64), vec![width as u8], bits.bytes()].concat())
}

fn with_length(stream: Vec<u8>) -> Vec<u8> {
    [varint(stream.len() as u64), stream].concat()
}

/// Number of the coder, and its section: the one asked for, or the shortest, the first of equals.
///
/// # Panics
/// When the reference does not know the choice.
#[must_use]
pub fn section(choice: IndexChoice, indices: &[usize], place: &Place<'_>) -> (u8, Vec<u8>) {
    let one = |coder| match coder {
        RAW => raw(indices, place.len),
        BITMAP => bitmap(indices, place.len),
        RICE => rice(indices),
        CHUNKS => chunks(indices, place.len),
        CONTEXT => with_length(context::write(Adaptive::Gaps, indices, place)),
        _ => with_length(context::write(Adaptive::Coordinates, indices, place)),
    };
    let coders = match choice {
        IndexChoice::Raw => RAW..=RAW,
        IndexChoice::Bitmap => BITMAP..=BITMAP,
        IndexChoice::Rice => RICE..=RICE,
        IndexChoice::Context => CONTEXT..=CONTEXT,
        IndexChoice::ContextMax => CONTEXT_MAX..=CONTEXT_MAX,
        IndexChoice::Auto => RAW..=RICE,
        IndexChoice::Small => RAW..=CONTEXT,
        IndexChoice::Smallest if context::finds_order(indices, place) => RAW..=CONTEXT_MAX,
        IndexChoice::Smallest => RAW..=CONTEXT,
        IndexChoice::Chunks => CHUNKS..=CHUNKS,
        other => panic!("the reference does not know {other:?}"),
    };
    coders
        .map(|coder| (coder, one(coder)))
        .min_by_key(|(_, section)| section.len())
        .expect("one coder or more")
}

/// Positions must ascend and stay below `len`.
fn ascending(indices: Vec<u64>, len: usize) -> Checked<Vec<usize>> {
    ensure(indices.windows(2).all(|pair| pair[0] < pair[1]), "positions do not ascend")?;
    ensure(indices.iter().all(|&index| index < len as u64), "position outside of the unit")?;
    Ok(indices.into_iter().map(|index| index as usize).collect())
}

fn read_raw(bytes: &mut Bytes<'_>, k: usize, len: usize) -> Checked<Vec<usize>> {
    let width = raw_width(len);
    let mut bits = BitSource::new(bytes.take((k * width as usize).div_ceil(8))?);
    let indices = (0..k).map(|_| bits.field(width)).collect::<Checked<_>>()?;
    bits.finish()?;
    ascending(indices, len)
}

fn read_bitmap(bytes: &mut Bytes<'_>, k: usize, len: usize) -> Checked<Vec<usize>> {
    let mut bits = BitSource::new(bytes.take(len.div_ceil(8))?);
    let marks = (0..len).map(|_| bits.bit()).collect::<Checked<Vec<_>>>()?;
    bits.finish()?;
    let indices: Vec<usize> = (0..len).filter(|&i| marks[i]).collect();
    ensure(indices.len() == k, "bitmap and k differ")?;
    Ok(indices)
}

fn read_rice(bytes: &mut Bytes<'_>, k: usize, len: usize) -> Checked<Vec<usize>> {
    let length = bytes.varint_usize()?;
    let mut planes = Bytes::new(bytes.take(length)?);
    let block_log2 = planes.u8()?;
    ensure((4..=16).contains(&block_log2), "block size out of range")?;
    let block = 1usize << block_log2;
    let mut parameters = BitSource::new(planes.take((5 * k.div_ceil(block)).div_ceil(8))?);
    let rs = (0..k.div_ceil(block)).map(|_| parameters.field(5)).collect::<Checked<Vec<_>>>()?;
    parameters.finish()?;
    let r_of = |entry: usize| rs[entry / block] as u32;
    let low_bits: u64 = (0..k).map(|entry| u64::from(r_of(entry))).sum();
    let mut lows = BitSource::new(planes.take(low_bits.div_ceil(8) as usize)?);
    let mut highs = BitSource::new(planes.rest());
    let (mut indices, mut next) = (Vec::new(), 0);
    for entry in 0..k {
        let high = highs.unary()?;
        ensure(high <= len as u64 >> r_of(entry), "gap beyond the unit")?;
        let gap = high << r_of(entry) | lows.field(r_of(entry))?;
        indices.push(next + gap);
        next += gap + 1;
    }
    lows.finish()?;
    highs.finish()?;
    ascending(indices, len)
}

fn read_chunks(bytes: &mut Bytes<'_>, k: usize, len: usize) -> Checked<Vec<usize>> {
    let length = bytes.varint_usize()?;
    let mut section = Bytes::new(bytes.take(length)?);
    let log2 = section.u8()?;
    let least = section.varint_usize()?;
    let width = section.u8()?;
    ensure((6..=16).contains(&log2) && width <= 17, "chunks out of range")?;
    let mut bits = BitSource::new(section.rest());
    let mut indices: Vec<u64> = Vec::new();
    for start in (0..len).step_by(1 << log2) {
        let size = (len - start).min(1 << log2);
        let left = k - indices.len();
        let number = if start + size == len {
            left
        } else {
            least.saturating_add(bits.field(u32::from(width))? as usize)
        };
        ensure(number <= left && number <= size, "more entries than a chunk has room for")?;
        let mut next = 0;
        for left in (1..=number).rev() {
            let room = size - next - left;
            let r = chunk_parameter(left, room);
            let high = bits.unary()?;
            ensure(high <= room as u64 >> r, "gap beyond the chunk")?;
            let gap = (high << r | bits.field(r)?) as usize;
            ensure(gap <= room, "gap beyond the chunk")?;
            indices.push((start + next + gap) as u64);
            next += gap + 1;
        }
    }
    bits.finish()?;
    ascending(indices, len)
}

fn read_context(form: Adaptive, bytes: &mut Bytes<'_>, k: usize, place: &Place<'_>) -> Checked<Vec<usize>> {
    let length = bytes.varint_usize()?;
    ascending(context::read(form, bytes.take(length)?, k, place)?, place.len)
}

/// Reads the section of coder number `coder`.
pub fn read(coder: u8, bytes: &mut Bytes<'_>, k: usize, place: &Place<'_>) -> Checked<Vec<usize>> {
    let len = place.len;
    match coder {
        RAW => read_raw(bytes, k, len),
        BITMAP => read_bitmap(bytes, k, len),
        RICE => read_rice(bytes, k, len),
        CHUNKS => read_chunks(bytes, k, len),
        CONTEXT => read_context(Adaptive::Gaps, bytes, k, place),
        CONTEXT_MAX => read_context(Adaptive::Coordinates, bytes, k, place),
        _ => Err("unknown index coder"),
    }
}
