//! The rounds of a linear codec without frames, run by one worker alone: what it contributes, and how long
//! that takes.

use gradwire::registry::LinearCodec;
use gradwire::rounds::{Round, RoundBuffers, UnitStep};
use gradwire::{Codec, EncodeError, Grad, Spec, Unit};

use super::error::CliError;
use super::gradient::Gradient;
use super::job::Job;

/// A job whose payloads are summed.
pub(super) struct Rounds<'g> {
    job: Job<'g>,
    codec: LinearCodec,
    units: Vec<UnitState>,
}

/// Working memory of a unit, and its first round.
#[derive(Default)]
struct UnitState {
    buffers: RoundBuffers,
    first: Option<Round>,
}

/// What one worker contributes to the sums of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contribution {
    /// Rounds of the unit that has most: units go through theirs side by side.
    pub(super) rounds: u32,
    /// Bytes of all payloads.
    pub(super) bytes: usize,
}

/// The codec, if it is linear and has no frames.
pub(super) fn without_frames(codec: &Codec) -> Option<LinearCodec> {
    codec.as_linear().filter(|_| !codec.capabilities().has_frames)
}

/// Whether what a codec sends may be summed by an all-reduce; else its frames go to all.
pub(crate) fn is_summed(spec: &Spec) -> bool {
    spec.codec.as_linear().is_some() && spec.packets.is_none()
}

/// Elements of the gradient on which rounds are counted: enough that no unit is sent whole for being short.
const SAMPLE: usize = 10_000;

/// Rounds of reductions in a step of this codec, one after the other: those of a drawn gradient; 1 if it is
/// not linear.
///
/// # Errors
/// [`CliError::File`] if the codec cannot encode that gradient.
pub(crate) fn rounds(spec: Spec) -> Result<u32, CliError> {
    let Some(codec) = spec.codec.as_linear() else { return Ok(1) };
    let gradient = Gradient::drawn(SAMPLE)?;
    let mut rounds = Rounds::new(Job::new(spec, &gradient, 0), codec);
    rounds.begin()?;
    Ok(rounds.finish(&mut vec![0.0; SAMPLE]).rounds)
}

impl<'g> Rounds<'g> {
    /// The rounds of a job; `codec` is its own, as [`without_frames`] has it.
    pub(super) fn new(job: Job<'g>, codec: LinearCodec) -> Self {
        let layout = job.gradient.layout.as_ref();
        let state = |unit: &Unit| {
            let mut state = UnitState::default();
            state.buffers.grow(codec.rounds_of(unit).round_scratch_len(&layout, unit, 1));
            state
        };
        let units = job.units.iter().map(state).collect();
        Self { job, codec, units }
    }

    /// The job.
    pub(super) fn job(&self) -> &Job<'g> {
        &self.job
    }

    /// Empties the memory, so that the next rounds are the same again.
    pub(super) fn clear_memory(&mut self) {
        self.job.clear_memory();
    }

    /// Coordinates that the mean holds.
    pub(super) fn held(&self) -> usize {
        self.job.units.iter().map(|unit| self.codec.rounds_of(unit).held(unit.len)).sum()
    }

    /// Begins the rounds of all units.
    pub(super) fn begin(&mut self) -> Result<(), CliError> {
        let Self { job, codec, units } = self;
        let (layout, grad) = (job.gradient.layout.as_ref(), Grad::F32(&job.gradient.values));
        let begun = job.units.iter().zip(units).try_for_each(|(unit, state)| {
            let memory = job.memory.as_ref().map(|memory| memory.view(unit.range()));
            let (codec, grad) = (codec.rounds_of(unit), grad.slice(unit.start, unit.len));
            let alone = UnitStep { key: job.key, layout: &layout, unit, workers: 1, place: 0 };
            state.first = Some(codec.begin(&alone, grad, memory, &mut state.buffers.scratch())?);
            Ok::<_, EncodeError>(())
        });
        begun.map_err(|error| job.explain(error))
    }

    /// Runs the rounds that were begun, with no other worker: `mean` becomes what this gradient alone decodes
    /// to.
    pub(super) fn finish(&mut self, mean: &mut [f32]) -> Contribution {
        let Self { job, codec, units } = self;
        let layout = job.gradient.layout.as_ref();
        let mut sent = Contribution::default();
        for (unit, state) in job.units.iter().zip(units) {
            let alone = UnitStep { key: job.key, layout: &layout, unit, workers: 1, place: 0 };
            let (mut next, mut rounds) = (state.first.take(), 0);
            while let Some(round) = next {
                rounds += 1;
                sent.bytes += round.payload_len * round.reduction.element_bytes();
                let mut memory = job.memory.as_mut().map(|memory| memory.slice(unit.range()));
                let (codec, mean) = (codec.rounds_of(unit), &mut mean[unit.range()]);
                next = codec.advance(&alone, round, &mut state.buffers.scratch(), mean, memory.as_mut());
            }
            sent.rounds = sent.rounds.max(rounds);
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec_cli::parse_spec;

    #[test]
    fn rounds_are_those_of_the_codec() {
        for (codec, expected) in [
            ("topk:density=0.01", 1),
            ("randomk:density=0.01", 1),
            ("none", 1),
            ("maxnorm:bits=4", 2),
            ("sketch:density=0.01", 1),
            ("powersgd:rank=2", 2),
            ("sharedk:density=0.01,by=sketch", 2),
            ("sharedk:density=0.01,by=leader", 3),
        ] {
            assert_eq!(rounds(parse_spec(codec).unwrap()).unwrap(), expected, "{codec}");
        }
    }
}
