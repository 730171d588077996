//! Streams of draws, from Philox4x32 with seven rounds.
//!
//! A draw depends only on (seed, step, unit, source, purpose, position). So it does not depend on vector
//! width, thread count or earlier draws, and a resumed run needs no hidden counter.

use crate::built::Full;
use core::convert::Infallible;
use rand_core::{Rng, SeedableRng, TryRng};

/// Multipliers and Weyl constants of Philox4x32.
const MULTIPLIER: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Multipliers and Weyl constants, for kernels.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const CONSTANTS: [[u32; 2]; 2] = [MULTIPLIER, WEYL];

/// Rounds for the draws: the fewest that the authors found to pass BigCrush.
pub(crate) const DRAW_ROUNDS: u32 = 7;
/// Rounds for deriving a stream from its key: the authors' default, which has a margin. It runs only once a
/// stream.
const KEY_ROUNDS: u32 = 10;

/// The Philox4x32 bijection: 128 bits of counter to 128 bits of output under a 64-bit key.
///
/// # Source
/// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), section 4.3.
#[inline]
pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2], rounds: u32) -> [u32; 4] {
    for round in 0..rounds {
        if round > 0 {
            key[0] = key[0].wrapping_add(WEYL[0]);
            key[1] = key[1].wrapping_add(WEYL[1]);
        }
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// [`philox`] with the rounds of a draw, on eight counters at once: `words[w][lane]` is word `w` of a
/// counter.
#[inline(always)]
fn philox_lanes(words: &mut [[u32; 8]; 4], mut key: [u32; 2]) {
    for round in 0..DRAW_ROUNDS {
        if round > 0 {
            key[0] = key[0].wrapping_add(WEYL[0]);
            key[1] = key[1].wrapping_add(WEYL[1]);
        }
        let [w0, w1, w2, w3] = *words;
        for lane in 0..8 {
            let a = u64::from(MULTIPLIER[0]) * u64::from(w0[lane]);
            let b = u64::from(MULTIPLIER[1]) * u64::from(w2[lane]);
            words[0][lane] = (b >> 32) as u32 ^ w1[lane] ^ key[0];
            words[1][lane] = b as u32;
            words[2][lane] = (a >> 32) as u32 ^ w3[lane] ^ key[1];
            words[3][lane] = a as u32;
        }
    }
}

/// The use of the draws of a stream. Two purposes of one key never share a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Stochastic rounding: draw `i` belongs to coordinate `i` of the unit.
    Rounding = 0,
    /// Choice of coordinates: draw `j` belongs to step `j` of the sampler.
    Selection = 1,
    /// For callers: initial weights, shuffles, masks.
    Caller = 2,
    /// For codecs of other crates.
    Experiment = 3,
}

/// A random-access stream of draws.
///
/// Streams of one seed differ in the Philox key or in the upper half of the counter, because both come from a
/// bijection of (step, unit, source and purpose): they never overlap, and none is a shift or a permutation of
/// another. Streams of different seeds are unrelated.
///
/// # Determinism
/// Integer arithmetic only: the same on every platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    upper: [u32; 2],
    position: u64,
}

impl Stream {
    /// `source` is the rank, or `u32::MAX >> 2` for draws that all ranks share. Only its lower 30 bits count.
    /// The upper two hold the purpose, so that 128 bits of key material go through the bijection unhashed.
    pub(crate) fn new(seed: u64, step: u64, unit: u32, source: u32, purpose: Purpose) -> Self {
        let tail = (source & (u32::MAX >> 2)) | ((purpose as u32) << 30);
        let material = [step as u32, (step >> 32) as u32, unit, tail];
        let derived = philox(material, [seed as u32, (seed >> 32) as u32], KEY_ROUNDS);
        Self { key: [derived[0], derived[1]], upper: [derived[2], derived[3]], position: 0 }
    }

    /// The Philox key and the upper half of the counter, for kernels.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn words(&self) -> [[u32; 2]; 2] {
        [self.key, self.upper]
    }

    /// Block `i` of the stream: 128 random bits as four words.
    #[inline]
    #[must_use]
    pub fn block(&self, i: u64) -> [u32; 4] {
        philox([i as u32, (i >> 32) as u32, self.upper[0], self.upper[1]], self.key, DRAW_ROUNDS)
    }

    /// The 64-bit draw at position `i`: words 0 and 1 (even `i`) or 2 and 3 (odd `i`) of block `i / 2`.
    #[must_use]
    pub fn u64_at(&self, i: u64) -> u64 {
        self.u64_pair(i / 2)[(i % 2) as usize]
    }

    /// The eight 16-bit draws of positions `8·i … 8·i + 7`: word `w` of block `i` holds draws `2·w` (low
    /// half) and `2·w + 1` (high half).
    #[inline]
    #[must_use]
    pub fn u16x8_at(&self, i: u64) -> [u16; 8] {
        let words = self.block(i);
        core::array::from_fn(|j| (words[j / 2] >> (16 * (j % 2))) as u16)
    }

    /// The definition of [`fill_u16`](Self::fill_u16).
    ///
    /// Eight blocks at a time, word by word, so that the products of a round fill vector registers.
    #[inline(always)]
    pub(crate) fn fill_u16_plainly(&self, first: u64, draws: &mut [u16]) {
        if Full::build().is_none() {
            // A small machine has no vectors to fill, so a small build reuses the code for one block.
            for (i, draws) in draws.chunks_mut(8).enumerate() {
                draws.copy_from_slice(&self.u16x8_at(first.wrapping_add(i as u64))[..draws.len()]);
            }
            return;
        }
        const LANES: usize = 8;
        let mut block = first;
        for draws in draws.chunks_mut(8 * LANES) {
            let mut words = [[0u32; LANES]; 4];
            for lane in 0..LANES {
                let i = block.wrapping_add(lane as u64);
                words[0][lane] = i as u32;
                words[1][lane] = (i >> 32) as u32;
                words[2][lane] = self.upper[0];
                words[3][lane] = self.upper[1];
            }
            philox_lanes(&mut words, self.key);
            for (lane, draws) in draws.chunks_mut(8).enumerate() {
                for (j, draw) in draws.iter_mut().enumerate() {
                    *draw = (words[j / 2][lane] >> (16 * (j % 2))) as u16;
                }
            }
            block = block.wrapping_add(LANES as u64);
        }
    }

    /// The 64-bit draws at positions `2·block` and `2·block + 1`.
    pub(crate) fn u64_pair(&self, block: u64) -> [u64; 2] {
        let words = self.block(block);
        [0, 2].map(|i| u64::from(words[i]) | u64::from(words[i + 1]) << 32)
    }

    /// A draw scaled to an integer below `bound`: the upper half of draw × bound.
    pub(crate) fn scaled(draw: u64, bound: u64) -> u64 {
        ((u128::from(draw) * u128::from(bound)) >> 64) as u64
    }

    /// An integer below `bound` from the 64-bit draw at position `i`, as the upper half of draw × bound. No
    /// value is more than `bound`/2⁶⁴ likelier than another.
    #[must_use]
    pub fn below_at(&self, i: u64, bound: u64) -> u64 {
        Self::scaled(self.u64_at(i), bound)
    }
}

impl TryRng for Stream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_u64() as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let draw = self.u64_at(self.position);
        self.position = self.position.wrapping_add(1);
        Ok(draw)
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        for chunk in dst.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

impl SeedableRng for Stream {
    type Seed = [u8; 8];

    fn from_seed(seed: [u8; 8]) -> Self {
        Self::new(u64::from_le_bytes(seed), 0, 0, 0, Purpose::Caller)
    }
}
