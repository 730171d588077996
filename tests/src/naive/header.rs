//! Header, fingerprint and varints, field by field.

use super::checksum::crc32c;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;

/// Unsigned LEB128: seven bits a byte, the lowest first, the top bit set in all but the last.
#[must_use]
pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push((value % 128) as u8 + 128);
        value /= 128;
    }
    bytes.push(value as u8);
    bytes
}

/// The fingerprint over shapes and order: the number of tensors, then for each its number of dimensions and
/// these, absorbed one after the other by xor and the finaliser of SplitMix64, from ASCII "gradwire".
#[must_use]
pub fn fingerprint(shapes: &[Vec<usize>]) -> u64 {
    let words = std::iter::once(shapes.len())
        .chain(shapes.iter().flat_map(|shape| std::iter::once(shape.len()).chain(shape.iter().copied())));
    words.fold(u64::from_le_bytes(*b"gradwire"), |state, word| absorb(state, word as u64))
}

/// Xor, then the finaliser of SplitMix64.
pub(super) fn absorb(state: u64, word: u64) -> u64 {
    let z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The whole frame: header, then `body`.
#[must_use]
pub fn frame(codec: u8, unit_count: u16, fingerprint: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from(*b"GW");
    frame.extend([1, codec, 0, 0]);
    frame.extend(unit_count.to_le_bytes());
    frame.extend(fingerprint.to_le_bytes());
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend([0; 4]);
    frame.extend(body);
    patch_checksum(&mut frame);
    frame
}

/// What the checksum of these bytes has to be: over all of them but bytes 20 to 23.
#[must_use]
pub fn checksum_of(frame: &[u8]) -> u32 {
    crc32c(&[&frame[..20], &frame[24..]].concat())
}

/// Makes the checksum right. Bytes too short to have one are left alone.
pub fn patch_checksum(frame: &mut [u8]) {
    if frame.len() >= HEADER_BYTES {
        let checksum = checksum_of(frame);
        frame[20..24].copy_from_slice(&checksum.to_le_bytes());
    }
}
