//! Payloads of linear codecs, summed around a ring, up a tree or by the transport's library, unit by unit and
//! round by round. All units of a part travel at the same time, one hop in each poll; the library sums one
//! after the other.

use gradwire::arithmetic::first_non_finite;
use gradwire::plan::Plan;
use gradwire::rounds::Round;
use gradwire::{DecodeError, Grad, Memory, Unit};

use super::entry::Entry;
use super::error::ExchangeError;
use super::means::Means;
use super::parts::{InParts, Part, Polled};
use super::payload::{UnitRounds, require_workers};
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
    /// The transport's library.
    Native,
}

#[derive(Debug)]
pub(super) struct AllReduce {
    wire: Wire,
    order: Order,
    incoming: Vec<u8>,
    units: Vec<UnitState>,
    /// Of each part, which unit is next in the current poll.
    turns: Vec<Turn>,
    /// How far this rank is on its way into the library, by [`Order::Native`].
    entry: Entry,
    /// The unit whose payload the library is summing.
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

/// One unit, from the start of a step to its finish.
#[derive(Debug, Default)]
struct UnitState {
    rounds: UnitRounds,
    /// Hops of the round that were made, and up to which hop messages are expected.
    hop: usize,
    expected: usize,
    /// Whether the library has summed the round.
    is_summed: bool,
}

impl AllReduce {
    pub(super) fn new(wire: Wire, order: Order, units: usize) -> Self {
        let units = (0..units).map(|_| UnitState::default()).collect();
        let (incoming, turns, entry) = Default::default();
        Self { wire, order, incoming, units, turns, entry, lent: None, frame_bytes: 0, held: 0 }
    }

    /// Whether parts of a step gain anything.
    pub(super) fn has_parts(&self) -> bool {
        self.order == Order::Ring
    }

    /// The hops of a round; `None` if the library sums it.
    fn path(&self, step: &Step<'_>, round: &Round) -> Result<Option<Path>, TransportError> {
        let (rank, members, tag) = (step.rank(), step.port.members().clone(), tag_of(step, round));
        match self.order {
            Order::Ring => Path::ring(rank, members, tag).map(Some),
            Order::Tree => Path::tree(rank, members, tag).map(Some),
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
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Piece, ExchangeError> {
        let Some(round) = self.units[at].rounds.round else { return Ok(Piece::EndOfTurn) };
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
                    let UnitState { rounds, hop, .. } = &mut self.units[at];
                    rounds.with_payload(step.plan, unit, self.wire, |mut data| {
                        path.land(*hop, &mut data, &self.incoming)
                    })?;
                    *hop += 1;
                    let travels = self.send_hops(step, at, unit)?;
                    return Ok(if travels { Piece::EndOfTurn } else { Piece::Moved });
                }
            }
        }
        let state = &mut self.units[at];
        self.frame_bytes += state.rounds.advance(step, unit, self.wire, mean, memory);
        state.rewind();
        self.send_hops(step, at, unit)?;
        Ok(Piece::EndOfTurn)
    }

    /// Sends what is to be sent before a unit takes its next message; returns whether there is one to take.
    fn send_hops(&mut self, step: &mut Step<'_>, at: usize, unit: &Unit) -> Result<bool, TransportError> {
        let Some(round) = self.units[at].rounds.round else { return Ok(false) };
        let Some(path) = self.path(step, &round)? else { return Ok(false) };
        loop {
            let UnitState { rounds, hop, expected, .. } = &mut self.units[at];
            match path.hop(*hop)? {
                None => return Ok(false),
                Some(Hop::Take { .. }) => {
                    // Those that follow come without another message of this rank.
                    *expected = (*expected).max(*hop);
                    while let Some(Hop::Take { from, tag }) = path.hop(*expected)? {
                        step.port.expect(from, tag);
                        *expected += 1;
                    }
                    return Ok(true);
                }
                Some(Hop::Send { to, tag }) => {
                    let port = &mut *step.port;
                    let out = rounds.with_payload(step.plan, unit, self.wire, |data| {
                        let mut out = port.lend_for(path.most_bytes(&data));
                        path.write(*hop, &data, &mut out);
                        Ok(out)
                    })?;
                    step.port.queue(to, tag, Body::Own(out), Care::Must);
                    *hop += 1;
                }
            }
        }
    }

    /// The payload that the library is to sum, and its tag.
    pub(super) fn lent(
        &mut self,
        step: Tag,
        plan: &Plan,
        sum: impl FnOnce(Tag, Reduce<'_>) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        let Some(at) = self.lent.take() else { return Ok(()) };
        let UnitState { rounds, is_summed, .. } = &mut self.units[at];
        let Some(round) = rounds.round else { return Ok(()) };
        let tag = step.unit(round.unit.id).chunk(round.index);
        rounds.with_payload(plan, &plan.units()[at], self.wire, |data| sum(tag, data))?;
        *is_summed = true;
        Ok(())
    }
}

impl UnitState {
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
        (self.frame_bytes, self.held, self.lent, self.entry) = (0, 0, None, Entry::Outside);
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
        require_workers(step, part.units)?;
        for (state, unit) in self.units[part.first..].iter_mut().zip(part.units) {
            let grad = step.selected.map_or_else(|| grad.slice(unit.start, unit.len), |_| grad);
            self.held += state.rounds.begin(step, unit, grad, memory.as_deref())?;
            state.rewind();
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

    fn void_tag(&self, step: &Step<'_>, _: usize) -> Tag {
        note_tag(step.tag)
    }

    fn is_promised(&self) -> bool {
        self.entry.is_promised() && self.units.iter().any(|unit| unit.rounds.round.is_some())
    }

    /// One turn of every unit that still travels.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        if self.order == Order::Native && !self.entry.go_on(step, &mut self.incoming)? {
            return Ok(Polled::Waiting);
        }
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
                turn.travels |= self.units[at].rounds.round.is_some();
                Polled::Busy(Work::Decode)
            }
        })
    }

    fn conclude(
        &mut self,
        _: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError> {
        require_finite(part, mean)
    }

    /// Every unit keeps all of residual + gradient, also those whose mean was complete.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let units = self.units[part.first..].iter_mut().zip(part.units);
        units.for_each(|(state, unit)| state.rounds.abandon(step, unit, memory));
        Ok(())
    }

    fn drain(&mut self, step: &mut Step<'_>) {
        drain_units(step);
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

/// Refuses sums that are not finite.
pub(super) fn require_finite(part: Part<'_>, mean: &mut dyn Means) -> Result<(), ExchangeError> {
    let mut non_finite = |unit: &Unit| Some(unit.start + first_non_finite(mean.of(unit.id, unit.range()))?);
    match part.units.iter().find_map(&mut non_finite) {
        Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
        None => Ok(()),
    }
}

/// Asks for all payloads of the others.
pub(super) fn drain_units(step: &mut Step<'_>) {
    let members = step.members();
    for (_, from) in step.others_in(&members) {
        for unit in step.units() {
            step.port.ask(Wanted { from, tag: step.tag.unit(unit.id), chunks: u32::MAX });
        }
    }
}

fn tag_of(step: &Step<'_>, round: &Round) -> Tag {
    step.tag.unit(round.unit.id).chunk(round.index)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction};
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
}
