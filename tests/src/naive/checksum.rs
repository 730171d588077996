//! CRC-32C, bit by bit.

/// The reflected Castagnoli polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= POLYNOMIAL;
            }
        }
    }
    !crc
}
