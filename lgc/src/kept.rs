//! What is kept from step to step besides the residual: the autoencoder of a unit, equal at all ranks.

use gradwire::rounds::MemoryView;
use gradwire::state::StateLen;
use gradwire::{Memory, Source, StepKey};

use crate::adam::Adam;
use crate::autoencoder::{Autoencoder, PARAMS, initial};

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

/// Lengths of the arrays for so many units.
pub(crate) fn lengths(units: usize) -> StateLen {
    let all = StateLen::default().with_array(COUNTS, COUNTS_LEN * units);
    [PARAMETERS, MEANS, SQUARES].iter().fold(all, |all, name| all.with_array(name, PARAMS * units))
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
    pub(crate) fn of(memory: MemoryView<'m>, unit: u32) -> Option<Self> {
        let part = |name, len| memory.array(name)?.chunks_exact(len).nth(unit as usize);
        let moments = [part(MEANS, PARAMS)?, part(SQUARES, PARAMS)?];
        let counts = Counts::of(part(COUNTS, COUNTS_LEN)?);
        Some(Self { params: part(PARAMETERS, PARAMS)?, counts, moments })
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

/// What the workers have to learn from in one step.
pub(crate) struct Lesson<'v> {
    /// The values of each worker, normalised.
    pub(crate) workers: &'v [&'v [f32]],
    pub(crate) innovation: &'v [f32],
    pub(crate) mean: &'v [f32],
}

/// The arrays of a unit, to be changed.
pub(crate) struct KeptMut<'m, 'a> {
    memory: &'m mut Memory<'a>,
    unit: u32,
}

impl<'m, 'a> KeptMut<'m, 'a> {
    /// Of a memory that has the arrays.
    pub(crate) fn of(memory: &'m mut Memory<'a>, unit: u32) -> Self {
        Self { memory, unit }
    }

    fn part(&mut self, name: &str, len: usize) -> &mut [f32] {
        let all = self.memory.array_mut(name).expect("the memory had it when the step began");
        &mut all[len * self.unit as usize..][..len]
    }

    pub(crate) fn counts(&mut self) -> Counts {
        Counts::of(self.part(COUNTS, COUNTS_LEN))
    }

    pub(crate) fn set_counts(&mut self, counts: Counts) {
        counts.write(self.part(COUNTS, COUNTS_LEN));
    }

    pub(crate) fn params(&mut self) -> &[f32] {
        self.part(PARAMETERS, PARAMS)
    }

    /// Forgets what was learned: ranks of different histories begin again together.
    pub(crate) fn forget(&mut self) {
        let counts = Counts { trained: 0.0, ..self.counts() };
        self.set_counts(counts);
    }

    /// One step of training, which begins with initial parameters if there are none.
    pub(crate) fn learn(&mut self, seed: u64, lesson: &Lesson<'_>) {
        let counts = self.counts();
        if counts.trained == 0.0 {
            let draws = StepKey { seed, step: 0, source: Source::Shared }.experiment(self.unit);
            let draw = |at| (draws.u64_at(at) >> 40) as f32 / (1u64 << 24) as f32;
            self.part(PARAMETERS, PARAMS).copy_from_slice(&initial(draw));
            [MEANS, SQUARES].iter().for_each(|name| self.part(name, PARAMS).fill(0.0));
        }
        let mut grads = vec![0.0; PARAMS];
        let autoencoder = Autoencoder::new(self.params());
        let loss = autoencoder.learn(lesson.workers, lesson.innovation, lesson.mean, &mut grads);
        // What is not finite would never leave the parameters.
        if loss.is_finite() && grads.iter().all(|grad| grad.is_finite()) {
            self.apply(&grads, Counts { trained: counts.trained + 1.0, ..counts });
        }
    }

    fn apply(&mut self, grads: &[f32], counts: Counts) {
        let mut params = self.params().to_vec();
        let mut means = self.part(MEANS, PARAMS).to_vec();
        let squares = self.part(SQUARES, PARAMS);
        Adam { means: &mut means, squares }.step(&mut params, grads, counts.trained as u32, RATE);
        self.part(MEANS, PARAMS).copy_from_slice(&means);
        self.part(PARAMETERS, PARAMS).copy_from_slice(&params);
        self.set_counts(counts);
    }
}
