//! The rounds of a step: all values, or the leader's message and then latents or values.

use gradwire::rounds::{
    LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, UnitStep, bytes_of,
};
use gradwire::state::StateLen;
use gradwire::{EncodeError, Grad, LayoutRef, Linear, Memory, Unit};

use crate::autoencoder::Autoencoder;
use crate::kept::{self, Kept};
use crate::lead::{HEAD, Head, Place, choose, leader};
use crate::led::Led;
use crate::settings::{Lgc, Sizes};

impl Lgc {
    /// What is sent in this step besides all values; `None` if those are.
    fn sizes_in(&self, step: &UnitStep<'_>) -> Option<Sizes> {
        self.sizes(step.unit.len).filter(|_| step.key.step >= self.dense_steps)
    }

    /// The leader's message, where this worker leads.
    fn lead(&self, sizes: Sizes, kept: &Kept<'_>, p: &[u32], words: &mut [u32]) {
        let p: Vec<f32> = p.iter().map(|bits| f32::from_bits(*bits)).collect();
        let (head, rest) = words.split_at_mut(HEAD);
        let (places, latent) = rest.split_at_mut(sizes.k);
        let scale = choose(&p, sizes, self.order, places);
        let is_trained = f64::from(kept.counts.trained) >= self.train_steps as f64;
        Head { scale, fingerprint: kept.fingerprint(), is_trained }.write(head);
        latent.fill(0);
        if is_trained && !latent.is_empty() {
            let values: Vec<f32> = places.iter().map(|word| p[Place::of(*word).at] / scale).collect();
            let trace = Autoencoder::new(kept.params, 0).encode(&values);
            latent.iter_mut().zip(trace.last()).for_each(|(word, float)| *word = float.to_bits());
        }
        words.iter_mut().for_each(|word| *word = word.to_le());
    }
}

/// Writes p = residual + gradient.
fn correct(grad: Grad<'_>, residual: &[f32], start: usize, p: &mut [u32]) -> Result<(), EncodeError> {
    let mut add = |at: usize, value: f32| {
        let sum = residual[at] + value;
        p[at] = sum.to_bits();
        if sum.is_finite() { Ok(()) } else { Err(EncodeError::NonFiniteInput { index: start + at }) }
    };
    match grad {
        Grad::F32(values) => values.iter().enumerate().try_for_each(|(at, value)| add(at, *value)),
        Grad::F16(values) => values.iter().enumerate().try_for_each(|(at, value)| add(at, value.to_f32())),
        Grad::Bf16(values) => values.iter().enumerate().try_for_each(|(at, value)| add(at, value.to_f32())),
        _ => Err(EncodeError::NotBuilt),
    }
}

/// All values were summed.
fn conclude_whole(sums: &[f32], workers: u32, mean: &mut [f32], memory: &mut Memory<'_>) {
    mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / workers as f32);
    memory.residual_mut().fill(0.0);
}

impl Linear for Lgc {
    /// Words: p, the leader's message, and a vote and the values of each worker, or its innovation. Floats:
    /// all values; or the sum of a latent step, and this worker's latent.
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen {
        let (mut words, mut floats) = (unit.len, unit.len);
        if let Some(sizes) = self.sizes(unit.len) {
            words += sizes.message() + workers as usize * sizes.part();
            floats = floats.max(sizes.summed() + sizes.latent);
        }
        LinearScratchLen { words, floats, ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        self.sizes(len).map_or(len, |sizes| sizes.k)
    }

    fn kept_len(&self, _: &LayoutRef<'_>, units: usize) -> StateLen {
        kept::lengths(units, self.decoders())
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let (unit, needed) = (step.unit, self.round_scratch_len(step.layout, step.unit, step.workers));
        if scratch.words.len() < needed.words || scratch.floats.len() < needed.floats {
            return Err(EncodeError::LinearScratchTooSmall { needed });
        }
        let memory = memory.ok_or(EncodeError::MemoryIncomplete)?;
        let kept = Kept::of(memory, unit.id, self.decoders()).ok_or(EncodeError::MemoryIncomplete)?;
        let (p, words) = scratch.words.split_at_mut(unit.len);
        correct(grad, memory.residual, unit.start, p)?;
        let (reduction, payload_len) = if let Some(sizes) = self.sizes_in(step) {
            let from = leader(step);
            let words = &mut words[..sizes.message()];
            if step.place == from {
                self.lead(sizes, &kept, p, words);
            }
            (Reduction::Broadcast { from }, 4 * words.len())
        } else {
            let values = p.iter().map(|bits| f32::from_bits(*bits));
            scratch.floats.iter_mut().zip(values).for_each(|(float, value)| *float = value);
            (Reduction::SumF32, unit.len)
        };
        Ok(Round { index: 0, reduction, unit: *unit, payload_len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        let words = &mut scratch.words[round.unit.len..];
        match round.reduction {
            Reduction::Broadcast { .. } => Payload::Bytes(&mut bytes_of(words)[..round.payload_len]),
            Reduction::Gather => {
                let sizes = self.sizes(round.unit.len).expect("a unit that is led");
                Payload::Bytes(&mut bytes_of(&mut words[sizes.message()..])[..round.payload_len])
            }
            _ => Payload::F32(&mut scratch.floats[..round.payload_len]),
        }
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        let memory = memory.expect("the rounds began with a memory");
        let Some(sizes) = self.sizes_in(step) else {
            conclude_whole(&scratch.floats[..step.unit.len], step.workers, mean, memory);
            return None;
        };
        let mut led = Led::new(self, sizes, step, scratch, memory);
        match round.reduction {
            Reduction::Broadcast { .. } => Some(led.follow()),
            Reduction::SumF32 if led.decode(mean) => None,
            Reduction::Gather if led.has_innovations(&round) && led.decode_apart(mean) => None,
            Reduction::Gather if !led.has_innovations(&round) => {
                led.conclude(mean);
                None
            }
            _ => Some(led.send_values(round.index + 1)),
        }
    }
}
