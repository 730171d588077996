//! Seeded draws for initial weights and shuffles, from the generator that the codecs draw from.
//!
//! Never the tensor library's generator: it is a single stream behind a process-wide lock, so two workers in
//! one process would take each other's numbers.

use gradwire::random::Stream;
use gradwire::{Source, StepKey};

/// The use of a stream of draws. Streams of different purposes are unrelated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights; `step` is the number of the tensor.
    Weights = 1,
    /// Order of the training items; `step` is the epoch.
    Shuffle = 2,
    /// Where the training windows of a text begin; `step` is the epoch.
    Offset = 3,
    /// What dropout drops; `step` is the step.
    Dropout = 4,
    /// How training images are moved and mirrored; `step` is the epoch, and the rank the image.
    Augment = 5,
    /// Which messages of a simulated cluster are lost.
    Loss = 6,
}

/// A stream of pseudo-random numbers that depends only on its key.
///
/// # Determinism
///
/// Integer arithmetic and exact conversions only: the same numbers on every machine.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::rng::{Draws, Purpose};
///
/// let mut draws = Draws::new(7, Purpose::Shuffle, 0, 0);
/// let mut order: Vec<u32> = (0..10).collect();
/// draws.shuffle(&mut order);
///
/// let mut again: Vec<u32> = (0..10).collect();
/// Draws::new(7, Purpose::Shuffle, 0, 0).shuffle(&mut again);
/// assert_eq!(order, again);
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    stream: Stream,
    position: u64,
}

impl Draws {
    /// The stream of this key.
    ///
    /// `rank` is 0 for draws that all workers share.
    pub fn new(seed: u64, purpose: Purpose, step: u64, rank: u32) -> Self {
        let key = StepKey { seed, step, source: Source::Rank(rank) };
        Self { stream: key.stream(purpose as u32), position: 0 }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let word = self.stream.u64_at(self.position);
        self.position = self.position.wrapping_add(1);
        word
    }

    /// Uniform in [0, 1): a multiple of 2^-24.
    pub fn uniform_f32(&mut self) -> f32 {
        // 24 bits fit the significand, so the conversion and the scaling are exact.
        (self.next_u64() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    /// Nearly normal, mean 0 and deviation 1: the sum of twelve uniform numbers, less six.
    ///
    /// Never farther than 6 from zero. A logarithm would give longer tails and different bits on different
    /// platforms.
    pub fn normal_f32(&mut self) -> f32 {
        let sum: i64 = (0..6).map(|_| self.next_u64()).map(|word| halves(word)[0] + halves(word)[1]).sum();
        // Twelve numbers below 2^32, each half a unit below the middle of its cell.
        let centred = 2 * sum + 12 - (12 << 32);
        (centred as f64 * (1.0 / 8_589_934_592.0)) as f32
    }

    /// Uniform in `0..n`, without bias.
    ///
    /// # Panics
    ///
    /// If `n` is zero.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "below(0) has no value to give");
        let n = n as u64;
        // Multiply and take the high half; reject the low halves that would favour some values.
        let rejected = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= rejected {
                return (product >> 64) as usize;
            }
        }
    }

    /// Puts the slice into a uniformly drawn order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for last in (1..slice.len()).rev() {
            slice.swap(last, self.below(last + 1));
        }
    }
}

fn halves(word: u64) -> [i64; 2] {
    [(word >> 32) as i64, (word & 0xffff_ffff) as i64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64) -> Draws {
        Draws::new(seed, Purpose::Weights, 0, 0)
    }

    #[test]
    fn first_numbers_stay_as_they_are() {
        let mut stream = draws(1);
        let words: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
        assert_eq!(words, PINNED);
    }

    const PINNED: [u64; 3] = [1_145_070_390_857_188_912, 5_327_351_930_863_881_870, 47_757_516_671_542_930];

    #[test]
    fn every_part_of_the_key_matters() {
        let keys = [
            draws(1),
            draws(2),
            Draws::new(1, Purpose::Shuffle, 0, 0),
            Draws::new(1, Purpose::Weights, 1, 0),
            Draws::new(1, Purpose::Weights, 0, 1),
        ];
        let mut firsts: Vec<u64> = keys.into_iter().map(|mut stream| stream.next_u64()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 5);
    }

    #[test]
    fn uniform_and_normal_have_their_moments() {
        let mut stream = draws(3);
        let n = 100_000;
        let (mut sum, mut squares, mut uniform) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let normal = f64::from(stream.normal_f32());
            sum += normal;
            squares += normal * normal;
            let u = stream.uniform_f32();
            assert!((0.0..1.0).contains(&u));
            uniform += f64::from(u);
        }
        let n = f64::from(n);
        // Five standard errors: 1/sqrt(n), sqrt(2/n), 1/sqrt(12 n).
        assert!((sum / n).abs() < 0.016, "mean {}", sum / n);
        assert!((squares / n - 1.0).abs() < 0.023, "variance {}", squares / n);
        assert!((uniform / n - 0.5).abs() < 0.005, "mean of uniform {}", uniform / n);
    }

    #[test]
    fn below_is_even_and_in_range() {
        let mut stream = draws(4);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[stream.below(7)] += 1;
        }
        // Five deviations of a binomial with n = 70,000 and p = 1/7.
        assert!(counts.iter().all(|&count| (9_540..=10_460).contains(&count)), "{counts:?}");
        assert_eq!(stream.below(1), 0);
    }

    #[test]
    fn shuffle_keeps_every_element() {
        let mut order: Vec<usize> = (0..1_000).collect();
        draws(5).shuffle(&mut order);
        assert_ne!(order, (0..1_000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    }
}
