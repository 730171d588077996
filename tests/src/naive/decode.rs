//! From bytes to values, with every check that FORMAT.md asks for, in the order of the bytes.

use super::context::Place;
use super::draws::{Draws, Purpose};
use super::header::{HEADER_BYTES, checksum_of, fingerprint};
use super::{efsign, index, levels, values};
use gradwire::{Source, StepKey};

/// A value, or why the bytes are not a frame.
pub type Checked<T> = Result<T, &'static str>;

/// `Err(why)` unless `condition` holds.
pub fn ensure(condition: bool, why: &'static str) -> Checked<()> {
    if condition { Ok(()) } else { Err(why) }
}

/// The value, which must be finite.
pub fn finite(value: f32) -> Checked<f32> {
    if value.is_finite() { Ok(value) } else { Err("value is not finite") }
}

/// Bytes to be read from the front.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What was not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Checked<&'a [u8]> {
        ensure(n <= self.0.len(), "bytes end too early")?;
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(taken)
    }

    fn little_endian(&mut self, n: usize) -> Checked<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// One byte.
    pub fn u8(&mut self) -> Checked<u8> {
        Ok(self.little_endian(1)? as u8)
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Checked<u16> {
        Ok(self.little_endian(2)? as u16)
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Checked<u32> {
        Ok(self.little_endian(4)? as u32)
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Checked<u64> {
        self.little_endian(8)
    }

    /// Unsigned LEB128 in its shortest form, below 2⁶⁴.
    pub fn varint(&mut self) -> Checked<u64> {
        let mut value = 0u128;
        for position in 0..10 {
            let byte = self.u8()?;
            value |= u128::from(byte % 128) << (7 * position);
            if byte < 128 {
                ensure(byte != 0 || position == 0, "varint with superfluous bytes")?;
                return u64::try_from(value).map_err(|_| "varint above 64 bits");
            }
        }
        Err("varint of more than ten bytes")
    }

    /// A varint that counts something in memory.
    pub fn varint_usize(&mut self) -> Checked<usize> {
        usize::try_from(self.varint()?).map_err(|_| "varint above the address space")
    }

    /// Nothing may be left.
    pub fn finish(&self) -> Checked<()> {
        ensure(self.0.is_empty(), "bytes left over")
    }
}

/// One unit of a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedUnit {
    /// Identifier.
    pub id: u32,
    /// First coordinate.
    pub start: usize,
    /// Number of coordinates.
    pub len: usize,
    /// Number of the body's kind.
    pub kind: u8,
    /// Positions in the unit, ascending, with their values.
    pub entries: Vec<(usize, f32)>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Number of the codec.
    pub codec: u8,
    /// The step.
    pub step: u64,
    /// Ascending.
    pub units: Vec<DecodedUnit>,
}

impl Decoded {
    /// What an accumulator of `len` zeros holds after the frame was added with weight 1.
    #[must_use]
    pub fn dense(&self, len: usize) -> Vec<f32> {
        let mut sum = vec![0.0; len];
        for unit in &self.units {
            unit.entries.iter().for_each(|&(i, value)| sum[unit.start + i] += value);
        }
        sum
    }
}

/// Reads a frame for the layout with these shapes.
pub fn decode(frame: &[u8], shapes: &[Vec<usize>]) -> Checked<Decoded> {
    let len = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
    read(frame, fingerprint(shapes), len, Some(shapes))
}

/// Reads a frame for a layout of `layout_len` elements with this fingerprint, of which no more is known,
/// unless the fingerprint is that of a single shape.
pub fn decode_for(frame: &[u8], layout: u64, layout_len: usize) -> Checked<Decoded> {
    let flat = [vec![layout_len]];
    read(frame, layout, layout_len, (layout == fingerprint(&flat)).then_some(&flat))
}

fn read(
    frame: &[u8],
    fingerprint: u64,
    layout_len: usize,
    shapes: Option<&[Vec<usize>]>,
) -> Checked<Decoded> {
    let mut bytes = Bytes::new(frame);
    ensure(bytes.take(2)? == b"GW", "magic")?;
    ensure(bytes.u8()? == 1, "version")?;
    let codec = bytes.u8()?;
    ensure(codec <= 10, "unknown codec")?;
    ensure(bytes.u16()? <= 1, "unknown flag")?;
    let unit_count = bytes.u16()?;
    ensure(unit_count > 0, "no units")?;
    ensure(bytes.u64()? == fingerprint, "another layout")?;
    let body_bytes = bytes.u32()?;
    let checksum = bytes.u32()?;
    ensure(frame.len() - HEADER_BYTES == body_bytes as usize, "length")?;
    ensure(checksum_of(frame) == checksum, "checksum")?;
    let step = bytes.varint()?;
    let (mut next_id, mut next_start) = (0u64, 0usize);
    let mut units = Vec::new();
    for _ in 0..unit_count {
        let id =
            next_id.checked_add(bytes.varint()?).and_then(|id| u32::try_from(id).ok()).ok_or("unit id")?;
        let start = next_start.checked_add(bytes.varint_usize()?).ok_or("unit start")?;
        let len = bytes.varint_usize()?;
        let end = start.checked_add(len).ok_or("unit length")?;
        ensure(end <= layout_len && len <= u32::MAX as usize, "unit outside of the layout")?;
        let kind = bytes.u8()?;
        let place = Place { shapes, start, len };
        let entries = unit_entries(codec, kind, step, id, &place, &mut bytes)?;
        units.push(DecodedUnit { id, start, len, kind, entries });
        (next_id, next_start) = (u64::from(id) + 1, end);
    }
    bytes.finish()?;
    Ok(Decoded { codec, step, units })
}

fn unit_entries(
    codec: u8,
    kind: u8,
    step: u64,
    unit: u32,
    place: &Place<'_>,
    bytes: &mut Bytes<'_>,
) -> Checked<Vec<(usize, f32)>> {
    let len = place.len;
    let every = |values: Vec<f32>| values.into_iter().enumerate().collect();
    match (kind, codec) {
        (0, _) => {
            let format = bytes.u8()?;
            ensure(
                format == values::F32 || (format == codec && codec <= values::BF16),
                "format not of the codec",
            )?;
            values::read(format, bytes, len).map(every)
        }
        (1, 3 | 4 | 7 | 8 | 10) => sparse_entries(place, bytes),
        (2, 5) => levels::read(bytes, len).map(every),
        (5, 9) => efsign::read(bytes, len).map(every),
        (3, 6) => seeded_entries(step, unit, len, bytes),
        _ => Err("kind unknown or not made by the codec"),
    }
}

fn sparse_entries(place: &Place<'_>, bytes: &mut Bytes<'_>) -> Checked<Vec<(usize, f32)>> {
    let k = bytes.varint_usize()?;
    ensure(k <= place.len, "more entries than coordinates")?;
    if k == 0 {
        return Ok(Vec::new());
    }
    let coding = bytes.u8()?;
    let positions = index::read(coding & 15, bytes, k, place)?;
    let values = values::read(coding >> 4, bytes, k)?;
    Ok(positions.into_iter().zip(values).collect())
}

fn seeded_entries(step: u64, unit: u32, len: usize, bytes: &mut Bytes<'_>) -> Checked<Vec<(usize, f32)>> {
    let seed = bytes.u64()?;
    let k = bytes.varint_usize()?;
    ensure(k <= len, "more entries than coordinates")?;
    let format = bytes.u8()?;
    ensure(format & 15 < values::CODEBOOK, "seeded units have no codebook")?;
    let tile = match format >> 4 {
        0 => None,
        1 => Some((len, len)),
        2 => {
            let (columns, width) = (bytes.varint_usize()?, bytes.varint_usize()?);
            ensure((1..=len).contains(&columns) && len.is_multiple_of(columns), "rows of no such length")?;
            ensure((1..=columns).contains(&width), "the width of a tile")?;
            ensure(k <= width * (len / columns), "more entries than a tile has room for")?;
            Some((columns, width))
        }
        _ => return Err("the drawing is not known"),
    };
    let values = values::read(format & 15, bytes, k)?;
    let draws = Draws::new(StepKey { seed, step, source: Source::Shared }, unit, Purpose::Selection);
    let positions = tile.map_or_else(|| draws.sample(len, k), |tile| draws.tile(len, k, tile));
    Ok(positions.into_iter().zip(values).collect())
}
