//! The parameters of QSGD.

use crate::built::Full;
use crate::codec::UnitInput;
use crate::coding::values::Rounding;
use crate::kernels::scalar::{Strides, total_of};
use crate::rng::Stream;
use crate::wire::ids::CodecId;
use core::num::NonZeroU32;

/// 2⁻¹⁰⁰: below it levels / norm could overflow. Such a bucket is sent as zeros.
pub(crate) const LEAST_NORM: f32 = f32::from_bits((127 - 100) << 23);

/// The norm that scales a bucket: the key `norm=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Norm {
    /// Euclidean, as in the paper's theorems.
    L2 = 0,
    /// Largest magnitude, as in the paper's experiments: far less variance at equal width.
    #[default]
    Max = 1,
}

/// How levels are written: the key `entropy=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EntropyChoice {
    /// The smallest of `fixed`, `rans` and `adaptive` by exact bytes; ties go to the first. In packets,
    /// `adaptive`.
    #[default]
    Auto,
    /// Fields of equal width (five levels a byte at `bits=ternary`).
    Fixed,
    /// Elias omega codes, the paper's reference.
    Elias,
    /// Interleaved rANS over the unit's own level frequencies.
    Rans,
    /// The same with up to 16 tables. Each run of 64 levels uses the table that suits it, and the norms'
    /// exponents are coded: for gradients that are spread unevenly. A bucket of zeros costs next to nothing.
    /// Packets are too short for tables. There norms and levels are decisions of a range coder, under
    /// probabilities that adapt from level to level, which takes several times as long.
    Adaptive,
}

/// The number of levels, and so the width of a level.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LevelBits {
    /// A sign and `bits − 1` bits of magnitude: 2^(bits−1) − 1 levels per sign. 2 to 8.
    Bits(u8),
    /// One level per sign, five coordinates a byte.
    Ternary,
    /// This many levels per sign, 1 to 127. A level takes as many bits as the largest needs, and one for the
    /// sign. Needs the feature `full`.
    Levels(u8),
}

impl LevelBits {
    /// `bits` from 2 to 8, else `None`.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        (2..=8).contains(&bits).then_some(Self::Bits(bits))
    }

    /// `levels` per sign, from 1 to 127, otherwise `None`. The result is [`Bits`](Self::Bits) if `levels` is
    /// the most that some number of bits can hold: 1, 3, 7, …, 127.
    ///
    /// # Examples
    /// ```
    /// use gradwire::codecs::LevelBits;
    /// assert_eq!(LevelBits::of_levels(16), Some(LevelBits::Levels(16)));
    /// assert_eq!(LevelBits::of_levels(7), LevelBits::new(4));
    /// assert_eq!(LevelBits::of_levels(128), None);
    /// ```
    #[must_use]
    pub fn of_levels(levels: u8) -> Option<Self> {
        let counted = Self::Levels(levels);
        let width = counted.width();
        let bits = Self::Bits(width as u8);
        (1..=127).contains(&levels).then(|| if bits.levels() == u32::from(levels) { bits } else { counted })
    }

    /// Bits of a level in a field of fixed width, its sign included.
    #[must_use]
    pub fn width(self) -> u32 {
        match self {
            Self::Bits(bits) => u32::from(bits),
            Self::Ternary => 2,
            Self::Levels(levels) => u8::BITS - levels.leading_zeros() + 1,
        }
    }

    /// Levels per sign.
    #[must_use]
    pub fn levels(self) -> u32 {
        match self {
            Self::Levels(levels) => u32::from(levels),
            Self::Bits(_) | Self::Ternary => (1 << (self.width() - 1)) - 1,
        }
    }

    /// The same value, but without the cases that this build lacks. A small build refuses `Levels` before
    /// this call, and so drops the code for it.
    #[inline(always)]
    pub(super) fn built(self) -> Self {
        match self {
            Self::Levels(levels) if Full::build().is_none() => Self::Bits(levels),
            other => other,
        }
    }

    /// The number that bodies state if the width alone does not give it.
    pub(super) fn counted(self) -> Option<u8> {
        match self {
            Self::Levels(levels) if Full::build().is_some() => Some(levels),
            _ => None,
        }
    }
}

/// Where magnitudes are cut off: at this many standard deviations of a bucket, the key `sigmas=` of a
/// spelling.
///
/// With c = sigmas·σ, larger magnitudes are sent as c, and so the levels of the others are finer. σ² is the
/// mean of the squares less the square of the mean, in f64. A bucket whose mean is further from 0 than σ
/// has no tails to cut off, and is sent as it is: else one of equal values, or of one value, would be sent
/// as zeros.
///
/// # Source
/// Wen et al.: TernGrad (arXiv 1705.07878), section 3.2, with `sigmas` = 2.5. Nothing is left as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cutoff(u32);

impl Cutoff {
    /// `sigmas` above 0 and finite, else `None`.
    #[must_use]
    pub fn new(sigmas: f32) -> Option<Self> {
        (sigmas.is_finite() && sigmas > 0.0).then_some(Self(sigmas.to_bits()))
    }

    /// How many standard deviations.
    #[must_use]
    pub fn sigmas(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// c for `len` values of these sums and squares; infinite where nothing is cut off.
    pub(crate) fn largest(self, sums: Strides, squares: Strides, len: usize) -> f32 {
        let [mean, square] = [sums, squares].map(|sums| total_of(sums) / len as f64);
        let variance = square - mean * mean;
        let has_tails = variance >= mean * mean;
        if has_tails { (f64::from(self.sigmas()) * libm::sqrt(variance)) as f32 } else { f32::INFINITY }
    }
}

/// QSGD: buckets of consecutive coordinates, each scaled by its own norm R and rounded to multiples of R/s.
///
/// Unbiased with stochastic rounding, so it needs no error feedback: E‖Q − v‖² ≤ min(d/s², √d/s)·‖v‖² for the
/// Euclidean norm and d elements a bucket. With nearest rounding it is a contraction, and so takes error
/// feedback, if [`proves_contraction`](Self::proves_contraction) says so.
///
/// Buckets whose norm is below 2⁻¹⁰⁰, zero included, are sent as zeros.
///
/// # Source
/// Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD (arXiv 1610.02132), equation 4 and section 3.2. Elias codes
/// are the dense form, on level + 1. Ternary levels with norm `max`, a tensor a bucket and a [`Cutoff`] are
/// TernGrad's (Wen et al., arXiv 1705.07878); where all workers share the largest magnitude, as there, the
/// levels can be summed, and that is [`MaxNorm`](crate::codecs::MaxNorm).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qsgd {
    pub(super) bits: LevelBits,
    pub(super) bucket: NonZeroU32,
    pub(super) norm: Norm,
    pub(super) entropy: EntropyChoice,
    pub(super) rounding: Rounding,
    pub(super) cutoff: Option<Cutoff>,
}

impl Qsgd {
    /// Its number on the wire.
    pub(crate) const ID: CodecId = CodecId::new(5);

    /// Coordinates of a bucket by default.
    pub const DEFAULT_BUCKET: NonZeroU32 = NonZeroU32::new(512).unwrap();

    /// Stochastic rounding to `bits`, buckets of 512, norm `max`, entropy `auto`.
    #[must_use]
    pub fn new(bits: LevelBits) -> Self {
        let (norm, entropy, rounding) = Default::default();
        Self { bits, bucket: Self::DEFAULT_BUCKET, norm, entropy, rounding, cutoff: None }
    }

    /// With buckets of `bucket` coordinates.
    #[must_use]
    pub fn with_bucket(self, bucket: NonZeroU32) -> Self {
        Self { bucket, ..self }
    }

    /// With another norm.
    #[must_use]
    pub fn with_norm(self, norm: Norm) -> Self {
        Self { norm, ..self }
    }

    /// With another level coder.
    #[must_use]
    pub fn with_entropy(self, entropy: EntropyChoice) -> Self {
        Self { entropy, ..self }
    }

    /// With another rounding.
    #[must_use]
    pub fn with_rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// With large magnitudes cut off. They are under the norm `max` alone: with the Euclidean norm, nothing
    /// is. Needs the feature `full`.
    #[must_use]
    pub fn with_cutoff(self, cutoff: Option<Cutoff>) -> Self {
        Self { cutoff, ..self }
    }

    /// The number of levels.
    #[must_use]
    pub fn bits(&self) -> LevelBits {
        self.bits
    }

    /// Signed levels, as symbols.
    pub(super) fn alphabet(&self) -> usize {
        2 * self.bits.built().levels() as usize + 1
    }

    /// Coordinates of a bucket.
    #[must_use]
    pub fn bucket(&self) -> NonZeroU32 {
        self.bucket
    }

    /// The norm.
    #[must_use]
    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// The level coder.
    #[must_use]
    pub fn entropy(&self) -> EntropyChoice {
        self.entropy
    }

    /// Whether the pieces of a unit have norms and levels under context. They are too short for tables, and
    /// context lets a piece end at any coordinate.
    pub(super) fn cuts_anywhere(&self) -> bool {
        matches!(self.entropy, EntropyChoice::Auto | EntropyChoice::Adaptive)
    }

    /// The rounding.
    #[must_use]
    pub fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// Where magnitudes are cut off, if they are.
    #[must_use]
    pub fn cutoff(&self) -> Option<Cutoff> {
        self.cutoff.filter(|_| self.norm == Norm::Max)
    }

    /// Whether these parameters make a contraction, ‖C(v) − v‖² ≤ (1 − δ)·‖v‖² with δ > 0, with an exact
    /// error, as error feedback needs.
    ///
    /// Nearest rounding never moves a coordinate by more than its magnitude, because zero is a level. Under
    /// norm `max` the largest coordinate of each bucket is a level itself, so its whole energy is kept. Under
    /// the Euclidean norm the largest is at least R/√d. More than half of it is kept if it rounds at least to
    /// level 1, which 4·s² > d ensures. Stochastic rounding may send a small coordinate as a level far above
    /// it, and that error is not always an f32; nor is what is cut off.
    #[must_use]
    pub fn proves_contraction(&self) -> bool {
        let s = self.bits.built().levels();
        let keeps_the_largest = match self.norm {
            Norm::Max => true,
            Norm::L2 => 4 * s * s > self.bucket.get(),
        };
        self.has_exact_error() && keeps_the_largest
    }

    /// Whether the error of each coordinate is an f32.
    pub(super) fn has_exact_error(&self) -> bool {
        self.rounding == Rounding::Nearest && self.cutoff().is_none()
    }

    /// The draws of stochastic rounding; none for nearest.
    pub(super) fn draws(&self, input: &UnitInput<'_, '_>) -> Option<Stream> {
        (self.rounding == Rounding::Stochastic).then(|| input.key.rounding(input.unit.id))
    }
}
