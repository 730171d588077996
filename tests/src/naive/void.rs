//! Void frames: a header with flag bit 2 and no units, then the step and the coordinate that is to blame.

use super::decode::{Bytes, Checked, ensure};
use super::header::{self, HEADER_BYTES, checksum_of, patch_checksum, varint};

/// The flag.
pub const VOID: u8 = 4;

/// A void frame of the codec with that number.
#[must_use]
pub fn encode(codec: u8, step: u64, index: u64, fingerprint: u64) -> Vec<u8> {
    let mut frame = header::frame(codec, 0, fingerprint, &[varint(step), varint(index)].concat());
    frame[4] = VOID;
    patch_checksum(&mut frame);
    frame
}

/// Codec, step and coordinate of a void frame for a layout of these shapes.
///
/// # Errors
/// Why the bytes are none.
pub fn decode(frame: &[u8], shapes: &[Vec<usize>]) -> Checked<(u8, u64, usize)> {
    let mut bytes = Bytes::new(frame);
    ensure(bytes.take(2)? == b"GW", "magic")?;
    ensure(bytes.u8()? == 1, "version")?;
    let codec = bytes.u8()?;
    ensure(codec <= 9 || (0xf0..0xff).contains(&codec), "unknown codec")?;
    ensure(bytes.u16()? == u16::from(VOID), "another flag")?;
    ensure(bytes.u16()? == 0, "units")?;
    ensure(bytes.u64()? == header::fingerprint(shapes), "another layout")?;
    let body_bytes = bytes.u32()?;
    let checksum = bytes.u32()?;
    ensure(frame.len() - HEADER_BYTES == body_bytes as usize, "length")?;
    ensure(checksum_of(frame) == checksum, "checksum")?;
    let (step, index) = (bytes.varint()?, bytes.varint_usize()?);
    ensure(index < shapes.iter().map(|shape| shape.iter().product::<usize>()).sum(), "beyond the layout")?;
    bytes.finish()?;
    Ok((codec, step, index))
}
