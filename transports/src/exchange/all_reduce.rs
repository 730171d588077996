//! Payloads of linear codecs, summed around a ring, up a tree or by the transport's library, unit by unit and round by
//! round.

use gradwire::{
    DenseSum, Grad, Linear, LinearCodec, LinearScratch, LinearScratchLen, Memory, Payload, Reduction, Round,
    Unit,
};

use super::incoming::first_non_finite;
use super::{Clock, ExchangeError, Report, Step, timed};
use crate::collective::{Reduce, Scratch, Wire, tree_all_reduce};
use crate::error::TransportError;

/// Who sums a payload, and in which order.
#[derive(Clone, Copy, Debug)]
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
}

/// One unit's working memory, its own from the start of a step to its finish.
#[derive(Debug, Default)]
struct UnitState {
    words: Vec<u32>,
    floats: Vec<f32>,
    ints: Vec<i32>,
    first: Option<Round>,
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
    if unit.dense { &DenseSum } else { codec }
}

impl AllReduce {
    pub(super) fn new(codec: LinearCodec, wire: Wire, order: Order, units: usize) -> Self {
        let units = (0..units).map(|_| UnitState::default()).collect();
        Self { codec, wire, order, scratch: Scratch::new(), units }
    }

    pub(super) fn set_codec(&mut self, codec: LinearCodec) {
        self.codec = codec;
    }

    /// Begins every unit. The memory is read, and changed by `finish` alone.
    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grad.len(), step.layout.len(), "gradient and layout differ in length");
        let (key, layout) = (step.key, step.layout.as_ref());
        timed(&mut step.clock.encode, || {
            for (state, unit) in self.units.iter_mut().zip(step.units) {
                let codec = codec_of(&self.codec, unit);
                state.grow(codec.round_scratch_len(unit.len));
                let grad = grad.slice(unit.start, unit.len);
                let memory = memory.map(|memory| memory.view(unit.range()));
                state.first = Some(codec.begin(key, &layout, unit, grad, memory, &mut state.scratch())?);
            }
            Ok(())
        })
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let result = self.reduce(step, mean, memory);
        if result.is_err() {
            self.abandon(step.units, memory);
        }
        result
    }

    fn reduce(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let mut contributors = step.transport.membership().ranks;
        let Clock { mut exchange, mut decode, encode } = step.clock;
        let layout = step.layout.as_ref();
        let (mut frame_bytes, mut held) = (0, 0);
        for (state, unit) in self.units.iter_mut().zip(step.units) {
            let codec = codec_of(&self.codec, unit);
            let mut next = state.first;
            held += codec.held(unit.len);
            while let Some(round) = next {
                let mut scratch = state.scratch();
                let payload = codec.payload(&round, &mut scratch);
                frame_bytes += round.payload_len * element_bytes(&round, self.wire);
                let data = reduce_of(&round, payload, self.wire)?;
                let tag = step.tag.unit(round.unit.id).chunk(round.index);
                let (transport, scratch_of_sum, by) =
                    (&mut *step.transport, &mut self.scratch, step.deadline);
                contributors = timed(&mut exchange, || match self.order {
                    Order::Ring => transport.all_reduce(tag, data, scratch_of_sum, by),
                    Order::Tree => tree_all_reduce(transport, tag, data, scratch_of_sum, by),
                    Order::Native => transport.native_all_reduce(tag, data, by),
                })?;
                next = timed(&mut decode, || {
                    let mut memory = memory.as_deref_mut().map(|memory| memory.slice(unit.range()));
                    let (workers, mean) = (contributors.len() as u32, &mut mean[unit.range()]);
                    codec.advance(&layout, round, &mut scratch, workers, mean, memory.as_mut())
                });
            }
        }
        match timed(&mut decode, || first_non_finite(mean)) {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => {
                let (refused, capped, packets) = Default::default();
                Ok(Report {
                    contributors,
                    refused,
                    capped,
                    frame_bytes,
                    packets,
                    held,
                    encode,
                    exchange,
                    decode,
                })
            }
        }
    }

    /// Every unit keeps everything back, those that were done as well.
    fn abandon(&mut self, units: &[Unit], memory: &mut Option<&mut Memory<'_>>) {
        for (state, unit) in self.units.iter_mut().zip(units) {
            if let (Some(round), Some(memory)) = (state.first, memory.as_deref_mut()) {
                let mut memory = memory.slice(unit.range());
                codec_of(&self.codec, unit).abandon(round, &mut state.scratch(), Some(&mut memory));
            }
        }
    }
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
