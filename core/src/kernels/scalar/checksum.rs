//! CRC-32C (Castagnoli), by table.

use crate::built::Full;

/// Reflected polynomial 0x1edc6f41.
pub(crate) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Bits by which one table look-up moves the state; fewer if there is little room for the table.
const STEP_BITS: usize = if Full::build().is_some() { 8 } else { 4 };

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where a wrong index is a compile error"
)]
const TABLE: [u32; 1 << STEP_BITS] = {
    let mut table = [0u32; 1 << STEP_BITS];
    let mut low = 0;
    while low < table.len() {
        let mut crc = low as u32;
        let mut bit = 0;
        while bit < STEP_BITS {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[low] = crc;
        low += 1;
    }
    table
};

/// CRC-32C of `bytes`, continuing `crc`.
#[allow(clippy::indexing_slicing, reason = "the index is taken modulo the entries of the table")]
pub(in crate::kernels) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> STEP_BITS) ^ TABLE[crc as usize % TABLE.len()];
    !bytes.iter().fold(!crc, |crc, &byte| (0..8 / STEP_BITS).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}
