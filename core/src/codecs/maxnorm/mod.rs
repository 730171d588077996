//! QSGD with one range that all workers share, so that all-reduce may sum levels as integers.

mod spelling;

use crate::codec::{Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, begin_unit};
use crate::codecs::qsgd::{EntropyChoice, LevelBits, Norm, Qsgd};
use crate::corrected::BLOCK;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::scalar::FIELD_SIGN;
use crate::kernels::{self, Bucket, Isa};
use crate::memory::{Memory, MemoryView};
use crate::rng::Stream;
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::num::NonZeroU32;

/// Stochastic rounding to multiples of R/s, where R is the largest magnitude of the unit over *all* workers.
///
/// Two rounds: R by a maximum over one f32, then the sum of the levels. Each level, plus s, takes a field of
/// bitlen(2·N·s) bits. An i32 holds as many fields as fit its 31 lower bits. The sum over N workers always
/// fits its field. So neither fields nor words overflow, whatever the gradients. At N = 4 and 4 bits that is
/// 5 coordinates a word, 6.4 bits each, where f32 takes 32.
///
/// Unbiased, so it takes no error feedback. A unit whose R is below 2⁻¹⁰⁰ is sent as zeros. A frame holds
/// what one worker alone would contribute. It is the frame of [`Qsgd`] with one bucket and norm `max`.
///
/// # Source
/// Mao et al.: Unbiased Single-scale and Multi-scale Quantizers for Distributed Optimization (arXiv
/// 2109.12497), QSGDMaxNorm. Two differences: s = 2^(bits−1) − 1 if bits are given; and fields are wide
/// enough for the sum, which overflows the authors' int8 all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxNorm {
    bits: LevelBits,
}

/// Bits of an i32 that fields may fill: the sign stays clear.
const WORD_BITS: u32 = 31;

/// Words of scratch memory after p: the stream of the draws, and the number of workers.
const STATE_WORDS: usize = 5;

impl MaxNorm {
    /// `bits` from 2 to 8, else `None`.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        LevelBits::new(bits).map(|bits| Self { bits })
    }

    /// `levels` per sign, from 1 to 127, else `None`.
    #[must_use]
    pub fn of_levels(levels: u8) -> Option<Self> {
        LevelBits::of_levels(levels).map(|bits| Self { bits })
    }

    /// The number of levels per sign of one worker.
    #[must_use]
    pub fn bits(&self) -> LevelBits {
        self.bits
    }

    fn levels(self) -> u32 {
        self.bits.levels()
    }

    /// The codec that makes the frames.
    fn alone(self) -> Qsgd {
        Qsgd::new(self.bits)
            .with_bucket(NonZeroU32::MAX)
            .with_norm(Norm::Max)
            .with_entropy(EntropyChoice::Fixed)
    }

    /// Bits of a field in which `workers` levels are summed.
    ///
    /// # Panics
    /// If there are more workers than [`most_contributors`](Linear::most_contributors) says.
    fn field_bits(self, workers: u32) -> u32 {
        let largest = 2 * u64::from(workers) * u64::from(self.levels());
        let bits = u64::BITS - largest.leading_zeros();
        assert!(bits <= WORD_BITS, "{workers} workers: the sum of their levels does not fit a word");
        bits
    }

    /// Rounds p and packs its levels into words; returns how many.
    fn pack(self, p: &[u32], range: f32, stream: &Stream, field_bits: u32, words: &mut [i32]) -> usize {
        let levels = self.levels();
        let scale = range / levels as f32;
        let per_word = (WORD_BITS / field_bits) as usize;
        let mut fields = [0; BLOCK];
        let mut count = 0;
        // Each block fills whole words.
        let block = BLOCK / per_word * per_word;
        for (first, p) in (0..).step_by(block).zip(p.chunks(block)) {
            let fields = &mut fields[..p.len()];
            let bucket = Bucket { first, inverse: levels as f32 / range, scale, levels };
            if is_zero(range) {
                fields.fill(0);
            } else {
                kernels::quantize(Isa::best(), p, &bucket, Some(stream), fields);
            }
            for fields in fields.chunks(per_word) {
                let shifts = (0..).step_by(field_bits as usize);
                let word = fields.iter().zip(shifts).map(|(&field, shift)| biased(field, levels) << shift);
                words[count] = word.sum::<i32>();
                count += 1;
            }
        }
        count
    }

    /// Writes the mean of the summed levels.
    fn unpack(self, sums: &[i32], range: f32, workers: u32, mean: &mut [f32]) {
        let field_bits = self.field_bits(workers);
        let per_word = (WORD_BITS / field_bits) as usize;
        let (bias, mask) = ((workers * self.levels()) as i32, ((1u32 << field_bits) - 1) as i32);
        let scale = if is_zero(range) { 0.0 } else { range / self.levels() as f32 };
        for (mean, &sum) in mean.chunks_mut(per_word).zip(sums) {
            for (mean, shift) in mean.iter_mut().zip((0..).step_by(field_bits as usize)) {
                let level = (sum >> shift & mask) - bias;
                *mean = scale * level as f32 / workers as f32;
            }
        }
    }
}

/// Whether R counts as zero: below this bound levels / R could overflow.
fn is_zero(range: f32) -> bool {
    range < crate::codecs::qsgd::LEAST_NORM
}

/// The signed level of a field, plus s.
fn biased(field: u8, levels: u32) -> i32 {
    let level = i32::from(field & !FIELD_SIGN);
    levels as i32 + if field & FIELD_SIGN == 0 { level } else { -level }
}

impl EncodeUnit for MaxNorm {
    fn capabilities(&self) -> Capabilities {
        Capabilities { law: Law::NotKept, ..self.alone().capabilities() }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        self.alone().max_body_bytes(len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        self.alone().unit_scratch_len(len)
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
        self.alone().encode_body(input, scratch, writer)
    }
}

/// The largest magnitude, then the levels.
impl Linear for MaxNorm {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        // With many workers a word holds a single field.
        LinearScratchLen { words: len.saturating_add(STATE_WORDS), floats: 1, ints: len }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    /// The most workers whose sum of levels fits a word, ⌊(2³¹ − 1) / 2s⌋: 8,454,660 at 8 bits.
    fn most_contributors(&self) -> u32 {
        i32::MAX as u32 / (2 * self.levels())
    }

    fn begin(
        &self,
        key: StepKey,
        _layout: &LayoutRef<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        if memory.is_some() {
            return Err(EncodeError::MemoryRefused);
        }
        begin_unit(self.round_scratch_len(unit.len), unit, grad, None, self.overflow_bound(), scratch)?;
        let (p, state) = scratch.words.split_at_mut(unit.len);
        let [[a, b], [c, d]] = key.rounding(unit.id).words();
        state[..STATE_WORDS].copy_from_slice(&[a, b, c, d, 0]);
        scratch.floats[0] = f32::from_bits(kernels::max_magnitude(Isa::best(), p));
        Ok(Round { index: 0, reduction: Reduction::MaxF32, unit: *unit, payload_len: 1 })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        match round.reduction {
            Reduction::SumI32 => Payload::I32(&mut scratch.ints[..round.payload_len]),
            _ => Payload::F32(&mut scratch.floats[..round.payload_len]),
        }
    }

    fn advance(
        &self,
        _layout: &LayoutRef<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        contributors: u32,
        mean: &mut [f32],
        _memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        round.assert_mean(mean, contributors);
        let (p, state) = scratch.words.split_at_mut(round.unit.len);
        let range = scratch.floats[0];
        if round.reduction == Reduction::SumI32 {
            assert_eq!(state[4], contributors, "both rounds have the same contributors");
            self.unpack(&scratch.ints[..round.payload_len], range, contributors, mean);
            return None;
        }
        state[4] = contributors;
        let stream = Stream::from_words([[state[0], state[1]], [state[2], state[3]]]);
        let payload_len = self.pack(p, range, &stream, self.field_bits(contributors), scratch.ints);
        Some(Round { index: 1, reduction: Reduction::SumI32, payload_len, ..round })
    }

    /// Does nothing: this codec keeps no memory.
    fn abandon(&self, _round: Round, _scratch: &mut LinearScratch<'_>, _memory: Option<&mut Memory<'_>>) {}
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    #[test]
    fn the_largest_sum_of_any_number_of_workers_fits_its_field() {
        let by_bits = (2..=8).map(|bits| (bits, MaxNorm::new(bits).unwrap()));
        let counted = [1, 4, 5, 16, 64, 100, 127].map(|levels| (levels, MaxNorm::of_levels(levels).unwrap()));
        for (bits, codec) in by_bits.chain(counted) {
            for workers in (1..2000).chain([1 << 16, (1 << 22) - 1, codec.most_contributors()]) {
                let largest = u64::from(2 * codec.levels()) * u64::from(workers);
                let field_bits = codec.field_bits(workers);
                assert!(largest < 1 << field_bits, "{bits}, {workers} workers");
                assert!(largest >= 1 << (field_bits - 1), "{bits}, {workers} workers: too wide");
            }
        }
    }

    #[test]
    #[should_panic(expected = "does not fit a word")]
    fn one_worker_more_than_the_most_does_not_fit() {
        let codec = MaxNorm::of_levels(100).unwrap();
        codec.field_bits(codec.most_contributors() + 1);
    }

    #[test]
    fn sums_of_extreme_levels_come_back() {
        for bits in [2, 4, 8] {
            let codec = MaxNorm::new(bits).unwrap();
            for workers in [1u32, 2, 3, 16, 1000, codec.most_contributors()] {
                let p: Vec<u32> = (0..2500).map(|i| [1f32, -1.0][i % 2].to_bits()).collect();
                let stream = Stream::new(1, 2, 3, 4, crate::rng::Purpose::Rounding);
                let mut words = vec![0; p.len()];
                let count = codec.pack(&p, 1.0, &stream, codec.field_bits(workers), &mut words);
                let sums: Vec<i32> =
                    words[..count].iter().map(|word| word.checked_mul(workers as i32).unwrap()).collect();
                let mut mean = vec![0.0; p.len()];
                codec.unpack(&sums, 1.0, workers, &mut mean);
                for (mean, &bits) in mean.iter().zip(&p) {
                    assert!((mean - f32::from_bits(bits)).abs() < 1e-6, "{workers} workers");
                }
            }
        }
    }
}
