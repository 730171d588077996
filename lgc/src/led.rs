//! The rounds after the leader's message, as one worker sees them.

use gradwire::random::Stream;
use gradwire::rounds::{LinearScratch, Reduction, Round, UnitStep};
use gradwire::{Memory, Source, StepKey};

use crate::apart::Innovation;
use crate::autoencoder::{Autoencoder, mean as mean_of};
use crate::kept::{Kept, KeptMut};
use crate::lead::{HEAD, Head, Place, leader};
use crate::lessons::Lesson;
use crate::settings::{Lgc, Sizes};
use crate::sketch::{CELLS, energy, sketch};

/// A unit whose coordinates a leader chose.
pub(crate) struct Led<'r, 'm> {
    pub(crate) codec: &'r Lgc,
    pub(crate) sizes: Sizes,
    pub(crate) step: &'r UnitStep<'r>,
    p: &'r [u32],
    /// The leader's message, in little-endian words.
    message: &'r [u32],
    /// What is gathered: a part of each worker.
    pub(crate) gathered: &'r mut [u32],
    /// What is summed in a step of latents.
    summed: &'r mut [f32],
    /// This worker's latent.
    latent: &'r mut [f32],
    memory: &'r mut Memory<'m>,
}

impl<'r, 'm> Led<'r, 'm> {
    pub(crate) fn new(
        codec: &'r Lgc,
        sizes: Sizes,
        step: &'r UnitStep<'r>,
        scratch: &'r mut LinearScratch<'_>,
        memory: &'r mut Memory<'m>,
    ) -> Self {
        let (p, words) = scratch.words.split_at_mut(step.unit.len);
        let (message, gathered) = words.split_at_mut(sizes.message());
        let (summed, rest) = scratch.floats.split_at_mut(sizes.summed());
        let gathered = &mut gathered[..step.workers as usize * sizes.part()];
        let latent = &mut rest[..sizes.latent];
        Self { codec, sizes, step, p, message, gathered, summed, latent, memory }
    }

    pub(crate) fn head(&self) -> Head {
        let words: [u32; HEAD] = std::array::from_fn(|at| u32::from_le(self.message[at]));
        Head::of(&words)
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.message[HEAD..][..self.sizes.k].iter().map(|word| Place::of(u32::from_le(*word))).collect()
    }

    /// The latent in the leader's message.
    pub(crate) fn leaders_latent(&self) -> Vec<f32> {
        self.message[HEAD + self.sizes.k..].iter().map(|word| f32::from_bits(u32::from_le(*word))).collect()
    }

    /// The values at these places. A place outside of the unit, which no leader of ours sends, has none.
    fn values(&self, places: &[Place]) -> Vec<f32> {
        let value = |place: &Place| self.p.get(place.at).map_or(0.0, |bits| f32::from_bits(*bits));
        places.iter().map(value).collect()
    }

    /// The values at these places, as the autoencoder sees them.
    pub(crate) fn normal_values(&self, places: &[Place]) -> Vec<f32> {
        let scale = self.head().scale;
        self.values(places).iter().map(|value| value / scale).collect()
    }

    pub(crate) fn kept(&self) -> Kept<'_> {
        let view = self.memory.view(0..self.memory.len());
        let kept = Kept::of(view, self.step.unit.id, self.codec.decoders());
        kept.expect("the memory had it when the step began")
    }

    fn kept_mut(&mut self) -> KeptMut<'_, 'm> {
        KeptMut::of(self.memory, self.step.unit.id, self.codec.decoders())
    }

    /// Whether this worker's autoencoder is another than the leader's.
    pub(crate) fn differs(&self) -> bool {
        self.kept().fingerprint() != self.head().fingerprint
    }

    fn signs(&self) -> Stream {
        StepKey { source: Source::Shared, ..self.step.key }.experiment(self.step.unit.id)
    }

    /// After the leader's message: a latent or an innovation if the leader says so, else values.
    pub(crate) fn follow(&mut self) -> Round {
        match self.codec.apart {
            _ if !self.head().is_trained => self.send_values(1),
            Some(_) => self.send_innovation(),
            None => self.send_latent(),
        }
    }

    fn send_latent(&mut self) -> Round {
        let places = self.places();
        let values = self.normal_values(&places);
        let latent = Autoencoder::new(self.kept().params, 0).encode(&values);
        let cells = sketch(&without_innovation(&values, &places), &self.signs());
        let differs = self.differs();
        self.latent.copy_from_slice(latent.last());
        let parts = Parts::of(self.summed, self.sizes);
        parts.latent.copy_from_slice(self.latent);
        parts.cells.copy_from_slice(&cells);
        parts.innovation.fill(0.0);
        let own = values.iter().zip(&places).filter(|(_, place)| place.is_innovation);
        parts.innovation.iter_mut().zip(own).for_each(|(float, (value, _))| *float = *value);
        *parts.vote = differs.into();
        let payload_len = self.sizes.summed();
        Round { index: 1, reduction: Reduction::SumF32, unit: *self.step.unit, payload_len }
    }

    /// The round that gathers the values of all workers.
    pub(crate) fn send_values(&mut self, index: u32) -> Round {
        let (values, differs) = (self.values(&self.places()), self.differs());
        let part = self.sizes.part();
        let own = &mut self.gathered[part * self.step.place as usize..][..part];
        let words = values.iter().map(|value| value.to_bits());
        let words = std::iter::once(differs.into()).chain(words);
        own.iter_mut().zip(words).for_each(|(own, word)| *own = word.to_le());
        let payload_len = 4 * self.gathered.len();
        Round { index, reduction: Reduction::Gather, unit: *self.step.unit, payload_len }
    }

    /// The mean from summed latents, unless it lacks more than `gate` of its energy, or autoencoders differ.
    pub(crate) fn decode(&mut self, mean: &mut [f32]) -> bool {
        let workers = self.step.workers as f32;
        self.summed.iter_mut().for_each(|sum| *sum /= workers);
        let (places, signs, params) = (self.places(), self.signs(), self.kept().params.to_vec());
        let parts = Parts::of(self.summed, self.sizes);
        let (autoencoder, innovation) = (Autoencoder::new(&params, 0), spread(parts.innovation, &places));
        let decoded = autoencoder.decode(parts.latent, &innovation);
        let lacking = parts.lacking(&sketch(&without_innovation(&decoded.values, &places), &signs));
        // What is not a number does not pass.
        let passes = *parts.vote == 0.0 && lacking <= self.codec.gate;
        if passes {
            let change: Vec<f32> =
                self.latent.iter().zip(&*parts.latent).map(|(own, mean)| own - mean).collect();
            let change = autoencoder.decode_change(&decoded, &change);
            let shares = decoded.values.iter().zip(&change).map(|(value, change)| value + change);
            self.conclude_decoded(&places, shares, decoded.values.iter().zip(&innovation), mean);
        }
        self.count(lacking, passes);
        passes
    }

    /// Of each place, this worker's share of the mean; and the decoded value of the mean, with the exact one
    /// that takes its place in the innovation. All are normalised.
    fn conclude_decoded<'v>(
        &mut self,
        places: &[Place],
        shares: impl Iterator<Item = f32>,
        values: impl Iterator<Item = (&'v f32, &'v f32)>,
        mean: &mut [f32],
    ) {
        let scale = self.head().scale;
        let shares =
            places.iter().zip(shares).map(|(place, share)| (!place.is_innovation).then_some(scale * share));
        self.keep(places, shares);
        mean.fill(0.0);
        for (place, (decoded, exact)) in places.iter().zip(values) {
            set(mean, *place, scale * if place.is_innovation { exact } else { decoded });
        }
    }

    pub(crate) fn count(&mut self, lacking: f32, passes: bool) {
        let mut kept = self.kept_mut();
        let mut counts = kept.counts();
        counts.lacking = if lacking.is_finite() { lacking } else { f32::MAX };
        *(if passes { &mut counts.decoded } else { &mut counts.refused }) += 1.0;
        kept.set_counts(counts);
    }

    /// Keeps p, less the share of it that was sent at these places; all of it where there is no share.
    pub(crate) fn keep(&mut self, places: &[Place], shares: impl Iterator<Item = Option<f32>>) {
        let residual = self.memory.residual_mut();
        residual.iter_mut().zip(self.p).for_each(|(kept, bits)| *kept = f32::from_bits(*bits));
        for (place, share) in places.iter().zip(shares) {
            if let Some(kept) = residual.get_mut(place.at) {
                *kept = share.map_or(0.0, |share| *kept - share);
            }
        }
    }

    /// The mean from the values of all workers, from which the autoencoder learns.
    pub(crate) fn conclude(&mut self, mean: &mut [f32]) {
        let (places, head) = (self.places(), self.head());
        let parts = self.gathered.chunks_exact(self.sizes.part());
        let differs = parts.clone().any(|part| part[0] != 0);
        let float = |word: &u32| f32::from_bits(u32::from_le(*word));
        let workers: Vec<Vec<f32>> = parts.map(|part| part[1..].iter().map(float).collect()).collect();
        let means = mean_of(workers.iter().map(Vec::as_slice));
        mean.fill(0.0);
        places.iter().zip(&means).for_each(|(place, value)| set(mean, *place, *value));
        self.keep(&places, places.iter().map(|_| None));
        if differs {
            self.kept_mut().forget();
        }
        if head.scale.is_normal() && head.scale > 0.0 {
            self.learn(&places, &workers, &means, head.scale);
        }
    }

    fn learn(&mut self, places: &[Place], workers: &[Vec<f32>], means: &[f32], scale: f32) {
        let normal = |values: &[f32]| values.iter().map(|value| value / scale).collect::<Vec<_>>();
        let workers: Vec<_> = workers.iter().map(|values| normal(values)).collect();
        let workers: Vec<_> = workers.iter().map(Vec::as_slice).collect();
        let seed = self.step.key.seed;
        if let Some(decoders) = self.codec.apart {
            let innovation =
                |values: &&[f32]| Innovation::of(values, self.sizes.innovation).spread(values.len());
            let innovations: Vec<_> = workers.iter().map(innovation).collect();
            let leader = leader(self.step) as usize;
            let lesson = Lesson::Each { workers: &workers, innovations: &innovations, leader, decoders };
            return self.kept_mut().learn(seed, lesson);
        }
        let mean = normal(means);
        let innovation =
            mean.iter().zip(places).map(|(value, place)| if place.is_innovation { *value } else { 0.0 });
        let innovation: Vec<_> = innovation.collect();
        self.kept_mut().learn(seed, Lesson::Mean { workers: &workers, innovation: &innovation, mean: &mean });
    }
}

/// The parts of what is summed in a step of latents.
struct Parts<'s> {
    latent: &'s mut [f32],
    cells: &'s mut [f32],
    innovation: &'s mut [f32],
    vote: &'s mut f32,
}

impl<'s> Parts<'s> {
    fn of(summed: &'s mut [f32], sizes: Sizes) -> Self {
        let (latent, rest) = summed.split_at_mut(sizes.latent);
        let (cells, rest) = rest.split_at_mut(CELLS);
        let (innovation, rest) = rest.split_at_mut(sizes.innovation);
        Self { latent, cells, innovation, vote: &mut rest[0] }
    }

    /// The share of the mean's energy that decoded values of this sketch are estimated to lack.
    fn lacking(&self, decoded: &[f32; CELLS]) -> f32 {
        let missing: Vec<f32> = decoded.iter().zip(&*self.cells).map(|(made, sum)| made - sum).collect();
        energy(&missing) / (energy(self.cells) + energy(self.innovation))
    }
}

/// The values, with zeros where the innovation has them.
fn without_innovation(values: &[f32], places: &[Place]) -> Vec<f32> {
    values.iter().zip(places).map(|(value, place)| if place.is_innovation { 0.0 } else { *value }).collect()
}

/// The values of the innovation at their places, and zeros between them.
fn spread(innovation: &[f32], places: &[Place]) -> Vec<f32> {
    let mut values = innovation.iter().copied();
    let value = |place: &Place| if place.is_innovation { values.next().unwrap_or(0.0) } else { 0.0 };
    places.iter().map(value).collect()
}

/// A place outside of the unit is left out.
pub(crate) fn set(mean: &mut [f32], place: Place, value: f32) {
    if let Some(mean) = mean.get_mut(place.at) {
        *mean = value;
    }
}
