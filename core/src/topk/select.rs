//! Which k coordinates: exact, in linear time whatever the input, ties to the lowest index.

use crate::kernels::scalar::MAGNITUDE;

/// Where a selection cuts: everything above `magnitude`, and the first `ties` coordinates of exactly that magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    magnitude: u32,
    ties: usize,
}

/// Digits of a magnitude's 31 bits, highest first, as (shift, bits).
const DIGITS: [(u32, u32); 4] = [(23, 8), (15, 8), (7, 8), (0, 7)];

/// The cut that leaves the `k` largest magnitudes, or all that are not zero where these are fewer.
///
/// Radix selection: the histogram of the highest digit says in which of its values the k-th largest lies; the next
/// digit is counted among those alone, and so on. Four reads of `p` at the most, no data-dependent worst case.
pub(super) fn cut(p: &[u32], k: usize) -> Cut {
    let mut prefix = 0u32;
    let mut decided = 0u32;
    let mut wanted = k;
    for (shift, bits) in DIGITS {
        let counts = histogram(p, prefix, decided, shift, bits);
        let (digit, above) = digit_of_rank(&counts, wanted);
        wanted -= above;
        prefix |= (digit as u32) << shift;
        decided |= ((1 << bits) - 1) << shift;
    }
    if prefix == 0 { Cut { magnitude: 1, ties: usize::MAX } } else { Cut { magnitude: prefix, ties: wanted } }
}

/// Counts one digit of the magnitudes that agree with `prefix` in the bits of `decided`.
fn histogram(p: &[u32], prefix: u32, decided: u32, shift: u32, bits: u32) -> [usize; 256] {
    let mut counts = [0; 256];
    let mask = (1 << bits) - 1;
    for &value in p {
        let magnitude = value & MAGNITUDE;
        if magnitude & decided == prefix {
            counts[(magnitude >> shift & mask) as usize] += 1;
        }
    }
    counts
}

/// The digit that the `wanted`-th largest has, and how many have a larger one; digit 0 if there are not that many.
fn digit_of_rank(counts: &[usize; 256], wanted: usize) -> (usize, usize) {
    let mut above = 0;
    for digit in (1..counts.len()).rev() {
        if above + counts[digit] >= wanted {
            return (digit, above);
        }
        above += counts[digit];
    }
    (0, above)
}

/// Writes the positions that the cut selects to the front of `indices`, ascending; returns how many.
pub(super) fn gather(p: &[u32], cut: Cut, indices: &mut [u32]) -> usize {
    let mut ties = cut.ties;
    let mut count = 0;
    for (i, &value) in p.iter().enumerate() {
        let magnitude = value & MAGNITUDE;
        let is_tie = magnitude == cut.magnitude && ties > 0;
        if magnitude > cut.magnitude || is_tie {
            ties -= usize::from(is_tie);
            indices[count] = i as u32;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    /// Sort by magnitude, ties by index; zeros are never taken.
    fn naive(p: &[u32], k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..p.len() as u32).filter(|&i| p[i as usize] & MAGNITUDE != 0).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(p[i as usize] & MAGNITUDE), i));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    fn selected(p: &[u32], k: usize) -> Vec<u32> {
        let mut indices = vec![0; k];
        let count = gather(p, cut(p, k), &mut indices);
        indices.truncate(count);
        indices
    }

    proptest! {
        #[test]
        fn selection_is_the_naive_one(
            p in proptest::collection::vec(prop_oneof![any::<u32>(), 0u32..4, Just(0x8000_0000u32), Just(0x3f80_0000)], 1..300),
            k in 1usize..300,
        ) {
            let k = k.min(p.len());
            prop_assert_eq!(selected(&p, k), naive(&p, k));
        }
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_zeros_stay() {
        let p = [2.0f32, -2.0, 0.0, 2.0, -0.0, 1.0].map(f32::to_bits);
        assert_eq!(selected(&p, 2), [0, 1]);
        assert_eq!(selected(&p, 3), [0, 1, 3]);
        assert_eq!(selected(&p, 6), [0, 1, 3, 5]);
        assert_eq!(selected(&[0.0f32.to_bits(); 4], 2), Vec::<u32>::new());
    }
}
