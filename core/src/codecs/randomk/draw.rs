//! Which coordinates are drawn.

use crate::rng::Stream;

/// Words of a bitmap over `len` coordinates.
pub(super) fn bitmap_words(len: usize) -> usize {
    len.div_ceil(32)
}

/// Writes a uniformly drawn k-subset of the coordinates below `len` to `indices` (k elements), ascending.
/// `bitmap` has [`bitmap_words`] words.
///
/// For j = len − k … len − 1: draw t below j + 1; take t, or j if t is already taken (Floyd).
pub(super) fn sample(stream: &Stream, len: usize, indices: &mut [u32], bitmap: &mut [u32]) {
    bitmap.fill(0);
    let first = len - indices.len();
    let mut pair = [0; 2];
    for (draw, j) in (first..len).enumerate() {
        if draw.is_multiple_of(2) {
            pair = stream.u64_pair(draw as u64 / 2);
        }
        let t = Stream::scaled(pair[draw % 2], j as u64 + 1) as usize;
        let taken = if bitmap[t / 32] >> (t % 32) & 1 == 1 { j } else { t };
        bitmap[taken / 32] |= 1 << (taken % 32);
    }
    let mut slots = indices.iter_mut();
    for (i, &word) in bitmap.iter().enumerate() {
        let mut word = word;
        while word != 0 {
            if let Some(slot) = slots.next() {
                *slot = i as u32 * 32 + word.trailing_zeros();
            }
            word &= word - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use rand_core::SeedableRng;
    use std::{vec, vec::Vec};

    #[test]
    fn samples_are_distinct_ascending_and_complete() {
        for len in 1..70usize {
            for k in 1..=len {
                let mut indices = vec![0; k];
                let stream = Stream::from_seed((len as u64 * 100 + k as u64).to_le_bytes());
                sample(&stream, len, &mut indices, &mut vec![u32::MAX; bitmap_words(len)]);
                assert!(indices.windows(2).all(|pair| pair[0] < pair[1]));
                assert!((indices[k - 1] as usize) < len);
            }
        }
    }

    #[test]
    fn every_subset_is_equally_likely() {
        // 10 subsets of 2 out of 5, 10 000 draws: mean 1000, standard deviation 30; five of them either side.
        let mut seen = [0u32; 32];
        for seed in 0..10_000u64 {
            let mut indices = [0; 2];
            sample(&Stream::from_seed(seed.to_le_bytes()), 5, &mut indices, &mut [0]);
            seen[(1 << indices[0] | 1 << indices[1]) as usize] += 1;
        }
        let counts: Vec<u32> = seen.into_iter().filter(|&count| count > 0).collect();
        assert_eq!(counts.len(), 10);
        assert!(counts.iter().all(|&count| (850..=1150).contains(&count)), "{counts:?}");
    }
}
