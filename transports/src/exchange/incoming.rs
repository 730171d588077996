//! Received frames: checked against the step and added to a sum.

use gradwire::experiments::ParseBody;
use gradwire::format::{CodecId, Divisor, FrameUnit, VoidFrame};
use gradwire::packets::PacketSize;
use gradwire::{DecodeError, Decoder, Frame, Gather, LayoutRef, Limits, Memory, StepKey, Unit};

use super::error::ExchangeError;
use super::step::Step;
use crate::rank::Rank;

/// Parses frames of one codec and one layout. Allocates on first use, and not afterwards.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    decoder: Decoder,
}

/// What a frame must satisfy to enter the sum.
#[derive(Clone, Copy)]
pub(super) struct Requirements<'a> {
    pub(super) key: StepKey,
    pub(super) codec: CodecId,
    pub(super) divisor: Divisor,
    /// The parser of bodies, for a codec of another crate.
    pub(super) parser: Option<&'a dyn ParseBody>,
    pub(super) units: &'a [Unit],
    pub(super) limits: Limits,
    /// Whether it is a packet, which holds parts of units.
    pub(super) is_packet: bool,
}

impl<'a> Requirements<'a> {
    /// Frames of `codec` with the units of the step. The byte limit is the largest frame that the codec can
    /// make.
    pub(super) fn of<'s: 'a>(step: &Step<'s>, codec: &'a dyn Gather) -> Self {
        Self::holding(step, codec, step.units)
    }

    /// Frames of `codec` with these units.
    pub(super) fn holding(step: &Step<'_>, codec: &'a dyn Gather, units: &'a [Unit]) -> Self {
        let layout = step.layout.as_ref();
        let mut limits = Limits::for_layout(&layout);
        limits.max_body_bytes = codec.max_frame_bytes(units).unwrap_or(limits.max_body_bytes);
        if codec.parser().is_some() {
            limits.max_scratch_words = limits.max_scratch_words.max(codec.scratch_len(units).words);
        }
        let (key, parser, divisor) = (step.key, codec.parser(), Divisor::Contributors);
        Self { key, codec: codec.id(), divisor, parser, units, limits, is_packet: false }
    }

    /// A worker's frame of these units.
    pub(super) fn part(step: &Step<'_>, codec: &'a dyn Gather, units: &'a [Unit]) -> Self {
        Self { divisor: step.divisor, ..Self::holding(step, codec, units) }
    }

    /// What the workers send in the step: whole frames, or packets of the size in the spelling.
    pub(super) fn up(step: &Step<'a>) -> Self {
        let whole = Self::part(step, step.codec(), step.units);
        let Some(bytes) = step.spec.packets.map(PacketSize::bytes) else { return whole };
        let limits = Limits { max_body_bytes: bytes, ..whole.limits };
        Self { limits, is_packet: true, ..whole }
    }

    fn check(&self, rank: Rank, frame: &Frame<'_>) -> Result<(), ExchangeError> {
        if frame.step() != self.key.step {
            return Err(ExchangeError::WrongStep { rank, frame: frame.step(), own: self.key.step });
        }
        let header = frame.header();
        let fits = header.codec == self.codec
            && header.divisor == self.divisor
            && if self.is_packet {
                frame.units().all(|unit| self.is_part(&unit))
            } else {
                self.is_whole(frame)
            };
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
    /// Parses and checks the frame of `rank`; a void frame of the step is the error `Void`.
    pub(super) fn parse<'f>(
        &'f mut self,
        rank: Rank,
        bytes: &'f [u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'f>,
    ) -> Result<Frame<'f>, ExchangeError> {
        let parsed = self.decoder.parse_with(bytes, layout, &expected.limits, expected.parser);
        let frame = parsed.map_err(|error| match error {
            DecodeError::Void => void_error(rank, bytes, layout, expected.key.step),
            error => ExchangeError::Frame { rank, error },
        })?;
        expected.check(rank, &frame)?;
        Ok(frame)
    }

    /// Adds the decoded frame of `rank`; nothing if the frame is refused.
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

    /// Overwrites `out` with the decoded frame of `rank`; `out` stays as it was if the frame is refused.
    pub(super) fn write(
        &mut self,
        rank: Rank,
        bytes: &[u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'_>,
        out: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let frame = self.parse(rank, bytes, layout, expected)?;
        out.fill(0.0);
        frame.add_scaled_to(1.0, out);
        Ok(())
    }

    /// Returns this rank's own frame to its memory. If the frame cannot be read, its codec is at fault.
    pub(super) fn give_back(
        &mut self,
        own: &[u8],
        step: &Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let Some(memory) = memory else { return Ok(()) };
        let (layout, parser) = (step.layout.as_ref(), step.codec().parser());
        let frame = self.decoder.parse_with(own, &layout, &own_limits(step), parser)?;
        memory.give_back(&frame);
        Ok(())
    }
}

/// The limits of this rank's own frames.
pub(super) fn own_limits(step: &Step<'_>) -> Limits {
    match step.codec().parser() {
        Some(_) => Requirements::of(step, step.codec()).limits,
        None => Limits::for_layout(&step.layout.as_ref()),
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

/// Coordinates that a frame sends.
pub(super) fn held(frame: &Frame<'_>) -> usize {
    frame.units().map(|unit| unit.held()).sum()
}
