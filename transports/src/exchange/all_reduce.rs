//! Payloads of linear codecs, summed around a ring, up a tree or by the transport's library, unit by unit and
//! round by round. All units of a part travel at the same time, one hop in each poll; the library sums one
//! after the other.

use gradwire::arithmetic::first_non_finite;
use gradwire::plan::Plan;
use gradwire::rounds::{Reduction, Round};
use gradwire::{DecodeError, Grad, Memory, Unit};

use super::entry::Entry;
use super::error::ExchangeError;
use super::means::Means;
use super::part_route::{InParts, Polled};
use super::parts::Part;
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
            Order::Ring => Path::ring(rank, members, tag, round.reduction == Reduction::Gather).map(Some),
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
            step.port.ask(Wanted::chunks(from, step.tag.unit(unit.id), u32::MAX));
        }
    }
}

fn tag_of(step: &Step<'_>, round: &Round) -> Tag {
    step.tag.unit(round.unit.id).chunk(round.index)
}
