//! Every frame goes to every rank, and every rank adds all of them in rank order.

use gradwire::arithmetic::{clear, divide};
use gradwire::format::Divisor;
use gradwire::plan::Group;
use gradwire::rounds::{AfterRounds, StepInput};
use gradwire::{DecodeError, Encoder, Gather, Grad, Memory, Unit};

use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::pipeline::{InParts, Part, Parts, Polled};
use super::report::Work;
use super::rounds_first::Agreement;
use super::senders::Senders;
use super::step::Step;
use crate::rank::{Rank, RankSet};
use crate::tag::Tag;

/// One frame for each part.
#[derive(Debug, Default)]
pub(super) struct AllGather {
    incoming: Incoming,
    frames: Vec<Frames>,
    /// Used only with a codec that has rounds before its frame.
    agreement: Agreement,
    /// Used only with [`Divisor::Senders`].
    senders: Senders,
    held: usize,
}

/// The frames of a part: this rank's own, and by position in the membership those of the others.
#[derive(Debug, Default)]
struct Frames {
    own: Encoder,
    others: Vec<Vec<u8>>,
    /// The position of the member whose frame is added next.
    next: usize,
}

/// Encodes units of the step's gradient into the encoder's own buffer: by the plan, or by the codec that is
/// left of a plan's only one after rounds.
pub(super) fn encode(
    encoder: &mut Encoder,
    step: &mut Step<'_>,
    after_rounds: Option<&dyn Gather>,
    units: &[Unit],
    grad: Grad<'_>,
    memory: &mut Option<&mut Memory<'_>>,
) -> Result<(), ExchangeError> {
    let (key, layout, plan, selected) = (step.key, step.layout.as_ref(), step.plan, step.selected);
    let only = after_rounds.or(plan.only().map(Group::codec));
    encoder.set_divisor(step.divisor);
    let input = StepInput { key, layout: &layout, units, grad };
    let lent = memory.as_deref_mut();
    match (selected, only) {
        (Some((selection, at)), _) => selection.encode(encoder, at, &layout, units, lent),
        (None, Some(codec)) => encoder.encode(codec, key, &layout, units, grad, lent)?,
        (None, None) => encoder.encode_plan(plan, &input, lent)?,
    };
    step.measure(std::iter::once(encoder.frame()), units, grad, memory.as_deref());
    Ok(())
}

impl InParts for AllGather {
    fn set_parts(&mut self, count: usize) {
        self.frames.resize_with(count, Frames::default);
    }

    fn begin_step(&mut self) {
        self.held = 0;
        self.agreement.begin_step();
    }

    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let rounds = step.codec().rounds_first();
        rounds.map_or(Ok(true), |codec| self.agreement.agree(step, codec, grad, memory))
    }

    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let (encoder, codec) = (&mut self.frames[part.at].own, step.codec());
        let Some(rounds) = codec.rounds_first() else {
            return encode(encoder, step, None, part.units, grad, memory);
        };
        let after = AfterRounds::new(rounds, self.agreement.numbers(step, rounds, part));
        encode(encoder, step, Some(&after), part.units, grad, memory)
    }

    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        let tag = self.void_tag(step, part);
        self.frames[part.at].next = 0;
        step.send_frame_to_all(tag, part.at, 0);
        step.expect_from_all(tag);
        Ok(())
    }

    fn frame(&self, part: usize, _: usize) -> &[u8] {
        self.frames[part].own.frame()
    }

    fn void_tag(&self, step: &Step<'_>, part: Part<'_>) -> Tag {
        step.tag.chunk(self.agreement.rounds() + part.at as u32)
    }

    /// Adds the next frame.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        _: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let (members, me) = (step.members(), step.rank());
        let Frames { own, others, next } = &mut self.frames[part.at];
        others.resize_with(others.len().max(members.len()), Vec::new);
        let position = *next;
        let rank = members.as_slice()[position];
        if rank != me && !step.take(&mut others[position])? {
            return Ok(Polled::Waiting);
        }
        let mut senders = (step.divisor == Divisor::Senders).then_some(&mut self.senders);
        if position == 0 {
            let len = mean.len();
            part.units.iter().for_each(|unit| clear(&mut mean[unit.range()], len));
            senders.iter_mut().for_each(|senders| senders.begin(step.layout.len(), part.units));
        }
        let bytes = if rank == me { own.frame() } else { &others[position] };
        self.held += add(&mut self.incoming, step, part, (rank, bytes), (&mut *mean, senders))?;
        *next += 1;
        Ok(if *next == members.len() { Polled::Complete } else { Polled::Busy(Work::Decode) })
    }

    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        parts: &Parts,
        mean: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let members = step.members();
        let index = match step.divisor {
            Divisor::Senders => self.senders.divide(mean),
            _ => divide(mean, members.len()),
        };
        let Some(index) = index else { return Ok(()) };
        let rank = self.culprit(step, parts, &members, index, mean);
        Err(ExchangeError::NonFiniteMean { index, rank })
    }

    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        self.incoming.give_back(self.frames[part.at].own.frame(), part.units, step, memory)
    }

    fn frame_bytes(&self) -> usize {
        self.frames.iter().map(|frames| frames.own.frame().len()).sum()
    }

    fn held(&self) -> usize {
        self.held
    }
}

impl AllGather {
    /// The first rank whose frame makes the sum at `index` infinite or NaN. `sum` is overwritten.
    fn culprit(
        &mut self,
        step: &mut Step<'_>,
        parts: &Parts,
        members: &RankSet,
        index: usize,
        sum: &mut [f32],
    ) -> Option<Rank> {
        sum.fill(0.0);
        let mut all = (0..parts.count()).map(|at| parts.part(step.units(), at));
        let part = all.find(|part| part.units.iter().any(|unit| unit.range().contains(&index)))?;
        let Frames { own, others, .. } = &self.frames[part.at];
        members.iter().zip(others).find_map(|(rank, other)| {
            let bytes = if rank == step.rank() { own.frame() } else { other };
            add(&mut self.incoming, step, part, (rank, bytes), (&mut *sum, None)).ok()?;
            (!sum[index].is_finite()).then_some(rank)
        })
    }
}

/// Checks a rank's frame of a part, adds it and, if senders count, counts what it holds. For this rank's own
/// frame, returns how many coordinates it sends.
fn add(
    incoming: &mut Incoming,
    step: &mut Step<'_>,
    part: Part<'_>,
    (rank, bytes): (Rank, &[u8]),
    (sum, senders): (&mut [f32], Option<&mut Senders>),
) -> Result<usize, ExchangeError> {
    let expected = Requirements::part(step, part.units);
    let (layout, is_own) = (step.layout.as_ref(), rank == step.rank());
    let message = incoming.parse(rank, bytes, &layout, &expected)?;
    message.add_scaled_to(1.0, sum);
    senders.into_iter().for_each(|senders| senders.add(&message));
    Ok(if is_own { message.held() } else { 0 })
}
