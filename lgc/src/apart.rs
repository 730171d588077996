//! The rounds with a decoder for each worker: all values are decoded from the latent of the leader, and each
//! worker sends those of its own values that matter most.

use gradwire::rounds::{Reduction, Round};

use crate::autoencoder::{Autoencoder, mean as mean_of};
use crate::lead::Place;
use crate::led::{Led, set};
use crate::lessons::missing;
use crate::sketch::energy;

/// Some values of a worker, the largest, with their numbers among all that it sends.
pub(crate) struct Innovation(Vec<(u32, f32)>);

impl Innovation {
    /// So many of the values, ties to the first.
    pub(crate) fn of(values: &[f32], count: usize) -> Self {
        let mut numbers: Vec<u32> = (0..values.len() as u32).collect();
        numbers.sort_by_key(|at| std::cmp::Reverse(values[*at as usize].abs().to_bits()));
        let value = |at: &u32| (*at, values[*at as usize]);
        Self(numbers[..count].iter().map(value).collect())
    }

    /// Two words for each value.
    fn read(words: &[u32]) -> Self {
        let pair = |pair: &[u32]| (u32::from_le(pair[0]), f32::from_bits(u32::from_le(pair[1])));
        Self(words.chunks_exact(2).map(pair).collect())
    }

    fn write(&self, words: &mut [u32]) {
        for (words, (at, value)) in words.chunks_exact_mut(2).zip(&self.0) {
            words.copy_from_slice(&[at.to_le(), value.to_bits().to_le()]);
        }
    }

    /// The values at their places among so many, and zeros between them.
    pub(crate) fn spread(&self, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        self.set(&mut values);
        values
    }

    /// Writes the values at their places. A place that is not there, which no worker of ours sends, is left
    /// out.
    fn set(&self, values: &mut [f32]) {
        for (at, value) in &self.0 {
            if let Some(place) = values.get_mut(*at as usize) {
                *place = *value;
            }
        }
    }
}

/// What a worker says of what will be decoded for it.
struct Claim {
    /// Whether its autoencoder is another than the leader's.
    differs: bool,
    /// The energy of its values.
    energy: f32,
    /// The energy of what the decoded ones lack.
    lacking: f32,
}

/// Words of a claim, which stands before an innovation.
const CLAIM: usize = 3;

impl Claim {
    fn read(words: &[u32]) -> Self {
        let float = |at: usize| f32::from_bits(u32::from_le(words[at]));
        Self { differs: words[0] != 0, energy: float(1), lacking: float(2) }
    }

    fn write(&self, words: &mut [u32]) {
        let words_of = [self.differs.into(), self.energy.to_bits(), self.lacking.to_bits()];
        words.iter_mut().zip(words_of).for_each(|(word, of)| *word = of.to_le());
    }
}

impl Led<'_, '_> {
    /// Words of a worker's claim and innovation.
    fn innovation_part(&self) -> usize {
        CLAIM + 2 * self.sizes.innovation
    }

    /// Whether what this round gathered are innovations.
    pub(crate) fn has_innovations(&self, round: &Round) -> bool {
        self.codec.apart.is_some() && round.index == 1 && self.head().is_trained
    }

    /// The round that gathers innovations.
    pub(crate) fn send_innovation(&mut self) -> Round {
        let values = self.normal_values(&self.places());
        let innovation = Innovation::of(&values, self.sizes.innovation);
        let decoded = self.decoded(self.step.place, &innovation);
        let lacking = energy(&missing(&decoded, &values));
        let claim = Claim { differs: self.differs(), energy: energy(&values), lacking };
        let part = self.innovation_part();
        let own = &mut self.gathered[part * self.step.place as usize..][..part];
        let (of_claim, of_innovation) = own.split_at_mut(CLAIM);
        claim.write(of_claim);
        innovation.write(of_innovation);
        let payload_len = 4 * part * self.step.workers as usize;
        Round { index: 1, reduction: Reduction::Gather, unit: *self.step.unit, payload_len }
    }

    /// The values of a worker, decoded by its decoder from the leader's latent. Those of its innovation are
    /// exact.
    fn decoded(&self, worker: u32, innovation: &Innovation) -> Vec<f32> {
        let decoder = worker as usize % self.codec.decoders();
        let autoencoder = Autoencoder::new(self.kept().params, decoder);
        let mut decoded = autoencoder.decode(&self.leaders_latent(), &innovation.spread(self.sizes.k)).values;
        innovation.set(&mut decoded);
        decoded
    }

    /// The mean from innovations, unless the decoded values lack more than the gate lets pass, or
    /// autoencoders differ.
    pub(crate) fn decode_apart(&mut self, mean: &mut [f32]) -> bool {
        let part = self.innovation_part();
        let parts = self.gathered.chunks_exact(part).take(self.step.workers as usize);
        let (claims, innovations): (Vec<_>, Vec<_>) =
            parts.map(|part| (Claim::read(&part[..CLAIM]), Innovation::read(&part[CLAIM..]))).unzip();
        let all = claims.iter().map(|claim| claim.energy).sum::<f32>();
        let lacking = claims.iter().map(|claim| claim.lacking).sum::<f32>() / all;
        // What is not a number does not pass.
        let passes = !claims.iter().any(|claim| claim.differs) && lacking <= self.codec.gate;
        if passes {
            self.conclude_apart(&innovations, mean);
        }
        self.count(lacking, passes);
        passes
    }

    fn conclude_apart(&mut self, innovations: &[Innovation], mean: &mut [f32]) {
        let (places, scale) = (self.places(), self.head().scale);
        let decoded: Vec<_> =
            (0..).zip(innovations).map(|(worker, innovation)| self.decoded(worker, innovation)).collect();
        let means = mean_of(decoded.iter().map(Vec::as_slice));
        mean.fill(0.0);
        places.iter().zip(means).for_each(|(place, value): (&Place, f32)| set(mean, *place, scale * value));
        let own = decoded[self.step.place as usize].iter();
        self.keep(&places, own.map(|value| Some(scale * value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_values_are_the_innovation_and_come_back_as_they_were_written() {
        let values = [1.0, -3.0, 3.0, 0.0, 2.0];
        let innovation = Innovation::of(&values, 3);
        let mut words = [0; 6];
        innovation.write(&mut words);
        assert_eq!(Innovation::read(&words).spread(5), [0.0, -3.0, 3.0, 0.0, 2.0]);
        assert_eq!(Innovation::of(&values, 1).0, [(1, -3.0)]);
        assert_eq!(Innovation::read(&words).spread(2), [0.0, -3.0], "places outside are left out");
    }
}
