//! What one unit contributes to sums: its rounds, from the start of a step to its mean.

use gradwire::plan::Plan;
use gradwire::rounds::{Payload, Reduction, Round, RoundBuffers, UnitStep};
use gradwire::{Grad, LayoutRef, Memory, Unit};

use super::error::ExchangeError;
use super::means::Means;
use super::step::Step;
use crate::collective::{Reduce, Wire};
use crate::error::TransportError;

/// One unit's working memory.
#[derive(Debug, Default)]
pub(super) struct UnitRounds {
    buffers: RoundBuffers,
    first: Option<Round>,
    /// The current round; `None` once the mean is complete.
    pub(super) round: Option<Round>,
}

/// Refuses more workers than the sums of these units have room for.
pub(super) fn require_workers(step: &Step<'_>, units: &[Unit]) -> Result<(), ExchangeError> {
    let workers = step.members().len();
    let most = |unit: &Unit| step.plan.rounds_of(unit).most_contributors();
    let fewest = units.iter().map(|unit| (most(unit), unit)).min_by_key(|(most, _)| *most);
    match fewest.filter(|(most, _)| u32::try_from(workers).is_ok_and(|workers| workers > *most)) {
        None => Ok(()),
        Some((most, unit)) => {
            let codec = step.plan.group_of(unit).name();
            Err(ExchangeError::TooManyWorkers { codec, workers, most })
        }
    }
}

impl UnitRounds {
    /// Begins the rounds with the unit's own gradient. Only reads the memory: it changes when the mean is
    /// complete. Returns how many coordinates the unit sends.
    pub(super) fn begin(
        &mut self,
        step: &Step<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<usize, ExchangeError> {
        let (plan, layout) = (step.plan, step.layout.as_ref());
        let (codec, of) = (plan.rounds_of(unit), unit_step(step, &layout, unit));
        self.buffers.grow(codec.round_scratch_len(&layout, unit, of.workers));
        let mut scratch = self.buffers.scratch();
        let first = if let Some((selection, at)) = step.selected {
            selection.begin(at, &of, &mut scratch)?
        } else {
            let memory = memory.filter(|_| plan.lends_to(unit));
            let memory = memory.map(|memory| memory.view(unit.range()));
            codec.begin(&of, grad, memory, &mut scratch)?
        };
        (self.first, self.round) = (Some(first), Some(first));
        Ok(codec.held(unit.len))
    }

    /// No rank has a gradient of the unit, so there are no rounds, and the memory stays as it is.
    pub(super) fn cancel(&mut self) {
        (self.first, self.round) = (None, None);
    }

    /// Bytes of the payload of the current round; none without one.
    pub(super) fn payload_bytes(&self, wire: Wire) -> usize {
        self.round.map_or(0, |round| round.payload_len * element_bytes(&round, wire))
    }

    /// Lends the payload of the current round, which there must be.
    pub(super) fn with_payload<T>(
        &mut self,
        plan: &Plan,
        unit: &Unit,
        wire: Wire,
        work: impl FnOnce(Reduce<'_>) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        let round = self.round.expect("a unit whose rounds are not over");
        let mut scratch = self.buffers.scratch();
        let payload = plan.rounds_of(unit).payload(&round, &mut scratch);
        work(reduce_of(&round, payload, wire)?)
    }

    /// Turns a reduced payload into the next round, or into the mean. Returns the bytes of the payload.
    pub(super) fn advance(
        &mut self,
        step: &Step<'_>,
        unit: &Unit,
        wire: Wire,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> usize {
        let Some(round) = self.round else { return 0 };
        let layout = step.layout.as_ref();
        let memory = memory.as_deref_mut().filter(|_| step.plan.lends_to(unit));
        let mut memory = memory.map(|memory| memory.slice(unit.range()));
        let (scratch, mean) = (&mut self.buffers.scratch(), mean.of(unit.id, unit.range()));
        let (codec, of) = (step.plan.rounds_of(unit), unit_step(step, &layout, unit));
        self.round = codec.advance(&of, round, scratch, mean, memory.as_mut());
        round.payload_len * element_bytes(&round, wire)
    }

    /// The unit keeps all of residual + gradient, also if its mean was complete.
    pub(super) fn abandon(&mut self, step: &Step<'_>, unit: &Unit, memory: &mut Option<&mut Memory<'_>>) {
        let memory = memory.as_deref_mut().filter(|_| step.plan.lends_to(unit));
        if let (Some(round), Some(memory)) = (self.first, memory) {
            let mut memory = memory.slice(unit.range());
            step.plan.rounds_of(unit).abandon(round, &mut self.buffers.scratch(), Some(&mut memory));
        }
    }
}

/// What the rounds of a unit are told about the step.
fn unit_step<'s>(step: &Step<'_>, layout: &'s LayoutRef<'s>, unit: &'s Unit) -> UnitStep<'s> {
    let members = step.port.members();
    let place = members.ranks.position(step.rank()).unwrap_or(0) as u32;
    UnitStep { key: step.key, layout, unit, workers: members.world() as u32, place }
}

fn element_bytes(round: &Round, wire: Wire) -> usize {
    match round.reduction {
        Reduction::SumF32 if wire == Wire::Bf16 => 2,
        reduction => reduction.element_bytes(),
    }
}

/// The reduction of the round, applied to its payload.
fn reduce_of<'p>(round: &Round, payload: Payload<'p>, wire: Wire) -> Result<Reduce<'p>, TransportError> {
    match (round.reduction, payload) {
        (Reduction::MaxF32, Payload::F32(data)) => Ok(Reduce::MaxF32(data)),
        (Reduction::SumF32, Payload::F32(data)) => Ok(Reduce::SumF32(data, wire)),
        (Reduction::SumI32, Payload::I32(data)) => Ok(Reduce::SumI32(data)),
        (Reduction::MinI32, Payload::I32(data)) => Ok(Reduce::MinI32(data)),
        (Reduction::And, Payload::U32(data)) => Ok(Reduce::And(data)),
        (Reduction::SumU8, Payload::Bytes(data)) => Ok(Reduce::SumU8(data)),
        (Reduction::Gather, Payload::Bytes(data)) => Ok(Reduce::Gather(data)),
        (Reduction::Broadcast { from }, Payload::Bytes(data)) => Ok(Reduce::Broadcast(data, from as usize)),
        _ => Err(TransportError::Unsupported { operation: "reduction of this kind" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_another_kind_than_its_reduction_is_refused() {
        let unit = Unit { id: 0, start: 0, len: 1, dense: false };
        let refused = |reduction, payload: Payload<'_>| {
            let round = Round { index: 0, reduction, unit, payload_len: 1 };
            reduce_of(&round, payload, Wire::F32).unwrap_err()
        };
        let expected = TransportError::Unsupported { operation: "reduction of this kind" };
        assert_eq!(refused(Reduction::And, Payload::I32(&mut [1])), expected);
        assert_eq!(refused(Reduction::MinI32, Payload::U32(&mut [1])), expected);
        assert_eq!(refused(Reduction::SumI32, Payload::Bytes(&mut [1])), expected);
        assert_eq!(refused(Reduction::SumU8, Payload::U32(&mut [1])), expected);
        assert_eq!(refused(Reduction::Gather, Payload::F32(&mut [1.0])), expected);
        assert_eq!(refused(Reduction::Broadcast { from: 0 }, Payload::U32(&mut [1])), expected);
    }
}
