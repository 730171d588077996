//! Payloads of linear codecs, summed around a ring, up a tree or by the transport's library, unit by unit and round by
//! round. Around a ring all units of a part travel at the same time, a hop in each turn.

use gradwire::arithmetic::first_non_finite;
use gradwire::codecs::DenseSum;
use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, LinearScratchLen, Payload, Reduction, Round};
use gradwire::{Grad, Linear, Memory, Unit};

use super::pipeline::{InParts, Part, Parts};
use super::{ExchangeError, Step, timed};
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
    codec: LinearCodec,
    wire: Wire,
    order: Order,
    scratch: Scratch,
    units: Vec<UnitState>,
    frame_bytes: usize,
    held: usize,
}

/// One unit's working memory, its own from the start of a step to its finish.
#[derive(Debug, Default)]
struct UnitState {
    words: Vec<u32>,
    floats: Vec<f32>,
    ints: Vec<i32>,
    first: Option<Round>,
    /// The round that is under way, until the mean is there.
    round: Option<Round>,
    /// Hops of the round that are done.
    hop: usize,
}

impl UnitState {
    fn grow(&mut self, needed: LinearScratchLen) {
        grow(&mut self.words, needed.words);
        grow(&mut self.floats, needed.floats);
        grow(&mut self.ints, needed.ints);
    }

    fn scratch(&mut self) -> LinearScratch<'_> {
        LinearScratch { words: &mut self.words, floats: &mut self.floats, ints: &mut self.ints }
    }
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

/// A unit that is sent dense is a plain sum whatever the codec.
fn codec_of<'c>(codec: &'c LinearCodec, unit: &Unit) -> &'c dyn Linear {
    if unit.dense { &DenseSum } else { codec.rounds() }
}

impl AllReduce {
    pub(super) fn new(codec: LinearCodec, wire: Wire, order: Order, units: usize) -> Self {
        let units = (0..units).map(|_| UnitState::default()).collect();
        Self { codec, wire, order, scratch: Scratch::new(), units, frame_bytes: 0, held: 0 }
    }

    pub(super) fn set_codec(&mut self, codec: LinearCodec) {
        self.codec = codec;
    }

    /// Whether a unit travels in hops, between which others can.
    pub(super) fn has_hops(&self) -> bool {
        self.order == Order::Ring
    }

    /// A hop of a unit, or all of them; whether its mean is there.
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

    /// Sends the next hop of a unit's round; whether there is one.
    fn send_hop(&mut self, step: &mut Step<'_>, (at, unit): (usize, &Unit)) -> Result<bool, TransportError> {
        let (has_hops, state) = (self.has_hops(), &mut self.units[at]);
        let Some(round) = state.round.filter(|_| has_hops) else { return Ok(false) };
        let ring = Ring::of_all_reduce(&*step.transport, tag_of(step, &round))?;
        if state.hop == ring.hops() {
            return Ok(false);
        }
        let (hop, out) = (state.hop, &mut self.scratch.outgoing);
        let (to, tag) = timed(&mut step.clock.exchange, || {
            let mut scratch = state.scratch();
            let payload = codec_of(&self.codec, unit).payload(&round, &mut scratch);
            ring.write(hop, &reduce_of(&round, payload, self.wire)?, out)
        })?;
        step.send(to, tag, out)?;
        let (from, tag) = ring.source(hop)?;
        step.underway.expect(from, tag);
        Ok(true)
    }

    /// Takes in the hop of a unit that is under way; alone there is none.
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
        let hop = state.hop;
        state.hop += 1;
        timed(&mut step.clock.exchange, || {
            let mut scratch = state.scratch();
            let payload = codec_of(&self.codec, unit).payload(round, &mut scratch);
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
        let mut scratch = self.units[at].scratch();
        let payload = codec_of(&self.codec, unit).payload(round, &mut scratch);
        let data = reduce_of(round, payload, self.wire)?;
        let (tag, by, sums) = (tag_of(step, round), step.deadline, &mut self.scratch);
        timed(&mut step.clock.exchange, || match self.order {
            Order::Tree => tree_all_reduce(step.transport, tag, data, sums, by),
            _ => step.transport.native_all_reduce(tag, data, by),
        })?;
        Ok(())
    }

    /// From a reduced payload to the next round, or to the mean.
    fn advance(
        &mut self,
        step: &mut Step<'_>,
        (at, unit): (usize, &Unit),
        round: Round,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) {
        let (state, codec) = (&mut self.units[at], codec_of(&self.codec, unit));
        let (layout, workers) = (step.layout.as_ref(), step.transport.membership().ranks.len() as u32);
        self.frame_bytes += round.payload_len * element_bytes(&round, self.wire);
        let next = timed(&mut step.clock.decode, || {
            let mut memory = memory.as_deref_mut().map(|memory| memory.slice(unit.range()));
            let mean = &mut mean[unit.range()];
            codec.advance(&layout, round, &mut state.scratch(), workers, mean, memory.as_mut())
        });
        (state.round, state.hop) = (next, 0);
    }
}

impl InParts for AllReduce {
    /// Every unit has its own state, whatever it travels with.
    fn set_parts(&mut self, _: usize) {}

    fn begin_step(&mut self) {
        (self.frame_bytes, self.held) = (0, 0);
    }

    /// Begins the units. The memory is read, and changed when their means are there.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grad.len(), step.layout.len(), "gradient and layout differ in length");
        let (key, layout) = (step.key, step.layout.as_ref());
        timed(&mut step.clock.encode, || {
            for (state, unit) in self.units[part.first..].iter_mut().zip(part.units) {
                let codec = codec_of(&self.codec, unit);
                state.grow(codec.round_scratch_len(unit.len));
                let grad = grad.slice(unit.start, unit.len);
                let memory = memory.as_deref().map(|memory| memory.view(unit.range()));
                state.first = Some(codec.begin(key, &layout, unit, grad, memory, &mut state.scratch())?);
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

    fn turn(
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

    /// Every unit keeps everything back, those that were done as well.
    fn give_back(&mut self, _: &Step<'_>, part: Part<'_>, memory: &mut Option<&mut Memory<'_>>) {
        for (state, unit) in self.units[part.first..].iter_mut().zip(part.units) {
            if let (Some(round), Some(memory)) = (state.first, memory.as_deref_mut()) {
                let mut memory = memory.slice(unit.range());
                codec_of(&self.codec, unit).abandon(round, &mut state.scratch(), Some(&mut memory));
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
    if round.reduction == Reduction::SumF32 && wire == Wire::Bf16 { 2 } else { 4 }
}

/// The reduction that the round asks for, of its payload.
fn reduce_of<'p>(round: &Round, payload: Payload<'p>, wire: Wire) -> Result<Reduce<'p>, TransportError> {
    match (round.reduction, payload) {
        (Reduction::MaxF32, Payload::F32(data)) => Ok(Reduce::MaxF32(data)),
        (Reduction::SumF32, Payload::F32(data)) => Ok(Reduce::SumF32(data, wire)),
        (Reduction::SumI32, Payload::I32(data)) => Ok(Reduce::SumI32(data)),
        _ => Err(TransportError::Unsupported { operation: "reduction of this kind" }),
    }
}
