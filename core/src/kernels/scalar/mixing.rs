//! Words that hold probabilities, weights of a mixture of them, and the logarithms of their odds.
//! `entropy::mixer` explains what mixtures are for.

/// Binary digits of a probability.
pub(crate) const P_BITS: u32 = 22;

/// Logarithms have seven binary places.
pub(crate) const PLACES: u32 = 7;

/// 128 · log₂ of `value`, which counts as 1 if it is 0: the place of its first digit, and the seven digits
/// after that.
#[inline(always)]
pub(crate) const fn log(value: u32) -> i32 {
    let digits = (value | (value == 0) as u32).ilog2();
    let behind = ((value as u64) << PLACES >> digits) as u32 % (1 << PLACES);
    (digits << PLACES | behind) as i32
}

/// Values of 1 − p in one range of this width are treated alike.
pub(crate) const COMPLEMENT_WIDTH: u32 = 1 << (P_BITS - 10);

/// Probabilities that are mixed.
pub(crate) const INPUTS: usize = 3;

/// A word holds P(1) in its upper 22 bits, and in the ten below them how often it was updated. A word of 0
/// was never updated.
pub(crate) type Word = u32;
pub(crate) const COUNT_BITS: u32 = 10;
pub(crate) const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Updates move probabilities towards targets that are this far from 0 and 1, out of 2²².
pub(crate) const LEAST: u32 = 64;
pub(crate) const MOST: u32 = (1 << P_BITS) - LEAST;

/// Factors by how often a word was updated. Upper half: how far an update moves the probability towards the
/// result, out of 2¹⁶: 1 / (count + 1.6). Lower half: how much the word counts, out of 2⁸: count / (count +
/// 1.5).
pub(crate) static OF_COUNT: [u32; 1 << COUNT_BITS] = {
    let mut of_count = [0; 1 << COUNT_BITS];
    let mut count = 0;
    while count < of_count.len() as u32 {
        let (rate, confidence) = (655_360 / (10 * count + 16), 512 * count / (2 * count + 3));
        of_count[count as usize] = rate << 16 | confidence;
        count += 1;
    }
    of_count
};

/// Weights have this many binary places, and begin at 0.35. In products they have fewer, so that sixteen bits
/// hold them.
pub(crate) const WEIGHT_BITS: u32 = 20;
const FIRST_WEIGHT: i32 = 367_002;
pub(crate) const WEIGHT_SHIFT: u32 = 6;

/// An error times a logarithm, shifted right by this many binary places, is the change of a weight. Errors
/// are halved first, so that sixteen bits hold them.
pub(crate) const LEARNING_SHIFT: u32 = 10;

/// One weight for each input, and one more that fills up a vector.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub(crate) struct Weights(pub(crate) [i32; INPUTS + 1]);

impl Default for Weights {
    fn default() -> Self {
        Self([FIRST_WEIGHT; INPUTS + 1])
    }
}

/// The word after a decision whose result was `bit`.
#[inline(always)]
pub(crate) fn updated(word: Word, bit: bool) -> Word {
    let (p, count) = (word >> COUNT_BITS, word & COUNT_MASK);
    let rate = u64::from(OF_COUNT[count as usize] >> 16);
    let step = |way: u32| ((u64::from(way) * rate) >> 16) as u32;
    let p = if bit { p + step(MOST - p) } else { p - step(p - LEAST) };
    p << COUNT_BITS | (count + u32::from(count < COUNT_MASK))
}
