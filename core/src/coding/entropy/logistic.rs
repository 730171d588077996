//! Probabilities as logarithms of their odds, in integers.
//!
//! A logarithm is a straight line between the powers of two. This costs next to nothing, needs no table, and
//! has an exact inverse.
//!
//! # Source
//! Mahoney: Adaptive weighing of context models for lossless data compression (CS-2005-16), `stretch` and
//! `squash`; the line is Mitchell's (Computer multiplication and division using binary logarithms, 1962).

use crate::kernels::scalar::mixing::PLACES;
pub(crate) use crate::kernels::scalar::mixing::log;

/// The growth of a logarithm with each digit.
const OCTAVE: u64 = 1 << PLACES;

/// Number of logarithms of odds that are distinguished on either side of 0.
const LOGARITHMS: usize = 16 << PLACES;

/// P(1) out of 2¹⁶ for each logarithm of odds from 0 on.
const PROBABILITY: [u16; LOGARITHMS] = {
    let mut probability = [0; LOGARITHMS];
    let mut x = 0;
    while x < LOGARITHMS {
        let odds = (OCTAVE + x as u64 % OCTAVE) << (x >> PLACES);
        probability[x] = ((odds << 16) / (odds + OCTAVE)) as u16;
        x += 1;
    }
    probability
};

/// P(1) out of 2¹⁶, above 0, for 128 · log₂ of its odds.
#[inline(always)]
pub(crate) fn probability(log_odds: i32) -> u32 {
    let p = u32::from(PROBABILITY[(log_odds.unsigned_abs() as usize).min(LOGARITHMS - 1)]);
    if log_odds < 0 { (1 << 16) - p } else { p }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_ascend_and_are_never_0_or_1() {
        let all = (-2100..2100).map(probability);
        assert!(all.clone().all(|p| (1..1 << 16).contains(&p)));
        assert!(all.clone().zip(all.skip(1)).all(|(p, next)| p <= next));
        assert_eq!((probability(0), probability(128), probability(-256)), (32_768, 43_690, 13_108));
    }
}
