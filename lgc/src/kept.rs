//! What is kept from step to step besides the residual: the autoencoder of a unit, equal at all ranks.

use gradwire::rounds::MemoryView;
use gradwire::state::StateLen;
use gradwire::{Memory, Source, StepKey};

use crate::adam::Adam;
use crate::autoencoder::{initial, params_with};
use crate::lessons::Lesson;

const PARAMETERS: &str = "autoencoder";
const MEANS: &str = "autoencoder: Adam's means";
const SQUARES: &str = "autoencoder: Adam's squares";
const COUNTS: &str = "autoencoder: counts";

/// Adam's rate.
const RATE: f32 = 1e-3;

/// What happened to a unit so far. Whole numbers, kept as f32, which counts to 2²⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Counts {
    /// Steps that trained its autoencoder.
    pub trained: f32,
    /// Steps whose mean was decoded from a latent.
    pub decoded: f32,
    /// Steps in which the gate refused that, and values were sent.
    pub refused: f32,
    /// What the last decoded mean was estimated to lack, as a share of its energy; also if it was refused.
    pub lacking: f32,
}

/// Floats of the counts.
const COUNTS_LEN: usize = 4;

impl Counts {
    fn of(values: &[f32]) -> Self {
        let &[trained, decoded, refused, lacking] = values else { panic!("four counts") };
        Self { trained, decoded, refused, lacking }
    }

    fn write(self, values: &mut [f32]) {
        values.copy_from_slice(&[self.trained, self.decoded, self.refused, self.lacking]);
    }

    /// The counts of all units of a memory; none if it is of another codec.
    pub fn of_memory(memory: &Memory<'_>) -> impl Iterator<Item = Self> {
        memory.array(COUNTS).unwrap_or_default().chunks_exact(COUNTS_LEN).map(Self::of)
    }
}

/// Lengths of the arrays for so many units, whose autoencoders have so many decoders.
pub(crate) fn lengths(units: usize, decoders: usize) -> StateLen {
    let all = StateLen::default().with_array(COUNTS, COUNTS_LEN * units);
    let params = params_with(decoders) * units;
    [PARAMETERS, MEANS, SQUARES].iter().fold(all, |all, name| all.with_array(name, params))
}

/// What the memory has of one unit, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'m> {
    pub(crate) params: &'m [f32],
    pub(crate) counts: Counts,
    moments: [&'m [f32]; 2],
}

impl<'m> Kept<'m> {
    /// `None` if the memory lacks a part.
    pub(crate) fn of(memory: MemoryView<'m>, unit: u32, decoders: usize) -> Option<Self> {
        let part = |name, len| memory.array(name)?.chunks_exact(len).nth(unit as usize);
        let params = |name| part(name, params_with(decoders));
        let moments = [params(MEANS)?, params(SQUARES)?];
        let counts = Counts::of(part(COUNTS, COUNTS_LEN)?);
        Some(Self { params: params(PARAMETERS)?, counts, moments })
    }

    /// A number that is the same at two ranks if all of this is, and hardly ever if not.
    pub(crate) fn fingerprint(&self) -> u64 {
        let bits = [self.params, self.moments[0], self.moments[1], &[self.counts.trained]];
        let mut sum = 0u64;
        for (salt, values) in (1u64..).zip(bits) {
            for (value, at) in values.iter().zip(0u64..) {
                let odd = (8 * at + 2 * salt + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                sum = sum.wrapping_add(u64::from(value.to_bits()).wrapping_mul(odd));
            }
        }
        sum
    }
}

/// The arrays of a unit, to be changed.
pub(crate) struct KeptMut<'m, 'a> {
    memory: &'m mut Memory<'a>,
    unit: u32,
    decoders: usize,
}

impl<'m, 'a> KeptMut<'m, 'a> {
    /// Of a memory that has the arrays.
    pub(crate) fn of(memory: &'m mut Memory<'a>, unit: u32, decoders: usize) -> Self {
        Self { memory, unit, decoders }
    }

    fn part(&mut self, name: &str, len: usize) -> &mut [f32] {
        let all = self.memory.array_mut(name).expect("the memory had it when the step began");
        &mut all[len * self.unit as usize..][..len]
    }

    /// The part of an array that has a number for each parameter.
    fn of_params(&mut self, name: &str) -> &mut [f32] {
        self.part(name, params_with(self.decoders))
    }

    pub(crate) fn counts(&mut self) -> Counts {
        Counts::of(self.part(COUNTS, COUNTS_LEN))
    }

    pub(crate) fn set_counts(&mut self, counts: Counts) {
        counts.write(self.part(COUNTS, COUNTS_LEN));
    }

    /// Forgets what was learned: ranks of different histories begin again together.
    pub(crate) fn forget(&mut self) {
        let counts = Counts { trained: 0.0, ..self.counts() };
        self.set_counts(counts);
    }

    /// One step of training, which begins with initial parameters if there are none.
    pub(crate) fn learn(&mut self, seed: u64, lesson: Lesson<'_>) {
        let counts = self.counts();
        if counts.trained == 0.0 {
            let draws = StepKey { seed, step: 0, source: Source::Shared }.experiment(self.unit);
            let draw = |at| (draws.u64_at(at) >> 40) as f32 / (1u64 << 24) as f32;
            let initial = initial(self.decoders, draw);
            self.of_params(PARAMETERS).copy_from_slice(&initial);
            [MEANS, SQUARES].iter().for_each(|name| self.of_params(name).fill(0.0));
        }
        let mut grads = vec![0.0; params_with(self.decoders)];
        let loss = lesson.learn(self.of_params(PARAMETERS), &mut grads);
        // What is not finite would never leave the parameters.
        if loss.is_finite() && grads.iter().all(|grad| grad.is_finite()) {
            self.apply(&grads, Counts { trained: counts.trained + 1.0, ..counts });
        }
    }

    fn apply(&mut self, grads: &[f32], counts: Counts) {
        let mut params = self.of_params(PARAMETERS).to_vec();
        let mut means = self.of_params(MEANS).to_vec();
        let squares = self.of_params(SQUARES);
        Adam { means: &mut means, squares }.step(&mut params, grads, counts.trained as u32, RATE);
        self.of_params(MEANS).copy_from_slice(&means);
        self.of_params(PARAMETERS).copy_from_slice(&params);
        self.set_counts(counts);
    }
}
