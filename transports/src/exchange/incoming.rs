//! Received frames: checked against the step and added to a sum.

use gradwire::experiments::ParseBody;
use gradwire::format::{CodecId, Divisor, FrameUnit, VoidFrame};
use gradwire::packets::PacketSize;
use gradwire::plan::{GroupsDecodeError, Plan};
use gradwire::{DecodeError, Decoder, Frame, Gather, LayoutRef, Limits, Memory, StepKey, Unit};

use super::error::ExchangeError;
use super::message::Message;
use super::step::Step;
use super::void::refusal;
use crate::rank::Rank;

/// Parses messages of one layout. With one group, allocates on first use, and not afterwards.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    decoder: Decoder,
}

/// What a message must satisfy to enter the sum.
#[derive(Clone, Copy)]
pub(super) struct Requirements<'a> {
    key: StepKey,
    codec: CodecId,
    divisor: Divisor,
    /// The parser of bodies, for a codec of another crate.
    parser: Option<&'a dyn ParseBody>,
    units: &'a [Unit],
    limits: Limits,
    /// Whether it is a packet, which holds parts of units.
    is_packet: bool,
    /// The plan, if it has several groups, with a frame each.
    groups: Option<&'a Plan>,
}

impl<'a> Requirements<'a> {
    /// A frame of `codec` with these units. The byte limit is the largest frame that the codec can make.
    pub(super) fn holding(step: &Step<'_>, codec: &'a dyn Gather, units: &'a [Unit]) -> Self {
        let layout = step.layout.as_ref();
        let mut limits = Limits::for_layout(&layout);
        limits.max_body_bytes = codec.max_frame_bytes(units).unwrap_or(limits.max_body_bytes);
        if codec.parser().is_some() {
            limits.max_scratch_words = limits.max_scratch_words.max(codec.scratch_len(units).words);
        }
        let (key, parser, divisor) = (step.key, codec.parser(), Divisor::Contributors);
        let codec = codec.id();
        Self { key, codec, divisor, parser, units, limits, is_packet: false, groups: None }
    }

    /// A worker's message of these units.
    pub(super) fn part<'s: 'a>(step: &Step<'s>, units: &'a [Unit]) -> Self {
        let alone = Self { divisor: step.divisor, ..Self::holding(step, step.codec(), units) };
        if step.plan.only().is_some() {
            return alone;
        }
        let mut limits = Limits::for_layout(&step.layout.as_ref());
        let bounds = step.plan.groups().iter().map(|group| (group, group.units_in(units)));
        let bounds = bounds.filter(|(_, units)| !units.is_empty());
        let sum = bounds.map(|(group, units)| group.codec().max_frame_bytes(&units)).sum::<Option<_>>();
        limits.max_body_bytes = sum.unwrap_or(limits.max_body_bytes);
        Self { limits, groups: Some(step.plan), ..alone }
    }

    /// What this rank itself has sent of these units.
    pub(super) fn own<'s: 'a>(step: &Step<'s>, units: &'a [Unit]) -> Self {
        let part = Self::part(step, units);
        if part.parser.is_some() {
            return part;
        }
        Self { limits: Limits::for_layout(&step.layout.as_ref()), ..part }
    }

    /// What the workers send in the step: whole frames, or packets of the size in the spelling.
    pub(super) fn up(step: &Step<'a>) -> Self {
        let whole = Self::part(step, step.units());
        let Some(bytes) = step.packets().map(PacketSize::bytes) else { return whole };
        let limits = Limits { max_body_bytes: bytes, ..whole.limits };
        Self { limits, is_packet: true, ..whole }
    }

    fn check(&self, rank: Rank, message: &Message<'_>) -> Result<(), ExchangeError> {
        let Some((frame, _)) = message.frames().next() else {
            return Err(ExchangeError::WrongUnits { rank });
        };
        if frame.step() != self.key.step {
            return Err(ExchangeError::WrongStep { rank, frame: frame.step(), own: self.key.step });
        }
        let header = frame.header();
        let holds_units = match message {
            // Every frame was compared with its group and with the first frame.
            Message::Groups(_) => true,
            Message::Frame(frame) if self.is_packet => frame.units().all(|unit| self.is_part(&unit)),
            Message::Frame(frame) => self.is_whole(frame),
        };
        let is_own_codec = self.groups.is_some() || header.codec == self.codec;
        let fits = is_own_codec && header.divisor == self.divisor && holds_units;
        if fits { Ok(()) } else { Err(ExchangeError::WrongUnits { rank }) }
    }

    fn is_whole(&self, frame: &Frame<'_>) -> bool {
        let units = frame.units().map(|unit| (unit.id(), unit.range()));
        units.eq(self.units.iter().map(|unit| (unit.id, unit.range())))
    }

    fn is_part(&self, part: &FrameUnit<'_>) -> bool {
        let at = self.units.binary_search_by_key(&part.id(), |unit| unit.id);
        let unit = at.ok().map(|at| self.units[at].range());
        unit.is_some_and(|unit| unit.start <= part.range().start && part.range().end <= unit.end)
    }
}

impl Incoming {
    /// Parses a message, which is not compared with the step yet.
    pub(super) fn read<'f>(
        &'f mut self,
        bytes: &'f [u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'f>,
    ) -> Result<Message<'f>, GroupsDecodeError> {
        let (units, limits) = (expected.units, &expected.limits);
        match expected.groups {
            Some(plan) => self.decoder.parse_plan(plan, units, bytes, layout, limits).map(Message::Groups),
            None => {
                let frame = self.decoder.parse_with(bytes, layout, limits, expected.parser);
                frame.map(Message::Frame).map_err(|error| GroupsDecodeError::Frame { rule: 0, error })
            }
        }
    }

    /// Parses and checks the message of `rank`; a void frame of the step is the error `Void`.
    pub(super) fn parse<'f>(
        &'f mut self,
        rank: Rank,
        bytes: &'f [u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'f>,
    ) -> Result<Message<'f>, ExchangeError> {
        let message = self.read(bytes, layout, expected).map_err(|error| match error {
            GroupsDecodeError::Frame { error, .. } if error == DecodeError::BadMagic => {
                let refusal = refusal(rank, bytes, layout, expected.key.step);
                refusal.unwrap_or(ExchangeError::Frame { rank, error })
            }
            GroupsDecodeError::Frame { error: DecodeError::Void, .. } => {
                void_error(rank, bytes, layout, expected.key.step)
            }
            GroupsDecodeError::Frame { error, .. } => ExchangeError::Frame { rank, error },
            GroupsDecodeError::TrailingBytes => {
                ExchangeError::Frame { rank, error: DecodeError::TrailingBytes }
            }
            _ => ExchangeError::WrongUnits { rank },
        })?;
        expected.check(rank, &message)?;
        Ok(message)
    }

    /// Adds the decoded message of `rank`; nothing if it is refused.
    pub(super) fn add(
        &mut self,
        rank: Rank,
        bytes: &[u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'_>,
        sum: &mut [f32],
    ) -> Result<(), ExchangeError> {
        self.parse(rank, bytes, layout, expected)?.add_scaled_to(1.0, sum);
        Ok(())
    }

    /// Overwrites `out` with the decoded message of `rank`; `out` stays as it was if it is refused.
    pub(super) fn write(
        &mut self,
        rank: Rank,
        bytes: &[u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'_>,
        out: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let message = self.parse(rank, bytes, layout, expected)?;
        out.fill(0.0);
        message.add_scaled_to(1.0, out);
        Ok(())
    }

    /// Returns this rank's own message of these units to its memory. If it cannot be read, its codec is at
    /// fault.
    pub(super) fn give_back(
        &mut self,
        own: &[u8],
        units: &[Unit],
        step: &Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let Some(memory) = memory else { return Ok(()) };
        let message = self.read(own, &step.layout.as_ref(), &Requirements::own(step, units));
        let message = message.map_err(|error| match error {
            GroupsDecodeError::Frame { error, .. } => error,
            _ => DecodeError::TrailingBytes,
        })?;
        message.frames().filter(|(_, is_kept)| *is_kept).for_each(|(frame, _)| memory.give_back(frame));
        Ok(())
    }
}

/// The content of the void frame of `rank`.
fn void_error(rank: Rank, bytes: &[u8], layout: &LayoutRef<'_>, own: u64) -> ExchangeError {
    match VoidFrame::parse(bytes, layout) {
        Ok(Some(VoidFrame { step, index, .. })) if step == own => ExchangeError::Void { rank, index },
        Ok(Some(VoidFrame { step: frame, .. })) => ExchangeError::WrongStep { rank, frame, own },
        Ok(None) => ExchangeError::Frame { rank, error: DecodeError::Void },
        Err(error) => ExchangeError::Frame { rank, error },
    }
}
