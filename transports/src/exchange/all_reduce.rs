//! Payloads of linear codecs, summed around a ring, up a tree or by the transport's library, unit by unit and
//! round by round. Around a ring all units of a part travel at the same time, one hop in each poll.

use gradwire::arithmetic::first_non_finite;
use gradwire::rounds::{Payload, Reduction, Round, RoundBuffers};
use gradwire::{DecodeError, Grad, Memory, Unit};

use super::error::ExchangeError;
use super::pipeline::{InParts, Part, Parts};
use super::step::{Step, timed};
use super::void::{Watched, note_tag};
use crate::collective::{Reduce, Ring, Scratch, Wire, tree_all_reduce};
use crate::error::TransportError;
use crate::tag::Tag;

/// Who sums a payload, and in which order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    Ring,
    Tree,
    /// The transport's library.
    Native,
}

#[derive(Debug)]
pub(super) struct AllReduce {
    wire: Wire,
    order: Order,
    scratch: Scratch,
    units: Vec<UnitBuffers>,
    frame_bytes: usize,
    held: usize,
}

/// One unit's working memory, from the start of a step to its finish.
#[derive(Debug, Default)]
struct UnitBuffers {
    buffers: RoundBuffers,
    first: Option<Round>,
    /// The current round; `None` once the mean is complete.
    round: Option<Round>,
    /// Completed hops of the round.
    hop: usize,
}

impl AllReduce {
    pub(super) fn new(wire: Wire, order: Order, units: usize) -> Self {
        let units = (0..units).map(|_| UnitBuffers::default()).collect();
        Self { wire, order, scratch: Scratch::new(), units, frame_bytes: 0, held: 0 }
    }

    /// Whether a unit travels in hops, so that other units can travel between them.
    pub(super) fn has_hops(&self) -> bool {
        self.order == Order::Ring
    }

    /// Makes one hop of a unit, or all of them. Returns whether its mean is complete.
    fn turn_unit(
        &mut self,
        step: &mut Step<'_>,
        (at, unit): (usize, &Unit),
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let Some(round) = self.units[at].round else { return Ok(true) };
        if self.has_hops() {
            self.take_hop(step, (at, unit), &round)?;
            if self.send_hop(step, (at, unit))? {
                return Ok(false);
            }
        } else {
            self.sum_at_once(step, (at, unit), &round)?;
        }
        self.advance(step, (at, unit), round, mean, memory);
        self.send_hop(step, (at, unit))?;
        Ok(self.units[at].round.is_none())
    }

    /// Sends the next hop of a unit's round; returns whether there was one.
    fn send_hop(&mut self, step: &mut Step<'_>, (at, unit): (usize, &Unit)) -> Result<bool, TransportError> {
        let (has_hops, state) = (self.has_hops(), &mut self.units[at]);
        let Some(round) = state.round.filter(|_| has_hops) else { return Ok(false) };
        let ring = Ring::of_all_reduce(&*step.transport, tag_of(step, &round))?;
        if state.hop == ring.hops() {
            return Ok(false);
        }
        let (hop, out, plan) = (state.hop, &mut self.scratch.outgoing, step.plan);
        let (to, tag) = timed(&mut step.clock.exchange, || {
            let mut scratch = state.buffers.scratch();
            let payload = plan.rounds_of(unit).payload(&round, &mut scratch);
            ring.write(hop, &reduce_of(&round, payload, self.wire)?, out)
        })?;
        step.send(to, tag, out)?;
        let (from, tag) = ring.source(hop)?;
        step.underway.expect(from, tag);
        Ok(true)
    }

    /// Receives the hop of a unit in flight. A single rank has no hops.
    fn take_hop(
        &mut self,
        step: &mut Step<'_>,
        (at, unit): (usize, &Unit),
        round: &Round,
    ) -> Result<(), TransportError> {
        let ring = Ring::of_all_reduce(&*step.transport, tag_of(step, round))?;
        if ring.hops() == 0 {
            return Ok(());
        }
        let (state, incoming) = (&mut self.units[at], &mut self.scratch.incoming);
        step.take(incoming)?;
        let (hop, plan) = (state.hop, step.plan);
        state.hop += 1;
        timed(&mut step.clock.exchange, || {
            let mut scratch = state.buffers.scratch();
            let payload = plan.rounds_of(unit).payload(round, &mut scratch);
            ring.land(hop, &mut reduce_of(round, payload, self.wire)?, incoming)
        })
    }

    /// The whole reduction of a round.
    fn sum_at_once(
        &mut self,
        step: &mut Step<'_>,
        (at, unit): (usize, &Unit),
        round: &Round,
    ) -> Result<(), TransportError> {
        let mut scratch = self.units[at].buffers.scratch();
        let payload = step.plan.rounds_of(unit).payload(round, &mut scratch);
        let data = reduce_of(round, payload, self.wire)?;
        let (tag, by, sums) = (tag_of(step, round), step.deadline, &mut self.scratch);
        timed(&mut step.clock.exchange, || match self.order {
            Order::Tree => {
                let note = &mut step.underway.note;
                let mut watched = Watched { transport: &mut *step.transport, step: step.tag, note };
                tree_all_reduce(&mut watched, tag, data, sums, by)
            }
            _ => step.transport.native_all_reduce(tag, data, by),
        })?;
        Ok(())
    }

    /// Turns a reduced payload into the next round, or into the mean.
    fn advance(
        &mut self,
        step: &mut Step<'_>,
        (at, unit): (usize, &Unit),
        round: Round,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) {
        let (state, plan) = (&mut self.units[at], step.plan);
        let (layout, workers) = (step.layout.as_ref(), step.transport.membership().ranks.len() as u32);
        self.frame_bytes += round.payload_len * element_bytes(&round, self.wire);
        let next = timed(&mut step.clock.decode, || {
            let memory = memory.as_deref_mut().filter(|_| plan.lends_to(unit));
            let mut memory = memory.map(|memory| memory.slice(unit.range()));
            let mean = &mut mean[unit.range()];
            let (codec, scratch) = (plan.rounds_of(unit), &mut state.buffers.scratch());
            codec.advance(&layout, round, scratch, workers, mean, memory.as_mut())
        });
        (state.round, state.hop) = (next, 0);
    }
}

impl InParts for AllReduce {
    const HAS_NOTES: bool = true;

    /// Every unit has a state of its own, in whatever part it travels.
    fn set_parts(&mut self, _: usize) {}

    fn begin_step(&mut self) {
        (self.frame_bytes, self.held) = (0, 0);
    }

    /// Begins the units. Only reads the memory: it changes when the means are complete.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grad.len(), step.layout.len(), "gradient and layout differ in length");
        let workers = step.transport.membership().ranks.len();
        let plan = step.plan;
        let most = |unit: &Unit| plan.rounds_of(unit).most_contributors();
        let fewest = part.units.iter().map(|unit| (most(unit), unit)).min_by_key(|(most, _)| *most);
        let fewest = fewest.filter(|(most, _)| u32::try_from(workers).is_ok_and(|workers| workers > *most));
        if let Some((most, unit)) = fewest {
            let codec = plan.group_of(unit).name();
            return Err(ExchangeError::TooManyWorkers { codec, workers, most });
        }
        let (key, layout) = (step.key, step.layout.as_ref());
        timed(&mut step.clock.encode, || {
            for (state, unit) in self.units[part.first..].iter_mut().zip(part.units) {
                let codec = plan.rounds_of(unit);
                state.buffers.grow(codec.round_scratch_len(unit.len));
                let mut scratch = state.buffers.scratch();
                let first = if let Some((selection, at)) = step.selected {
                    selection.begin(at, &layout, unit, &mut scratch)?
                } else {
                    let grad = grad.slice(unit.start, unit.len);
                    let memory = memory.as_deref().filter(|_| plan.lends_to(unit));
                    let memory = memory.map(|memory| memory.view(unit.range()));
                    codec.begin(key, &layout, unit, grad, memory, &mut scratch)?
                };
                state.first = Some(first);
                (state.round, state.hop) = (state.first, 0);
                self.held += codec.held(unit.len);
            }
            Ok(())
        })
    }

    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        for unit in (part.first..).zip(part.units) {
            self.send_hop(step, unit)?;
        }
        Ok(())
    }

    fn void_tag(&self, step: &Step<'_>, _: Part<'_>) -> Tag {
        note_tag(step.tag)
    }

    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let mut is_over = true;
        for unit in (part.first..).zip(part.units) {
            is_over &= self.turn_unit(step, unit, mean, memory)?;
        }
        Ok(is_over)
    }

    fn conclude(&mut self, step: &mut Step<'_>, _: &Parts, mean: &mut [f32]) -> Result<(), ExchangeError> {
        match timed(&mut step.clock.decode, || first_non_finite(mean)) {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => Ok(()),
        }
    }

    /// Every unit keeps all of residual + gradient, also those whose mean was complete.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        for (state, unit) in self.units[part.first..].iter_mut().zip(part.units) {
            let memory = memory.as_deref_mut().filter(|_| step.plan.lends_to(unit));
            if let (Some(round), Some(memory)) = (state.first, memory) {
                let mut memory = memory.slice(unit.range());
                step.plan.rounds_of(unit).abandon(round, &mut state.buffers.scratch(), Some(&mut memory));
            }
        }
        Ok(())
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

fn tag_of(step: &Step<'_>, round: &Round) -> Tag {
    step.tag.unit(round.unit.id).chunk(round.index)
}

fn element_bytes(round: &Round, wire: Wire) -> usize {
    match round.reduction {
        Reduction::SumF32 if wire == Wire::Bf16 => 2,
        Reduction::SumU8 => 1,
        _ => 4,
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
        _ => Err(TransportError::Unsupported { operation: "reduction of this kind" }),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use gradwire::plan::Plan;
    use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView};
    use gradwire::{EncodeError, Layout, LayoutRef, Linear, Source, StepKey, UnitPolicy};

    use super::*;
    use crate::exchange::{Exchange, Route};
    use crate::local;
    use crate::tag::Deadline;
    use crate::transport::Transport;

    /// The smallest gradient in sixteenths, and not less than zero if no worker's is negative: one round of
    /// votes, one of minima.
    #[derive(Debug)]
    struct Votes;

    impl Linear for Votes {
        fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
            LinearScratchLen { words: len + len.div_ceil(32), floats: 0, ints: len }
        }

        fn held(&self, len: usize) -> usize {
            len
        }

        fn most_contributors(&self) -> u32 {
            5
        }

        fn begin(
            &self,
            _: StepKey,
            _: &LayoutRef<'_>,
            unit: &Unit,
            grad: Grad<'_>,
            _: Option<MemoryView<'_>>,
            scratch: &mut LinearScratch<'_>,
        ) -> Result<Round, EncodeError> {
            let Grad::F32(grad) = grad else { panic!("a gradient of f32") };
            let (p, masks) = scratch.words.split_at_mut(unit.len);
            masks.fill(0);
            for (at, value) in grad.iter().enumerate() {
                p[at] = value.to_bits();
                scratch.ints[at] = (value * 16.0).floor() as i32;
                masks[at / 32] |= u32::from(*value >= 0.0) << (at % 32);
            }
            let payload_len = unit.len.div_ceil(32);
            Ok(Round { index: 0, reduction: Reduction::And, unit: *unit, payload_len })
        }

        fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
            match round.reduction {
                Reduction::And => Payload::U32(&mut scratch.words[round.unit.len..][..round.payload_len]),
                _ => Payload::I32(&mut scratch.ints[..round.payload_len]),
            }
        }

        fn advance(
            &self,
            _: &LayoutRef<'_>,
            round: Round,
            scratch: &mut LinearScratch<'_>,
            _: u32,
            mean: &mut [f32],
            _: Option<&mut Memory<'_>>,
        ) -> Option<Round> {
            if round.reduction == Reduction::And {
                let payload_len = round.unit.len;
                return Some(Round { index: 1, reduction: Reduction::MinI32, payload_len, ..round });
            }
            let masks = &scratch.words[round.unit.len..];
            for (at, mean) in mean.iter_mut().enumerate() {
                let none_is_negative = masks[at / 32] >> (at % 32) & 1 == 1;
                *mean = scratch.ints[at] as f32 + if none_is_negative { 0.5 } else { 0.0 };
            }
            None
        }
    }

    fn gradient(rank: u32, len: usize) -> Vec<f32> {
        let stream = StepKey { seed: 3, step: len as u64, source: Source::Rank(rank) }.stream(0);
        (0..len as u64).map(|at| (stream.u64_at(at) as u32 % 2000) as f32 / 100.0 - 4.0).collect()
    }

    /// What one rank has after a step.
    fn step(mut transport: impl Transport, order: Order, len: usize) -> Result<Vec<f32>, ExchangeError> {
        let cut = len / 3;
        let layout = Layout::packed([("a", vec![cut]), ("b", vec![len - cut])]).unwrap();
        let units = UnitPolicy { per_tensor: true, ..UnitPolicy::default() };
        let wire = Wire::Bf16;
        let route = if order == Order::Ring { Route::AllReduce { wire } } else { Route::Tree { wire } };
        let plan = Plan::of_linear(Votes, units, &layout.as_ref());
        let mut exchange = Exchange::new(plan, layout, route).unwrap();
        let rank = transport.rank().0;
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(rank) };
        let (mut mean, grad) = (vec![f32::NAN; len], gradient(rank, len));
        exchange.start(&mut transport, key, Grad::F32(&grad), None, Deadline::NEVER)?;
        exchange.finish(&mut transport, &mut mean, None, Deadline::NEVER)?;
        Ok(mean)
    }

    #[test]
    fn rounds_of_votes_and_minima_are_reduced_as_by_hand() {
        for (order, world) in
            [(Order::Ring, 1), (Order::Ring, 2), (Order::Ring, 5), (Order::Tree, 1), (Order::Tree, 4)]
        {
            for len in [0, 1, 31, 33, 100, 257] {
                let all: Vec<_> = (0..world).map(|rank| gradient(rank, len)).collect();
                let expected: Vec<f32> = (0..len)
                    .map(|at| {
                        let least = all.iter().map(|grad| (grad[at] * 16.0).floor() as i32).min().unwrap();
                        let half = if all.iter().all(|grad| grad[at] >= 0.0) { 0.5 } else { 0.0 };
                        least as f32 + half
                    })
                    .collect();
                let ends: Vec<_> = local::world(world)
                    .into_iter()
                    .map(|end| thread::spawn(move || step(end, order, len)))
                    .collect();
                for end in ends {
                    assert_eq!(end.join().unwrap().unwrap(), expected, "{order:?} of {world}, {len}");
                }
            }
        }
    }

    #[test]
    fn more_workers_than_a_sum_has_room_for_are_refused_before_anything_is_sent() {
        for end in local::world(6) {
            let codec = std::any::type_name::<Votes>();
            let refused = ExchangeError::TooManyWorkers { codec, workers: 6, most: 5 };
            assert_eq!(step(end, Order::Ring, 9), Err(refused));
        }
    }

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
        assert_eq!(refused(Reduction::Neighbour, Payload::F32(&mut [1.0])), expected);
    }
}
