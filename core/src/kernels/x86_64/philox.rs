//! The generator in registers: a turn makes as many blocks as a vector has 64-bit lanes.
//!
//! Words are in the lower halves of lanes. The upper halves hold leftovers of a product, which the next
//! product ignores. The lowest word of a position is a factor of one product of the first round, so that
//! product grows by a constant from turn to turn. Of the other three products of the first two rounds, two
//! change only with the higher word.

use crate::rng::stream::{CONSTANTS, DRAW_ROUNDS, Stream};
use core::arch::x86_64::*;

const ROUNDS: usize = DRAW_ROUNDS as usize;

/// What each round adds to words 0 and 2.
fn round_keys(stream: &Stream) -> [[u32; 2]; ROUNDS] {
    let ([key, _], [_, weyl]) = (stream.words(), CONSTANTS);
    core::array::from_fn(|round| [0, 1].map(|i| key[i].wrapping_add(weyl[i].wrapping_mul(round as u32))))
}

macro_rules! blocks {
    ($(#[$meta:meta])* $name:ident, $vector:ident, $feature:literal, $lanes:expr,
        [$set:ident, $add:ident, $multiply:ident, $xor:ident, $and:ident, $shift_right:ident, $shuffle:ident]) => {
        $(#[$meta])*
        pub(super) struct $name {
            /// Where the next turn begins.
            position: u64,
            /// Turns until the higher word of a position changes.
            left: u64,
            /// The product of the lowest word in the first round, and the amount that a turn adds to it.
            product: $vector,
            growth: $vector,
            multipliers: [$vector; 2],
            /// What each round adds to words 0 and 2, and in the first two all else that is the same in every
            /// block.
            keys: [[$vector; 2]; ROUNDS],
            /// The amounts that the second and the third round add to word 2 while the higher word stays.
            second: $vector,
            third: $vector,
        }

        impl $name {
            /// Blocks of a turn.
            const LANES: u64 = (size_of::<$vector>() / 8) as u64;

            /// From block `position` on.
            #[inline]
            #[target_feature(enable = $feature)]
            pub(super) fn from(stream: &Stream, position: u64) -> Self {
                let ([_, upper], [multipliers, _]) = (stream.words(), CONSTANTS);
                let set = |word: u32| $set(i64::from(word));
                let mut words = round_keys(stream);
                let same = u64::from(multipliers[1]) * u64::from(upper[0]);
                words[0][0] ^= (same >> 32) as u32;
                words[0][1] ^= upper[1];
                words[1][0] ^= same as u32;
                let mut keys = [[set(0); 2]; ROUNDS];
                for (keys, words) in keys.iter_mut().zip(words) {
                    *keys = [set(words[0]), set(words[1])];
                }
                let mut blocks = Self {
                    position,
                    left: 0,
                    product: set(0),
                    growth: $set((Self::LANES * u64::from(multipliers[0])) as i64),
                    multipliers: [set(multipliers[0]), set(multipliers[1])],
                    keys,
                    second: set(0),
                    third: set(0),
                };
                blocks.take_higher_word();
                blocks
            }

            #[target_feature(enable = $feature)]
            fn take_higher_word(&mut self) {
                let positions = $add($set(self.position as i64), $lanes);
                self.product = $multiply(positions, self.multipliers[0]);
                let word = $xor($shift_right::<32>(positions), self.keys[0][0]);
                let product = $multiply(word, self.multipliers[0]);
                self.second = $xor($shift_right::<32>(product), self.keys[1][1]);
                self.third = $xor(product, self.keys[2][1]);
                // If it changes inside a turn, that turn is computed alone.
                self.left = (((1 << 32) - (self.position & 0xffff_ffff)) / Self::LANES).max(1);
            }

            /// Words 0 and 1 of the next blocks, and words 2 and 3, a block a lane: the first half of the
            /// blocks in even lanes, the others in odd ones.
            #[inline]
            #[target_feature(enable = $feature)]
            pub(super) fn turn(&mut self) -> [$vector; 2] {
                if self.left == 0 {
                    self.take_higher_word();
                }
                self.left -= 1;
                self.position = self.position.wrapping_add(Self::LANES);
                let (keys, multipliers) = (&self.keys, &self.multipliers);
                let a = self.product;
                self.product = $add(a, self.growth);
                let b = $multiply($xor($shift_right::<32>(a), keys[0][1]), multipliers[1]);
                let mut w0 = $xor($shift_right::<32>(b), keys[1][0]);
                let mut w2 = $xor(a, self.second);
                let (mut with_w1, mut with_w3) = ($xor(b, keys[2][0]), self.third);
                for next in &keys[3..] {
                    let a = $multiply(w0, multipliers[0]);
                    let b = $multiply(w2, multipliers[1]);
                    w0 = $xor($shift_right::<32>(b), with_w1);
                    w2 = $xor($shift_right::<32>(a), with_w3);
                    (with_w1, with_w3) = ($xor(b, next[0]), $xor(a, next[1]));
                }
                let a = $multiply(w0, multipliers[0]);
                let b = $multiply(w2, multipliers[1]);
                // A product with its halves exchanged is both words, except for the amount added to the lower
                // one.
                let lower = $set(0xffff_ffff);
                [
                    $xor($shuffle::<0xb1>(b), $and(with_w1, lower)),
                    $xor($shuffle::<0xb1>(a), $and(with_w3, lower)),
                ]
            }
        }
    };
}

blocks! {
    /// Four blocks a turn.
    Avx2Blocks, __m256i, "avx2", _mm256_setr_epi64x(0, 2, 1, 3),
    [_mm256_set1_epi64x, _mm256_add_epi64, _mm256_mul_epu32, _mm256_xor_si256, _mm256_and_si256, _mm256_srli_epi64,
        _mm256_shuffle_epi32]
}

blocks! {
    /// Eight blocks a turn.
    Avx512Blocks, __m512i, "avx512f,avx512bw,avx512dq,avx512vl", _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
    [_mm512_set1_epi64, _mm512_add_epi64, _mm512_mul_epu32, _mm512_xor_si512, _mm512_and_si512, _mm512_srli_epi64,
        _mm512_shuffle_epi32]
}
