//! CRC-32C (Castagnoli). It finds accidental damage and never replaces a check.

use crate::kernels::scalar::checksum::POLYNOMIAL;
use crate::kernels::{self, Isa};

/// Continues a running CRC-32C (start with 0) over `bytes`.
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    kernels::crc32c(Isa::best(), crc, bytes)
}

/// CRC-32C of two pieces in a row, from the CRC of each: the first CRC is shifted by as many zero bytes as
/// the second piece has bytes.
pub(crate) fn joined(first: u32, second: u32, second_bytes: usize) -> u32 {
    let (mut moved, mut power, mut bytes) = (first, X_8, second_bytes);
    while bytes > 0 {
        if bytes & 1 == 1 {
            moved = product(moved, power);
        }
        power = product(power, power);
        bytes >>= 1;
    }
    moved ^ second
}

/// x⁸: one byte of zeros. Polynomials have their constant term in the highest bit.
const X_8: u32 = 1 << 23;

/// Product of two polynomials modulo the polynomial of the checksum.
fn product(a: u32, mut b: u32) -> u32 {
    (0..32).rev().fold(0, |sum, bit| {
        let term = b & (a >> bit & 1).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        sum ^ term
    })
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
        let whole = kernels::crc32c(Isa::Baseline, 0, &bytes);
        for isa in Isa::available() {
            let edges =
                [1, 256, 1024, 1280, 2040, 2048, 4080].into_iter().flat_map(|edge| edge - 1..=edge + 1);
            for cut in (0..=bytes.len()).step_by(1111).chain(edges) {
                let (head, tail) = bytes.split_at(cut);
                let [first, second] = [head, tail].map(|piece| kernels::crc32c(isa, 0, piece));
                assert_eq!(kernels::crc32c(isa, first, tail), whole, "{isa:?}, cut at {cut}");
                assert_eq!(joined(first, second, tail.len()), whole, "{isa:?}, cut at {cut}");
            }
        }
    }
}
