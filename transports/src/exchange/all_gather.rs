//! Every frame goes to every rank, and every rank adds all of them in rank order.

use gradwire::arithmetic::{clear, divide};
use gradwire::format::Divisor;
use gradwire::plan::Group;
use gradwire::rounds::{AfterRounds, StepInput};
use gradwire::{DecodeError, Encoder, Gather, Grad, Memory, Unit};

use super::error::ExchangeError;
use super::head::{self, Head};
use super::incoming::{Incoming, Requirements};
use super::parts::{InParts, Part, Polled, runs};
use super::report::Work;
use super::rounds_first::Agreement;
use super::senders::Senders;
use super::step::Step;
use super::void::refusal;
use crate::rank::Rank;
use crate::tag::Tag;

/// One frame for each part.
#[derive(Debug, Default)]
pub(super) struct AllGather {
    incoming: Incoming,
    /// Of the parts of this step, and of steps that had more.
    frames: Vec<Frames>,
    /// The units of a part that the sender of a message has.
    present: Vec<Unit>,
    /// Used only with a codec that has rounds before its frame.
    agreement: Agreement,
    /// Used only with [`Divisor::Senders`].
    senders: Senders,
    frame_bytes: usize,
    held: usize,
}

/// The frames of a part: this rank's own, and by position in the membership those of the others.
#[derive(Debug, Default)]
struct Frames {
    own: Encoder,
    /// Of an added part: the head, and the own frames behind it.
    headed: Vec<u8>,
    others: Vec<Vec<u8>>,
    /// The position of the member whose frame is added next.
    next: usize,
}

impl Frames {
    /// This rank's own frames of a part; empty if it lacks all of its units.
    fn own(&self, part: Part<'_>) -> &[u8] {
        if part.own.is_empty() { &[] } else { self.own.frame() }
    }
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
        self.frames.resize_with(self.frames.len().max(count), Frames::default);
    }

    fn begin_step(&mut self) {
        (self.held, self.frame_bytes) = (0, 0);
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
        let (frames, codec) = (&mut self.frames[part.at], step.codec());
        let encoder = &mut frames.own;
        let Some(rounds) = codec.rounds_first() else {
            if !part.own.is_empty() {
                encode(encoder, step, None, part.own, grad, memory)?;
            }
            if part.says.is_some() {
                head::write(part, &mut frames.headed);
                let Frames { own, headed, .. } = frames;
                headed.extend_from_slice(if part.own.is_empty() { &[] } else { own.frame() });
            }
            return Ok(());
        };
        let after = AfterRounds::new(rounds, self.agreement.numbers(step, rounds, part));
        encode(encoder, step, Some(&after), part.units, grad, memory)
    }

    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        let tag = self.void_tag(step, part.at);
        let frames = &mut self.frames[part.at];
        frames.next = 0;
        self.frame_bytes += frames.own(part).len();
        step.send_frame_to_all(tag, part.at, if part.says.is_some() { HEADED } else { ALONE });
        step.expect_from_all(tag);
        Ok(())
    }

    fn frame(&self, part: usize, place: usize) -> &[u8] {
        let frames = &self.frames[part];
        if place == HEADED { &frames.headed } else { frames.own.frame() }
    }

    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag {
        step.tag.chunk(self.agreement.rounds() + at as u32)
    }

    fn head_tag(&self, step: &Step<'_>, at: usize) -> Option<Tag> {
        step.codec().rounds_first().is_none().then(|| self.void_tag(step, at))
    }

    fn headed(&self, part: usize, position: Option<usize>) -> &[u8] {
        let frames = &self.frames[part];
        position.map_or(&frames.headed, |position| &frames.others[position])
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
        let Frames { others, next, .. } = &mut self.frames[part.at];
        others.resize_with(others.len().max(members.len()), Vec::new);
        let position = *next;
        let rank = members.as_slice()[position];
        if rank != me && !step.take(&mut others[position])? {
            return Ok(Polled::Waiting);
        }
        if position == 0 {
            let len = mean.len();
            part.units.iter().for_each(|unit| clear(&mut mean[unit.range()], len));
            if step.divisor == Divisor::Senders {
                self.senders.begin(step.layout.len(), part.units);
            }
        }
        let held = self.add(step, part, position, mean, true)?;
        self.held += if rank == me { held } else { 0 };
        self.frames[part.at].next += 1;
        Ok(if position + 1 == members.len() { Polled::Complete } else { Polled::Busy(Work::Decode) })
    }

    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let world = step.members().len();
        for run in runs(part.units) {
            let start = run.start;
            let index = match step.divisor {
                Divisor::Senders => self.senders.divide(mean, run),
                _ => divide(&mut mean[run], world),
            };
            if let Some(index) = index.map(|index| start + index) {
                let rank = self.culprit(step, part, index, mean);
                return Err(ExchangeError::NonFiniteMean { index, rank });
            }
        }
        Ok(())
    }

    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        if part.own.is_empty() {
            return Ok(());
        }
        self.incoming.give_back(self.frames[part.at].own.frame(), part.own, step, memory)
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

/// The queued messages of [`AllGather::frame`]: the own frames, or those behind a head.
const ALONE: usize = 0;
const HEADED: usize = 1;

impl AllGather {
    /// The first rank whose frame makes the sum at `index` infinite or NaN. `sum` is overwritten.
    fn culprit(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        index: usize,
        sum: &mut [f32],
    ) -> Option<Rank> {
        runs(part.units).for_each(|run| sum[run].fill(0.0));
        let members = step.members();
        members.iter().enumerate().find_map(|(position, rank)| {
            self.add(step, part, position, sum, false).ok()?;
            (!sum[index].is_finite()).then_some(rank)
        })
    }

    /// Checks the message of a member about a part, adds it and, if senders count, counts what it holds.
    /// Returns how many coordinates it sends.
    fn add(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        position: usize,
        sum: &mut [f32],
        counts: bool,
    ) -> Result<usize, ExchangeError> {
        let (rank, layout) = (step.members().as_slice()[position], step.layout.as_ref());
        let frames = &self.frames[part.at];
        let (units, bytes) = if rank == step.rank() {
            (part.own, frames.own(part))
        } else if part.says.is_some() {
            let message = &frames.others[position];
            if let Some(refusal) = refusal(rank, message, &layout, step.key.step) {
                return Err(refusal);
            }
            let head = Head::read(message, part).ok_or(ExchangeError::WrongUnits { rank })?;
            self.present.clear();
            self.present.extend(head.present(part));
            (&self.present[..], head.rest)
        } else {
            (part.units, &frames.others[position][..])
        };
        if units.is_empty() {
            return if bytes.is_empty() { Ok(0) } else { Err(ExchangeError::WrongUnits { rank }) };
        }
        let expected = Requirements::part(step, units);
        let message = self.incoming.parse(rank, bytes, &layout, &expected)?;
        message.add_scaled_to(1.0, sum);
        if counts && step.divisor == Divisor::Senders {
            self.senders.add(&message);
        }
        Ok(message.held())
    }
}
