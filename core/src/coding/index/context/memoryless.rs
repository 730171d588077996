//! Gaps under one probability for all coordinates: k / len.
//!
//! Then a gap is geometric, and its binary digits are independent: digit j is 1 with probability r / (1 + r)
//! for r = (1 − k/len)^(2^j). Whatever the positions, that takes at most len · H(k/len) bits, H the binary
//! entropy: hardly more than the number of entries alone implies.

use crate::coding::entropy::range::BitCoder;
use crate::error::DecodeError;

/// One, as a fraction of 32 bits.
const ONE: u64 = 1 << 32;

/// The least probability of a decision, out of 2¹⁶.
const LEAST: u32 = 96;

/// How a digit is coded.
struct Digits {
    /// P(1) of each digit.
    p: [u32; 32],
    /// Digits below this one are almost equally likely to be 0 or 1.
    even: u32,
    /// Digits from this one on count by ones.
    high: u32,
    /// P(one more).
    more: u32,
}

impl Digits {
    fn new(k: usize, len: usize) -> Self {
        let mut digits = Self { p: [0; 32], even: 0, high: 0, more: 0 };
        let mut ratio = ((len - k) as u64 * ONE / len as u64).min(ONE - 1);
        while ratio > ONE / 4 && digits.high < 31 {
            if ratio > ONE / 16 * 15 {
                digits.even = digits.high + 1;
            }
            digits.p[digits.high as usize] = (((ratio << 16) / (ONE + ratio)) as u32).max(LEAST);
            ratio = (ratio * ratio) >> 32;
            digits.high += 1;
        }
        digits.more = ((ratio >> 16) as u32).max(LEAST);
        digits
    }

    #[inline]
    fn code(&self, coder: &mut impl BitCoder, gap: u32, max: u32) -> Option<u32> {
        let mut coded = 0u32;
        while coder.bit(self.more, gap >> self.high > coded) {
            coded += 1;
            if coded > max >> self.high {
                return None;
            }
        }
        for digit in (self.even..self.high).rev() {
            let bit = coder.bit(self.p[digit as usize], gap >> digit & 1 == 1);
            coded = coded << 1 | u32::from(bit);
        }
        coded = coded << self.even | coder.bits(self.even, gap & ((1 << self.even) - 1));
        (coded <= max).then_some(coded)
    }
}

/// The information in the positions of a unit of `len` elements: log₂(len/k) bits for each entry and
/// log₂(len/(len − k)) for each coordinate that is passed on the way to the last, rounded down.
pub(super) fn bits(indices: &[u32], len: usize) -> u64 {
    let k = indices.len();
    let passed = indices.last().map_or(0, |&last| last as usize + 1 - k);
    let bits = k as u128 * log2(len, k) + passed as u128 * if passed > 0 { log2(len, len - k) } else { 0 };
    (bits >> LOG_BITS) as u64
}

/// Binary places of a logarithm.
pub(super) const LOG_BITS: u32 = 32;

/// log₂ of a / b ≥ 1, rounded down, digit by digit: squaring doubles the logarithm.
pub(super) const fn log2(a: usize, b: usize) -> u128 {
    let mut ratio = ((a as u128) << 63) / b as u128;
    let mut log = (ratio.ilog2() - 63) as u128;
    ratio >>= log;
    let mut places = 0;
    while places < LOG_BITS {
        ratio = (ratio * ratio) >> 63;
        log = log << 1 | ratio >> 64;
        ratio = if ratio >> 64 == 1 { ratio >> 1 } else { ratio };
        places += 1;
    }
    log
}

/// Codes all positions of a unit of `len` elements.
pub(super) fn code(coder: &mut impl BitCoder, indices: &mut [u32], len: usize) -> Result<(), DecodeError> {
    let digits = Digits::new(indices.len(), len);
    let (mut next, mut left) = (0u32, indices.len() as u32);
    for index in indices {
        let max = len as u32 - next - left;
        let gap = digits.code(coder, index.wrapping_sub(next), max).ok_or(DecodeError::IndexOutOfRange)?;
        *index = next + gap;
        next += gap + 1;
        left -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn logarithms_are_exact_to_the_last_place() {
        for (a, b) in
            [(1usize, 1usize), (2, 1), (3, 1), (10, 9), (1000, 999), (1 << 31, 3), (u32::MAX as usize, 7)]
        {
            let expected = (a as f64 / b as f64).log2() * (LOG_BITS as f64).exp2();
            let log = log2(a, b) as f64;
            assert!((log - expected).abs() <= 2.0 + expected * 1e-14, "{log} for {expected}");
        }
    }
}
