//! QSGD with one range that all workers share, so that all-reduce may sum levels as integers.

mod fields;
mod rounds;
mod scales;
mod spelling;

use crate::codec::{Capabilities, EncodeUnit, UnitInput};
use crate::codecs::qsgd::{Cutoff, EntropyChoice, LevelBits, Norm, Qsgd};
use crate::coding::values::Rounding;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::num::NonZeroU32;

/// Rounding to multiples of R/s, where R is the largest magnitude of the unit over *all* workers.
///
/// Two rounds: R by a maximum over one f32, then the sum of the levels. Each level, plus s, takes a field of
/// bitlen(2·N·s) bits. An i32 holds as many fields as fit its 31 lower bits. The sum over N workers always
/// fits its field. So neither fields nor words overflow, whatever the gradients. At N = 4 and 4 bits that is
/// 5 coordinates a word, 6.4 bits each, where f32 takes 32. A unit whose R is below 2⁻¹⁰⁰ is sent as zeros.
///
/// **Rounding.** Stochastic rounding is unbiased and takes no error feedback. Rounding to nearest takes it:
/// what is kept, p − fl(R/s)·level, is an f32 and at most R/2s, so that R stays below twice the largest
/// gradient.
///
/// **Two scales.** With [fine](Self::with_fine_bits) levels, of which s' span R, a coordinate is rounded to
/// multiples of R/s' where *every* worker has fl(|p|·fl(s'/R)) ≤ s; its level then still fits the field of a
/// coarse one. One more round, between the two, finds these coordinates by a bitwise and of one bit a
/// coordinate. The bit does not depend on the draw that rounds, so both scales are unbiased.
///
/// **One block a step.** With a [density](Self::with_density), a step sends k = round(density·len)
/// coordinates, and R is the largest magnitude of those. An order of all coordinates, the same at every rank,
/// is cut into ⌈len/k⌉ blocks; the last one begins at place len − k. Step t takes block t mod ⌈len/k⌉ of the
/// order of sweep ⌊t / ⌈len/k⌉⌋, so a sweep reaches every coordinate. Each sweep has an order of its own. The
/// other coordinates stay in the residual, and without one they are zero in the mean. Values are not scaled.
///
/// **A cutoff.** With a [cutoff](Self::with_cutoff), each worker's part in R is its largest magnitude, but no
/// more than its c. What is larger than R has the largest level. So a worker whose c is below R cuts off less
/// than it would alone. With one level and a tensor a unit this is TernGrad with a shared scaler.
///
/// A frame holds what one worker alone would contribute. It is the frame of [`Qsgd`] with one bucket and norm
/// `max`. With fine levels or a density there are no frames.
///
/// # Determinism
/// Draw i of the stream of (seed, step, unit, rank) rounds coordinate i of the unit, or, with a density, the
/// i-th of those that are sent, in ascending order. The order is a permutation from the shared stream of
/// (seed, sweep, unit).
///
/// # Source
/// Mao et al.: Unbiased Single-scale and Multi-scale Quantizers for Distributed Optimization (arXiv
/// 2109.12497): `QSGDMaxNorm`, `GlobalRandKMaxNorm`, and the multi-scale quantiser with two scales.
/// Differences: s = 2^(bits−1) − 1 if bits are given; fields are wide enough for the sum, which overflows the
/// authors' int8 all-reduce; their biased quantiser rounds down; their mask follows from the rounded levels,
/// which biases it; and what their random block does not send stays local, so that their replicas drift
/// apart. Wen et al.: TernGrad (arXiv 1705.07878), sections 3.2 and 3.3, for the cutoff and the scaler that
/// all share. There, each worker cuts off at its own c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxNorm {
    bits: LevelBits,
    fine: Option<u8>,
    density: Option<Density>,
    rounding: Rounding,
    cutoff: Option<Cutoff>,
}

impl MaxNorm {
    /// The most bits of fine levels.
    pub const MAX_FINE_BITS: u8 = 16;

    /// `bits` from 2 to 8, else `None`; stochastic rounding, one scale, all coordinates.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        LevelBits::new(bits).map(Self::of)
    }

    /// `levels` per sign, from 1 to 127, else `None`.
    #[must_use]
    pub fn of_levels(levels: u8) -> Option<Self> {
        LevelBits::of_levels(levels).map(Self::of)
    }

    fn of(bits: LevelBits) -> Self {
        Self { bits, fine: None, density: None, rounding: Rounding::Stochastic, cutoff: None }
    }

    /// With a second scale, of which 2^(bits−1) − 1 levels per sign span R. `None` unless it has more levels
    /// than the first, and at most [`MAX_FINE_BITS`](Self::MAX_FINE_BITS).
    #[must_use]
    pub fn with_fine_bits(self, bits: u8) -> Option<Self> {
        let is_finer = bits <= Self::MAX_FINE_BITS && u32::from(bits) > self.bits.width();
        is_finer.then_some(Self { fine: Some(bits), ..self })
    }

    /// One block of coordinates a step.
    #[must_use]
    pub fn with_density(self, density: Density) -> Self {
        Self { density: Some(density), ..self }
    }

    /// With another rounding.
    #[must_use]
    pub fn with_rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// With large magnitudes cut off. What is cut off is lost, so no memory may be lent.
    #[must_use]
    pub fn with_cutoff(self, cutoff: Option<Cutoff>) -> Self {
        Self { cutoff, ..self }
    }

    /// The number of levels per sign of one worker.
    #[must_use]
    pub fn bits(&self) -> LevelBits {
        self.bits
    }

    /// The bits of the second scale, if there is one.
    #[must_use]
    pub fn fine_bits(&self) -> Option<u8> {
        self.fine
    }

    /// The share of the coordinates that a step sends, if it does not send all.
    #[must_use]
    pub fn density(&self) -> Option<Density> {
        self.density
    }

    /// The rounding.
    #[must_use]
    pub fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// Where magnitudes are cut off, if they are.
    #[must_use]
    pub fn cutoff(&self) -> Option<Cutoff> {
        self.cutoff
    }

    fn levels(self) -> u32 {
        self.bits.levels()
    }

    /// Levels per sign of the second scale.
    fn fine_levels(self) -> Option<u32> {
        self.fine.map(|bits| (1 << (bits - 1)) - 1)
    }

    /// Coordinates that a step sends of a unit of `len`.
    fn count(self, len: usize) -> usize {
        self.density.map_or(len, |density| density.count(len))
    }

    fn keeps(self) -> bool {
        self.rounding == Rounding::Nearest && self.cutoff.is_none()
    }

    fn has_frames(self) -> bool {
        self.fine.is_none() && self.density.is_none()
    }

    /// The codec that makes the frames.
    fn alone(self) -> Qsgd {
        Qsgd::new(self.bits)
            .with_bucket(NonZeroU32::MAX)
            .with_norm(Norm::Max)
            .with_entropy(EntropyChoice::Fixed)
            .with_rounding(self.rounding)
            .with_cutoff(self.cutoff)
    }
}

impl EncodeUnit for MaxNorm {
    fn capabilities(&self) -> Capabilities {
        let (alone, has_frames) = (self.alone().capabilities(), self.has_frames());
        Capabilities { has_frames, needs_full: alone.needs_full || !has_frames, ..alone }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        if self.has_frames() { self.alone().max_body_bytes(len) } else { Some(0) }
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        if self.has_frames() { self.alone().unit_scratch_len(len) } else { ScratchLen::default() }
    }

    fn overflow_bound(&self) -> f32 {
        self.alone().overflow_bound()
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        if !self.has_frames() {
            return Err(EncodeError::NoFrames);
        }
        self.alone().encode_body(input, scratch, writer)
    }
}
