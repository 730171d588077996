//! Philox4x32 and the draws that codecs take from it, from the paper (Salmon et al., SC 2011).

use super::header::absorb;
use gradwire::{Source, StepKey};

/// One round: two products, their halves crossed over, and the key mixed in.
fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let product_0 = 0xd251_1f53_u64 * u64::from(counter[0]);
    let product_1 = 0xcd9e_8d57_u64 * u64::from(counter[2]);
    let high = |product: u64| (product >> 32) as u32;
    [
        high(product_1) ^ counter[1] ^ key[0],
        product_1 as u32,
        high(product_0) ^ counter[3] ^ key[1],
        product_0 as u32,
    ]
}

/// Philox4x32 with `rounds` rounds; the key moves on by the Weyl constants between them.
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2], rounds: u32) -> [u32; 4] {
    for _ in 0..rounds {
        counter = round(counter, key);
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// What draws are for: the upper two bits of the fourth word that the stream's key is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Stochastic rounding.
    Rounding = 0,
    /// Choice of coordinates.
    Selection = 1,
}

/// The draws of one key, unit and purpose.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    upper: [u32; 2],
}

impl Draws {
    /// Ten rounds turn (step, unit, source and purpose) under the seed into the key and the upper half of
    /// every counter.
    #[must_use]
    pub fn new(key: StepKey, unit: u32, purpose: Purpose) -> Self {
        let source = match key.source {
            Source::Rank(rank) => rank,
            Source::Shared => (1 << 30) - 1,
            other => panic!("the reference does not know {other:?}"),
        };
        let material = [key.step as u32, (key.step >> 32) as u32, unit, source | (purpose as u32) << 30];
        let [a, b, c, d] = philox(material, [key.seed as u32, (key.seed >> 32) as u32], 10);
        Self { key: [a, b], upper: [c, d] }
    }

    fn block(&self, i: u64) -> [u32; 4] {
        philox([i as u32, (i >> 32) as u32, self.upper[0], self.upper[1]], self.key, 7)
    }

    /// The 16-bit draw at position `i`: eight to a block, the low half of each word first.
    #[must_use]
    pub fn u16_at(&self, i: u64) -> u16 {
        let word = self.block(i / 8)[(i % 8 / 2) as usize];
        if i.is_multiple_of(2) { word as u16 } else { (word >> 16) as u16 }
    }

    /// The 64-bit draw at position `i`: two to a block, the low half first.
    #[must_use]
    pub fn u64_at(&self, i: u64) -> u64 {
        let block = self.block(i / 2);
        let [low, high] = if i.is_multiple_of(2) { [block[0], block[1]] } else { [block[2], block[3]] };
        u64::from(low) | u64::from(high) << 32
    }

    /// The integer below `bound` at position `i`: the upper half of a 64-bit draw times `bound`.
    #[must_use]
    pub fn below_at(&self, i: u64, bound: u64) -> u64 {
        ((u128::from(self.u64_at(i)) * u128::from(bound)) >> 64) as u64
    }

    /// Floyd's sample of `k` out of `len`: for each j from len − k on, a draw below j + 1, or j itself if
    /// that is taken.
    #[must_use]
    pub fn sample(&self, len: usize, k: usize) -> Vec<usize> {
        let mut taken = std::collections::BTreeSet::new();
        for (draw, j) in (len - k..len).enumerate() {
            let t = self.below_at(draw as u64, j as u64 + 1) as usize;
            if !taken.insert(t) {
                taken.insert(j);
            }
        }
        taken.into_iter().collect()
    }

    /// `k` out of `len` positions, which are rows of `columns`. They fill `width` columns of row after row,
    /// from the position that a draw below `len` says on. After the last row and column come the first.
    #[must_use]
    pub fn tile(&self, len: usize, k: usize, (columns, width): (usize, usize)) -> Vec<usize> {
        let first = self.below_at(0, len as u64) as usize;
        let position = |i: usize| {
            let (row, column) = (first / columns + i / width, first % columns + i % width);
            row % (len / columns) * columns + column % columns
        };
        let taken: std::collections::BTreeSet<usize> = (0..k).map(position).collect();
        taken.into_iter().collect()
    }

    /// An order of the numbers below `n`: a balanced network of six rounds, walked until it hits one of them.
    #[must_use]
    pub fn order(&self, n: usize) -> Vec<usize> {
        let digits = (0..).find(|digits| n <= 1 << digits).expect("n has 64 digits at the most");
        let half = u32::max(digits / 2 + digits % 2, 4);
        let keys: Vec<u64> = (0..6).map(|i| self.u64_at(i)).collect();
        let network = |i: usize| {
            let (mut left, mut right) = ((i >> half) as u64, (i % (1 << half)) as u64);
            for key in &keys {
                (left, right) = (right, left ^ absorb(*key, right) >> (64 - half));
            }
            ((left << half) + right) as usize
        };
        let place = |place: usize| {
            let mut i = network(place);
            while i >= n {
                i = network(i);
            }
            i
        };
        (0..n).map(place).collect()
    }
}
