//! Payloads of linear codecs, summed around a ring, up a tree, by owners or by the transport's library, unit
//! by unit and round by round. All units of a part travel at the same time, one hop in each poll; the library
//! sums one after the other.

use gradwire::arithmetic::first_non_finite;
use gradwire::plan::Plan;
use gradwire::rounds::{Payload, Reduction, Round, RoundBuffers};
use gradwire::{DecodeError, Grad, Memory, Unit};

use super::error::ExchangeError;
use super::pipeline::{InParts, Part, Parts, Polled};
use super::port::{Body, Care};
use super::report::Work;
use super::step::Step;
use super::void::note_tag;
use crate::collective::{Hop, Path, Reduce, Wire};
use crate::error::TransportError;
use crate::tag::{Tag, Wanted};

/// Who sums a payload, and in which order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    Ring,
    Tree,
    /// Each rank sums a segment.
    Owners,
    /// The transport's library.
    Native,
}

#[derive(Debug)]
pub(super) struct AllReduce {
    wire: Wire,
    order: Order,
    incoming: Vec<u8>,
    units: Vec<UnitBuffers>,
    /// Of each part, which unit is next in the current poll.
    turns: Vec<Turn>,
    /// The unit whose payload the library is summing, and whether it has done so.
    lent: Option<usize>,
    frame_bytes: usize,
    held: usize,
}

/// Where a poll of a part stands.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    next: usize,
    /// Whether a unit before the next one still travels.
    travels: bool,
}

/// One unit's working memory, from the start of a step to its finish.
#[derive(Debug, Default)]
struct UnitBuffers {
    buffers: RoundBuffers,
    first: Option<Round>,
    /// The current round; `None` once the mean is complete.
    round: Option<Round>,
    /// Hops of the round that were made, and up to which hop messages are expected.
    hop: usize,
    expected: usize,
    /// Whether the library has summed the round.
    is_summed: bool,
}

impl AllReduce {
    pub(super) fn new(wire: Wire, order: Order, units: usize) -> Self {
        let units = (0..units).map(|_| UnitBuffers::default()).collect();
        let (incoming, turns) = (Vec::new(), Vec::new());
        Self { wire, order, incoming, units, turns, lent: None, frame_bytes: 0, held: 0 }
    }

    /// Whether parts of a step gain anything.
    pub(super) fn has_parts(&self) -> bool {
        matches!(self.order, Order::Ring | Order::Owners)
    }

    /// The hops of a round; `None` if the library sums it.
    fn path(&self, step: &Step<'_>, round: &Round) -> Result<Option<Path>, TransportError> {
        let (rank, members, tag) = (step.rank(), step.port.members().clone(), tag_of(step, round));
        match self.order {
            Order::Ring => Path::ring(rank, members, tag).map(Some),
            Order::Tree => Path::tree(rank, members, tag).map(Some),
            Order::Owners => Path::owners(rank, members, tag).map(Some),
            Order::Native => Ok(None),
        }
    }

    /// The next piece of a unit's turn: the message that it waits for and those that follow, or the advance
    /// to the next round.
    fn turn_unit(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        unit: &Unit,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Piece, ExchangeError> {
        let Some(round) = self.units[at].round else { return Ok(Piece::EndOfTurn) };
        match self.path(step, &round)? {
            None if !self.units[at].is_summed => {
                step.port.failure()?;
                self.lent = Some(at);
                return Ok(Piece::Lend);
            }
            None => {}
            Some(path) => {
                if let Some(Hop::Take { from, tag }) = path.hop(self.units[at].hop)? {
                    if !step.port.take_named((from, tag), &mut self.incoming, step.layout)? {
                        return Ok(Piece::Waiting);
                    }
                    self.land(step, &path, (at, unit), &round)?;
                    let travels = self.send_hops(step, at, unit)?;
                    return Ok(if travels { Piece::EndOfTurn } else { Piece::Moved });
                }
            }
        }
        self.advance(step, at, unit, round, mean, memory);
        self.send_hops(step, at, unit)?;
        Ok(Piece::EndOfTurn)
    }

    /// Sends what is to be sent before a unit takes its next message; returns whether there is one to take.
    fn send_hops(&mut self, step: &mut Step<'_>, at: usize, unit: &Unit) -> Result<bool, TransportError> {
        let Some(round) = self.units[at].round else { return Ok(false) };
        let Some(path) = self.path(step, &round)? else { return Ok(false) };
        loop {
            let state = &mut self.units[at];
            match path.hop(state.hop)? {
                None => return Ok(false),
                Some(Hop::Take { .. }) => {
                    // Those that follow come without another message of this rank.
                    state.expected = state.expected.max(state.hop);
                    while let Some(Hop::Take { from, tag }) = path.hop(state.expected)? {
                        step.port.expect(from, tag);
                        state.expected += 1;
                    }
                    return Ok(true);
                }
                Some(Hop::Send { to, tag }) => {
                    let mut scratch = state.buffers.scratch();
                    let payload = step.plan.rounds_of(unit).payload(&round, &mut scratch);
                    let data = reduce_of(&round, payload, self.wire)?;
                    let mut out = step.port.lend_for(path.most_bytes(&data));
                    path.write(state.hop, &data, &mut out);
                    step.port.queue(to, tag, Body::Own(out), Care::Must);
                    state.hop += 1;
                }
            }
        }
    }

    /// Handles the message of a hop.
    fn land(
        &mut self,
        step: &Step<'_>,
        path: &Path,
        (at, unit): (usize, &Unit),
        round: &Round,
    ) -> Result<(), TransportError> {
        let state = &mut self.units[at];
        let mut scratch = state.buffers.scratch();
        let payload = step.plan.rounds_of(unit).payload(round, &mut scratch);
        path.land(state.hop, &mut reduce_of(round, payload, self.wire)?, &self.incoming)?;
        state.hop += 1;
        Ok(())
    }

    /// The payload that the library is to sum, and its tag.
    pub(super) fn lent(
        &mut self,
        step: Tag,
        plan: &Plan,
        sum: impl FnOnce(Tag, Reduce<'_>) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        let Some(at) = self.lent.take() else { return Ok(()) };
        let state = &mut self.units[at];
        let Some(round) = state.round else { return Ok(()) };
        let mut scratch = state.buffers.scratch();
        let payload = plan.rounds_of(&plan.units()[at]).payload(&round, &mut scratch);
        let tag = step.unit(round.unit.id).chunk(round.index);
        sum(tag, reduce_of(&round, payload, self.wire)?)?;
        state.is_summed = true;
        Ok(())
    }

    /// Turns a reduced payload into the next round, or into the mean.
    fn advance(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        unit: &Unit,
        round: Round,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) {
        let (state, plan) = (&mut self.units[at], step.plan);
        let (layout, workers) = (step.layout.as_ref(), step.members().len() as u32);
        self.frame_bytes += round.payload_len * element_bytes(&round, self.wire);
        let memory = memory.as_deref_mut().filter(|_| plan.lends_to(unit));
        let mut memory = memory.map(|memory| memory.slice(unit.range()));
        let (codec, scratch, mean) =
            (plan.rounds_of(unit), &mut state.buffers.scratch(), &mut mean[unit.range()]);
        state.round = codec.advance(&layout, round, scratch, workers, mean, memory.as_mut());
        state.rewind();
    }
}

impl UnitBuffers {
    /// Begins the hops of a round.
    fn rewind(&mut self) {
        (self.hop, self.expected, self.is_summed) = (0, 0, false);
    }
}

/// What a piece of a unit's turn was.
enum Piece {
    Waiting,
    Lend,
    Moved,
    EndOfTurn,
}

impl InParts for AllReduce {
    const HAS_NOTES: bool = true;

    fn set_parts(&mut self, count: usize) {
        self.turns.resize(count, Turn::default());
    }

    fn begin_step(&mut self) {
        (self.frame_bytes, self.held, self.lent) = (0, 0, None);
        self.turns.fill(Turn::default());
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
        let workers = step.members().len();
        let plan = step.plan;
        let most = |unit: &Unit| plan.rounds_of(unit).most_contributors();
        let fewest = part.units.iter().map(|unit| (most(unit), unit)).min_by_key(|(most, _)| *most);
        let fewest = fewest.filter(|(most, _)| u32::try_from(workers).is_ok_and(|workers| workers > *most));
        if let Some((most, unit)) = fewest {
            let codec = plan.group_of(unit).name();
            return Err(ExchangeError::TooManyWorkers { codec, workers, most });
        }
        let (key, layout) = (step.key, step.layout.as_ref());
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
            state.round = state.first;
            state.rewind();
            self.held += codec.held(unit.len);
        }
        Ok(())
    }

    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        for (at, unit) in (part.first..).zip(part.units) {
            self.send_hops(step, at, unit)?;
        }
        Ok(())
    }

    fn frame(&self, _: usize, _: usize) -> &[u8] {
        unreachable!("payloads change while they travel, so every message has a buffer of its own")
    }

    fn void_tag(&self, step: &Step<'_>, _: Part<'_>) -> Tag {
        note_tag(step.tag)
    }

    /// One turn of every unit that still travels.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let turn = self.turns[part.at];
        let Some(unit) = part.units.get(turn.next) else {
            self.turns[part.at] = Turn::default();
            return Ok(if turn.travels { Polled::More } else { Polled::Complete });
        };
        let at = part.first + turn.next;
        Ok(match self.turn_unit(step, at, unit, mean, memory)? {
            Piece::Waiting => Polled::Waiting,
            Piece::Lend => Polled::Lent,
            Piece::Moved => Polled::Busy(Work::Exchange),
            Piece::EndOfTurn => {
                let turn = &mut self.turns[part.at];
                turn.next += 1;
                turn.travels |= self.units[at].round.is_some();
                Polled::Busy(Work::Decode)
            }
        })
    }

    fn conclude(&mut self, _: &mut Step<'_>, _: &Parts, mean: &mut [f32]) -> Result<(), ExchangeError> {
        match first_non_finite(mean) {
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

    fn drain(&mut self, step: &mut Step<'_>) {
        let members = step.members();
        for (_, from) in step.others_in(&members) {
            for unit in step.units() {
                step.port.ask(Wanted { from, tag: step.tag.unit(unit.id), chunks: u32::MAX });
            }
        }
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

    use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView};
    use gradwire::{EncodeError, Layout, LayoutRef, Linear, Source, StepKey, UnitPolicy};

    use super::*;
    use crate::exchange::{Exchange, Route};
    use crate::local;
    use crate::tag::Deadline;
    use crate::transport::Transport;

    const RING: Route = Route::AllReduce { wire: Wire::Bf16 };
    const TREE: Route = Route::Tree { wire: Wire::Bf16 };
    const OWNERS: Route = Route::Owners { wire: Wire::Bf16 };

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
    fn step(mut transport: impl Transport, route: Route, len: usize) -> Result<Vec<f32>, ExchangeError> {
        let cut = len / 3;
        let layout = Layout::packed([("v", vec![cut]), ("w", vec![len - cut])]).unwrap();
        let units = UnitPolicy { per_tensor: true, ..UnitPolicy::default() };
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
        let owners = [1, 2, 3, 4, 5].map(|world| (OWNERS, world));
        let others = [(RING, 1), (RING, 2), (RING, 5), (TREE, 1), (TREE, 4), (TREE, 5)];
        for (route, world) in others.into_iter().chain(owners) {
            for len in [0, 1, 31, 33, 100, 257] {
                let all: Vec<_> = (0..world).map(|rank| gradient(rank, len)).collect();
                let expected: Vec<f32> = (0..len)
                    .map(|at| {
                        let least = all.iter().map(|grad| (grad[at] * 16.0).floor() as i32).min().unwrap();
                        let half = if all.iter().all(|grad| grad[at] >= 0.0) { 0.5 } else { 0.0 };
                        least as f32 + half
                    })
                    .collect();
                let spawn = |end| {
                    let route = route.clone();
                    thread::spawn(move || step(end, route, len))
                };
                let ends: Vec<_> = local::world(world).into_iter().map(spawn).collect();
                for end in ends {
                    assert_eq!(end.join().unwrap().unwrap(), expected, "{route:?} of {world}, {len}");
                }
            }
        }
    }

    #[test]
    fn more_workers_than_a_sum_has_room_for_are_refused_before_anything_is_sent() {
        for end in local::world(6) {
            let codec = std::any::type_name::<Votes>();
            let refused = ExchangeError::TooManyWorkers { codec, workers: 6, most: 5 };
            assert_eq!(step(end, RING, 9), Err(refused));
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
    }
}
