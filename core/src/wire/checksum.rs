//! CRC-32C (Castagnoli): finds accidents; never replaces a check.

/// Reflected polynomial 0x1edc6f41.
pub(crate) const POLYNOMIAL: u32 = 0x82f6_3b78;

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where a wrong index is a compile error"
)]
const TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Continues a running CRC-32C (start with 0) over `bytes`.
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    crate::kernels::crc32c(crc, bytes)
}

/// The definition: one table look-up a byte.
#[allow(clippy::indexing_slicing, reason = "the index is a byte, the table has 256 entries")]
pub(crate) fn crc32c_scalar(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32C, and the vectors of RFC 3720, appendix B.4.
    #[test]
    fn known_vectors_match() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole_in_every_kernel() {
        let bytes: [u8; 20_000] = core::array::from_fn(|i| (i * 7 + i / 256) as u8);
        for cut in (0..=bytes.len()).step_by(1111) {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(crc32c(crc32c(0, head), tail), crc32c_scalar(0, &bytes));
        }
    }
}
