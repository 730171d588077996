//! Adaptive probabilities of decisions, and how several of them become one.

use super::range::BitCoder;

/// Decisions of a context.
pub(crate) const DECISIONS: usize = 16;

/// The decisions of one context.
pub(crate) type Context = [u32; DECISIONS];

/// A word holds P(1) in 16 bits, and below them in four how often it was updated.
pub(crate) const COUNT_BITS: u32 = 4;
pub(crate) const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// By how much of the way an update moves a probability towards what came, out of 2¹⁵: 1 / (count + 1.6), at last 1/24.
const RATE: [i32; 16] = {
    let mut rate = [32_768 / 24; 16];
    let mut count = 0;
    while count < 15 {
        rate[count] = 327_680 / (10 * count as i32 + 16);
        count += 1;
    }
    rate
};

/// How much a probability counts that was updated so often: 32 · count / (count + 2).
const CONFIDENCE: [u32; 16] = {
    let mut confidence = [0; 16];
    let mut count = 0;
    while count < 16 {
        confidence[count] = (32 * count as u32 + (count as u32 + 2) / 2) / (count as u32 + 2);
        count += 1;
    }
    confidence
};

/// As likely 1 as 0, out of 2¹⁶.
pub(crate) const EVEN: u32 = 1 << 15;

/// What updates move probabilities towards, out of 2¹⁶.
const LEAST: i32 = 96;
const MOST: i32 = (1 << 16) - LEAST;

/// Codes a decision under the average of the probabilities of some contexts, weighted by `weights` and by how much each
/// has seen, and updates them. At least one has seen something.
#[inline(always)]
pub(crate) fn decide<const N: usize>(
    coder: &mut impl BitCoder,
    contexts: &mut [&mut Context; N],
    weights: [u32; N],
    number: usize,
    bit: bool,
) -> bool {
    let (mut sum, mut total) = (0, 0);
    for (context, weight) in contexts.iter().zip(weights) {
        let word = context[number % DECISIONS];
        let confidence = weight * CONFIDENCE[(word & COUNT_MASK) as usize];
        sum += confidence * (word >> COUNT_BITS);
        total += confidence;
    }
    let p = quotient(sum, total);
    let bit = coder.bit(p, bit);
    for context in contexts {
        let word = &mut context[number % DECISIONS];
        *word = updated(*word, bit);
    }
    bit
}

/// `dividend / divisor` for a divisor in 2 … 127 and a quotient below 2¹⁶; confidences are above 1.
#[inline]
fn quotient(dividend: u32, divisor: u32) -> u32 {
    ((u64::from(dividend) * u64::from(RECIPROCAL[divisor as usize % RECIPROCAL.len()])) >> 32) as u32
}

/// 2³² / divisor, rounded up: exact quotients as long as dividend · divisor stays below 2³².
const RECIPROCAL: [u32; 128] = {
    let mut reciprocal = [u32::MAX; 128];
    let mut divisor = 2;
    while divisor < 128 {
        reciprocal[divisor] = u32::MAX / divisor as u32 + 1;
        divisor += 1;
    }
    reciprocal
};

/// The word behind a decision that came out as `bit`.
#[inline]
fn updated(word: u32, bit: bool) -> u32 {
    let count = word & COUNT_MASK;
    let before = (word >> COUNT_BITS) as i32;
    let target = if bit { MOST } else { LEAST };
    let after = before + (((target - before) * RATE[count as usize]) >> 15);
    (after as u32) << COUNT_BITS | (count + 1).min(COUNT_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        for divisor in 2..=28 * 4 {
            for quotient_ in (0..1 << 16).step_by(97).chain([65_535]) {
                for rest in [0, divisor - 1] {
                    let dividend = (quotient_ * divisor + rest).min(65_535 * divisor);
                    assert_eq!(quotient(dividend, divisor), dividend / divisor);
                }
            }
        }
    }
}
