//! QSGD: every coordinate rounded to one of a few levels of its bucket's norm.

mod context;
mod encode;
mod levels;
mod norms;
mod pack;
mod pieces;
mod quantize;
#[cfg(feature = "alloc")]
mod rewrite;
mod spelling;
mod view;

use crate::codec::{Body, Capabilities, Cut, EncodeUnit, Law, UnitInput};
use crate::coding::values::Rounding;
use crate::error::EncodeError;
use crate::rng::Stream;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::CodecId;
use crate::wire::writer::Writer;
use core::num::NonZeroU32;

pub(crate) use encode::LEAST_NORM;
pub(crate) use view::LevelsFields;

/// The norm that scales a bucket: the key `norm=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Norm {
    /// Euclidean: what the paper's theorems use.
    L2 = 0,
    /// Largest magnitude: far less variance at equal width, what the paper's experiments use.
    #[default]
    Max = 1,
}

/// How levels are written: the key `entropy=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EntropyChoice {
    /// The smallest of `fixed`, `rans` and `adaptive` by exact bytes; ties go to the first. In packets, `adaptive`.
    #[default]
    Auto,
    /// Fields of equal width (five levels a byte at `bits=ternary`).
    Fixed,
    /// Elias omega codes, the paper's reference.
    Elias,
    /// Interleaved rANS over the unit's own level frequencies.
    Rans,
    /// The same with up to 16 tables, of which each 64 levels have the one that suits them, and with the norms' exponents
    /// coded: for gradients that are spread unevenly. A bucket of zeros costs next to nothing. In packets, which are too
    /// short for tables, norms and levels are decisions of a range coder under probabilities that adapt from level to level:
    /// several times as slow.
    Adaptive,
}

/// Width of a level.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LevelBits {
    /// A sign and `bits − 1` bits of magnitude: 2^(bits−1) − 1 levels per sign. 2 to 8.
    Bits(u8),
    /// One level per sign, five coordinates a byte.
    Ternary,
}

impl LevelBits {
    /// `bits` from 2 to 8, else `None`.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        (2..=8).contains(&bits).then_some(Self::Bits(bits))
    }

    /// Bits of a field of fixed width.
    fn field_bits(self) -> u32 {
        match self {
            Self::Bits(bits) => u32::from(bits),
            Self::Ternary => 2,
        }
    }

    /// Levels per sign.
    #[must_use]
    pub fn levels(self) -> u32 {
        (1 << (self.field_bits() - 1)) - 1
    }
}

/// QSGD: buckets of consecutive coordinates, each scaled by its own norm R and rounded to multiples of R/s.
///
/// Unbiased with stochastic rounding, so it needs no error feedback: E‖Q − v‖² ≤ min(d/s², √d/s)·‖v‖² for the
/// Euclidean norm and d elements a bucket. With nearest rounding it is a contraction wherever
/// [`proves_contraction`](Self::proves_contraction) says so, and takes error feedback.
///
/// Buckets whose norm is below 2⁻¹⁰⁰ (and those of a norm of zero) are sent as zeros.
///
/// # Source
/// Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD (arXiv 1610.02132), equation 4 and section 3.2; ternary levels
/// with norm `max` are TernGrad's (Wen et al., arXiv 1705.07878) without clipping. Elias codes are the dense form, on
/// level + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qsgd {
    bits: LevelBits,
    bucket: NonZeroU32,
    norm: Norm,
    entropy: EntropyChoice,
    rounding: Rounding,
}

impl Qsgd {
    /// Its number on the wire.
    pub(crate) const ID: CodecId = CodecId::new(5);

    /// Coordinates of a bucket unless told otherwise.
    pub const DEFAULT_BUCKET: NonZeroU32 = NonZeroU32::new(512).unwrap();

    /// Stochastic rounding to `bits`, buckets of 512, norm `max`, entropy `auto`.
    #[must_use]
    pub fn new(bits: LevelBits) -> Self {
        let (norm, entropy, rounding) = Default::default();
        Self { bits, bucket: Self::DEFAULT_BUCKET, norm, entropy, rounding }
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

    /// Width of a level.
    #[must_use]
    pub fn bits(&self) -> LevelBits {
        self.bits
    }

    /// Signed levels, as symbols.
    fn alphabet(&self) -> usize {
        2 * self.bits.levels() as usize + 1
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

    /// Whether a piece of a unit has norms and levels under context: it is too short for tables, and may be cut anywhere.
    pub(crate) fn cuts_anywhere(&self) -> bool {
        matches!(self.entropy, EntropyChoice::Auto | EntropyChoice::Adaptive)
    }

    /// The rounding.
    #[must_use]
    pub fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// Whether these parameters make a contraction, ‖C(v) − v‖² ≤ (1 − δ)·‖v‖² with δ > 0, whose error is exact, as
    /// error feedback needs.
    ///
    /// Nearest rounding never moves a coordinate by more than its magnitude, because zero is a level. Under norm `max`
    /// the largest coordinate of each bucket is a level itself, so its whole energy is kept. Under the Euclidean
    /// norm the largest is at least R/√d, and is kept to more than half where that rounds to level 1: 4·s² > d.
    /// Stochastic rounding may send a small coordinate as a level far above it, whose error is not a float.
    #[must_use]
    pub fn proves_contraction(&self) -> bool {
        let s = self.bits.levels();
        let keeps_the_largest = match self.norm {
            Norm::Max => true,
            Norm::L2 => 4 * s * s > self.bucket.get(),
        };
        self.rounding == Rounding::Nearest && keeps_the_largest
    }

    /// The draws of stochastic rounding; none for nearest.
    fn draws(&self, input: &UnitInput<'_, '_>) -> Option<Stream> {
        (self.rounding == Rounding::Stochastic).then(|| input.key.rounding(input.unit.id))
    }
}

impl EncodeUnit for Qsgd {
    fn capabilities(&self) -> Capabilities {
        let is_small = matches!(self.bits, LevelBits::Bits(_)) && self.norm == Norm::Max;
        Capabilities {
            // Stochastic rounding may send a small coordinate as a level far above it, whose error is not a float.
            law: if self.rounding == Rounding::Nearest { Law::Exact } else { Law::NotKept },
            needs_full: !is_small || self.entropy != EntropyChoice::Fixed,
            ..Capabilities::new(Self::ID, LevelsFields::KIND)
        }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        encode::max_body_bytes(self, len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        encode::scratch_len(self, len)
    }

    fn overflow_bound(&self) -> f32 {
        quantize::overflow_bound(self)
    }

    fn as_cut(&self) -> Option<&dyn Cut> {
        Some(self)
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let stream = self.draws(&input);
        encode::Body::new(self, stream, len, scratch.words, scratch.bytes).write(input, writer)
    }
}
