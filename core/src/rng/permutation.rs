//! Orders that every rank repeats, without storing them.

use crate::gradient::layout::absorb;
use crate::rng::Stream;

/// Rounds of the network, each with its own key.
const ROUNDS: usize = 6;

/// Bits of a half at the least: over fewer, some pairs of places are a third likelier than others.
const LEAST_HALF: u32 = 4;

/// A permutation of the numbers below `len`, from the first draws of a stream.
///
/// ```text
/// h = max(⌈bitlen(len − 1) / 2⌉, 4)
/// at(i): repeat: (l, r) = (i >> h, i mod 2^h)
///                for each of the first 6 draws d: (l, r) = (r, l xor (absorb(d, r) >> (64 − h)))
///                i = l · 2^h + r
///        until i < len
/// ```
/// `absorb` is that of the fingerprint of a layout (FORMAT.md, section 3).
///
/// # Source
/// Luby, Rackoff: How to Construct Pseudorandom Permutations (SIAM J. Comput. 17(2), 1988); walking the cycle
/// into a smaller domain: Black, Rogaway: Ciphers with Arbitrary Finite Domains (CT-RSA 2002).
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    keys: [u64; ROUNDS],
    half: u32,
    len: u64,
}

impl Permutation {
    pub(crate) fn new(stream: &Stream, len: usize) -> Self {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let keys = core::array::from_fn(|i| stream.u64_at(i as u64));
        Self { keys, half: bits.div_ceil(2).max(LEAST_HALF), len }
    }

    /// The number at place `i`, which is below `len`. Ends: the network is a bijection, so the cycle of a
    /// number below `len` comes back to one.
    pub(crate) fn at(&self, i: usize) -> usize {
        let mut i = i as u64;
        debug_assert!(i < self.len, "a place outside of the permutation");
        loop {
            i = self.network(i);
            if i < self.len {
                return i as usize;
            }
        }
    }

    fn network(&self, i: u64) -> u64 {
        let step =
            |(left, right): (u64, u64), key: &u64| (right, left ^ absorb(*key, right) >> (64 - self.half));
        let (left, right) = self.keys.iter().fold((i >> self.half, i & ((1 << self.half) - 1)), step);
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use rand_core::SeedableRng;
    use std::{vec, vec::Vec};

    fn permutation(seed: u64, len: usize) -> Permutation {
        Permutation::new(&Stream::from_seed(seed.to_le_bytes()), len)
    }

    #[test]
    fn every_number_has_one_place() {
        for len in (1..300).chain([1023, 1024, 1025, 65_537]) {
            let permutation = permutation(len as u64, len);
            let mut seen = vec![false; len];
            (0..len).for_each(|i| seen[permutation.at(i)] = true);
            assert!(seen.iter().all(|&seen| seen), "{len}");
        }
    }

    #[test]
    fn every_pair_of_numbers_is_as_likely_as_any_other_in_the_first_two_places() {
        // 11 · 10 ordered pairs, 44 000 seeds: mean 400, standard deviation 20; five of them either side.
        let len = 11;
        let mut counts = vec![0u32; len * len];
        for seed in 0..44_000 {
            let permutation = permutation(seed, len);
            counts[permutation.at(0) * len + permutation.at(1)] += 1;
        }
        let is_pair = |at: usize| at / len != at % len;
        let pairs: Vec<u32> = (0..len * len).filter(|&at| is_pair(at)).map(|at| counts[at]).collect();
        assert!(pairs.iter().all(|count| (300..=500).contains(count)), "{pairs:?}");
    }
}
