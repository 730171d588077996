//! Every frame goes to every rank, and every rank adds all of them in rank order.

use gradwire::arithmetic::{clear, divide};
use gradwire::format::{Divisor, FrameUnit};
use gradwire::plan::Group;
use gradwire::rounds::AfterRounds;
use gradwire::{DecodeError, Encoder, Gather, Grad, Memory, StepInput, Unit};

use super::error::ExchangeError;
use super::frames::{Frames, visit};
use super::incoming::Incoming;
use super::means::{Means, flat};
use super::message::Message;
use super::part_route::{InParts, Polled};
use super::parts::{Part, runs};
use super::report::Work;
use super::rounds_first::FirstRounds;
use super::senders::Senders;
use super::step::Step;
use super::version::TAIL;
use crate::rank::Rank;
use crate::tag::Tag;

/// One frame for each part.
#[derive(Debug, Default)]
pub(super) struct AllGather {
    incoming: Incoming,
    /// Encodes added parts, one after the other: their frames go behind heads.
    encoder: Encoder,
    /// Of the parts of this step, and of steps that had more.
    frames: Vec<Frames>,
    /// The units of a part that the sender of a message has.
    present: Vec<Unit>,
    /// Used only with a codec that has rounds before its frame.
    first_rounds: FirstRounds,
    /// Used only with [`Divisor::Senders`].
    senders: Senders,
    frame_bytes: usize,
    held: usize,
    held_by_all: usize,
    /// A bit for each coordinate of a part that was divided.
    divided: Vec<u64>,
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
        (None, Some(codec)) => encoder.encode(codec, &input, lent)?,
        (None, None) => encoder.encode_plan(plan, &input, lent)?,
    };
    encoder.append(TAIL);
    step.measure(std::iter::once(encoder.frame()), units, grad, memory.as_deref());
    Ok(())
}

impl InParts for AllGather {
    fn free(&mut self) {
        *self = Self::default();
    }

    fn set_parts(&mut self, count: usize) {
        self.frames.resize_with(self.frames.len().max(count), Frames::default);
    }

    fn begin_step(&mut self) {
        (self.held, self.held_by_all, self.frame_bytes) = (0, 0, 0);
        self.first_rounds.begin_step();
    }

    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let rounds = step.codec().rounds_first();
        rounds.map_or(Ok(true), |codec| self.first_rounds.agree(step, codec, grad, memory))
    }

    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let (frames, codec) = (&mut self.frames[part.at], step.codec());
        if part.says.is_some() {
            let encoder = &mut self.encoder;
            let own = match part.own {
                [] => &[],
                own => encode(encoder, step, None, own, grad, memory).map(|()| encoder.frame())?,
            };
            frames.put_behind_head(part, own);
            return Ok(());
        }
        let Some(rounds) = codec.rounds_first() else {
            return encode(&mut frames.own, step, None, part.units, grad, memory);
        };
        let after = AfterRounds::new(rounds, self.first_rounds.numbers(step, rounds, part));
        encode(&mut frames.own, step, Some(&after), part.units, grad, memory)
    }

    fn encode_beside(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), ExchangeError> {
        let codec = step.plan.only().ok_or(ExchangeError::NoParts { route: "several codecs" })?.codec();
        let (key, layout) = (step.key, step.layout.as_ref());
        self.encoder.set_divisor(step.divisor);
        let input = StepInput { key, layout: &layout, units: part.own, grad: grads };
        let own = match part.own {
            [] => &[],
            _ => self.encoder.encode_beside(codec, &input, before, memory)?,
        };
        self.frames[part.at].put_behind_head(part, own);
        Ok(())
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
        if place == HEADED { &frames.headed } else { frames.own.message() }
    }

    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag {
        step.tag.chunk(self.first_rounds.rounds() + at as u32)
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
        mean: &mut dyn Means,
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
            let len = step.layout.len();
            part.units.iter().for_each(|unit| clear(mean.of(unit.id, unit.range()), len));
            self.frames[part.at].held = 0;
            if step.divisor == Divisor::Senders {
                self.senders.begin(step.layout.len(), part.units);
            }
        }
        let held = self.add(step, part, position, mean, true)?;
        self.held += if rank == me { held } else { 0 };
        self.held_by_all += held;
        self.frames[part.at].held += held;
        self.frames[part.at].next += 1;
        Ok(if position + 1 == members.len() { Polled::Complete } else { Polled::Busy(Work::Decode) })
    }

    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError> {
        let world = step.members().len();
        let len: usize = part.units.iter().map(|unit| unit.len).sum();
        let index = if step.divisor == Divisor::Senders {
            let mean = flat(mean);
            runs(part.units).find_map(|run| Some(run.start + self.senders.divide(mean, run)?))
        } else if is_found_faster(self.frames[part.at].held, len) {
            self.divide_held(step, part, mean)?
        } else {
            let divide = |unit: &Unit| Some(unit.start + divide(mean.of(unit.id, unit.range()), world)?);
            part.units.iter().find_map(divide)
        };
        match index {
            None => Ok(()),
            Some(index) => {
                let rank = self.culprit(step, part, index, mean);
                Err(ExchangeError::NonFiniteMean { index, rank })
            }
        }
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
        self.incoming.give_back(self.frames[part.at].own(part), part.own, step, memory)
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn held(&self) -> usize {
        self.held
    }

    fn held_by_all(&self) -> Option<usize> {
        Some(self.held_by_all)
    }
}

/// Whether it is faster to find the coordinates that the frames of a part hold, by reading these a second
/// time, than to divide all. Finding one takes as long as dividing 64 in a row, or 16 where so many are too
/// long for a cache; opening the frames, as long as dividing 2^14.
fn is_found_faster(held: usize, len: usize) -> bool {
    let each = if len < 1 << 20 { 64 } else { 16 };
    (1 << 14) + each * held < len
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
        sum: &mut dyn Means,
    ) -> Option<Rank> {
        part.units.iter().for_each(|unit| sum.of(unit.id, unit.range()).fill(0.0));
        let unit = part.units.iter().find(|unit| unit.range().contains(&index))?;
        let members = step.members();
        members.iter().enumerate().find_map(|(position, rank)| {
            self.add(step, part, position, sum, false).ok()?;
            (!sum.of(unit.id, unit.range())[index - unit.start].is_finite()).then_some(rank)
        })
    }

    /// Checks the message of a member about a part, adds it and, if senders count, counts what it holds.
    /// Returns how many coordinates it sends.
    fn add(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        position: usize,
        sum: &mut dyn Means,
        counts: bool,
    ) -> Result<usize, ExchangeError> {
        let (divisor, plan) = (step.divisor, step.plan);
        let senders = &mut self.senders;
        let add = |message: &Message<'_>| {
            message.add_to(plan, sum);
            if counts && divisor == Divisor::Senders {
                senders.add(message);
            }
            message.held()
        };
        visit((&mut self.incoming, &mut self.present), &self.frames[part.at], step, part, position, add)
    }

    /// Divides each coordinate that any frame of a part holds, once: the others are zero. Returns the lowest
    /// one that is not finite then.
    fn divide_held(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<Option<usize>, ExchangeError> {
        let world = step.members().len();
        let len = part.units.iter().map(|unit| unit.len.div_ceil(64)).sum();
        let mut found = None;
        self.divided.clear();
        self.divided.resize(len, 0);
        for position in 0..world {
            let divided = &mut self.divided[..];
            let divide = |message: &Message<'_>| {
                let (mut words, mut units) = (divided, part.units.iter());
                for unit in message.units() {
                    // The bits of units that the frame does not hold lie before.
                    for other in units.by_ref() {
                        let (own, rest) = words.split_at_mut(other.len.div_ceil(64));
                        words = rest;
                        if other.id == unit.id() {
                            let values = mean.of(other.id, other.range());
                            let broken = divide_unit(&unit, own, values, world).map(|at| other.start + at);
                            found = found.into_iter().chain(broken).min();
                            break;
                        }
                    }
                }
                0
            };
            let frames = &self.frames[part.at];
            visit((&mut self.incoming, &mut self.present), frames, step, part, position, divide)?;
        }
        Ok(found)
    }
}

/// Divides the coordinates that a unit of a frame holds, unless they were divided before. Returns the lowest
/// one that is not finite.
fn divide_unit(unit: &FrameUnit<'_>, divided: &mut [u64], mean: &mut [f32], by: usize) -> Option<usize> {
    let mut found = None;
    unit.for_each(|at, _| {
        let (word, bit) = (&mut divided[at / 64], 1 << (at % 64));
        if *word & bit == 0 {
            *word |= bit;
            mean[at] /= by as f32;
            if !mean[at].is_finite() {
                found = Some(found.unwrap_or(at).min(at));
            }
        }
    });
    found
}
