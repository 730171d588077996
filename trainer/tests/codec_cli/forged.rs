//! Frames made by hand, byte by byte, that claim what no encoder would write.

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// A frame at step 0 of so many units.
pub(crate) fn frame(codec: u8, fingerprint: u64, count: u16, units: &[u8]) -> Vec<u8> {
    let body = [&[0], units].concat();
    let mut frame = [&b"GW\x01"[..], &[codec, 0, 0], &count.to_le_bytes()].concat();
    frame.extend(fingerprint.to_le_bytes());
    frame.extend((body.len() as u32).to_le_bytes());
    let checksum = crc32c(&[&frame[..], &body].concat());
    [&frame[..], &checksum.to_le_bytes(), &body].concat()
}

/// A frame of one unit of `len` coordinates.
pub(crate) fn forged(codec: u8, fingerprint: u64, len: u64, kind: u8, body: &[u8]) -> Vec<u8> {
    frame(codec, fingerprint, 1, &[&[0, 0][..], &varint(len), &[kind], body].concat())
}

/// Levels of `bits` under context in one bucket of `len` coordinates.
pub(crate) fn context(bits: u8, len: u64, stream: &[u8]) -> Vec<u8> {
    let whole = varint(len);
    [&[0x40 | bits, 0x21][..], &whole, &whole, &varint(stream.len() as u64), stream].concat()
}

/// One entry of a seeded unit, whose selection takes a bit for every coordinate.
pub(crate) fn seeded() -> Vec<u8> {
    [&7_u64.to_le_bytes()[..], &[1, 0], &1_f32.to_le_bytes()].concat()
}
