//! Buffers that grow once and are then reused: for callers who have a heap.

use crate::codec::{ParseBody, Parser, Reduction};
use crate::error::{DecodeError, EncodeError};
use crate::frame::gather::{Gather, StepInput};
use crate::frame::header::Divisor;
use crate::frame::message::check_units;
use crate::frame::rounds_first::RoundsFirst;
use crate::frame::{Frame, Opened};
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::scratch::Scratch;
use alloc::vec::Vec;
use core::ops::Range;

/// Output and working memory of an encoder. Allocates on the first call, and then only when units grow.
///
/// # Examples
/// ```
/// use gradwire::{Encoder, Grad, LayoutRef, Memory, Source, Spec, StepInput, StepKey, Unit};
///
/// let spec = Spec::parse("topk:density=0.5,values=bf16")?;
/// let (layout, units) = (LayoutRef::flat(4), [Unit::whole(4)]);
/// let mut memory = Memory::for_spec(&spec, &layout).expect("error feedback by default");
/// let mut encoder = Encoder::new();
/// for step in 0..2 {
///     let key = StepKey { seed: 7, step, source: Source::Rank(0) };
///     let grad = Grad::F32(&[1.0, 8.0, -4.0, 0.5]);
///     let step = StepInput { key, layout: &layout, units: &units, grad };
///     let frame = encoder.encode(&spec.codec, &step, Some(&mut memory))?;
///     assert_eq!(frame[..3], *b"GW\x01");
/// }
/// // The two largest were sent in both steps, and the rest waits.
/// assert_eq!(memory.residual(), [2.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    pub(crate) words: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) frame: Vec<u8>,
    pub(crate) len: usize,
    /// Whether a byte was appended to the frame.
    has_tail: bool,
    divisor: Divisor,
}

impl Encoder {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how the mean of the frames from here on is to be formed; [`Divisor::Contributors`] at first.
    pub fn set_divisor(&mut self, divisor: Divisor) {
        self.divisor = divisor;
    }

    /// One round before a frame; see [`RoundsFirst::round`]. Resizes `numbers` to the length that the units
    /// need.
    ///
    /// # Errors
    /// As [`RoundsFirst::round`], except that its scratch memory grows.
    pub fn round(
        &mut self,
        codec: &dyn RoundsFirst,
        index: u32,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        numbers: &mut Vec<f32>,
    ) -> Result<Option<Reduction>, EncodeError> {
        check_units(step.layout, step.units)?;
        let needed = codec.scratch_len(step.units);
        grow(&mut self.words, needed.words);
        grow(&mut self.bytes, needed.bytes);
        numbers.resize(step.units.iter().map(|unit| codec.number_count(unit)).sum(), 0.0);
        if index == 0 {
            numbers.fill(0.0);
        }
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        codec.round(index, step, memory, &mut scratch, numbers)
    }

    /// Encodes one frame; see [`Gather::encode`].
    ///
    /// # Errors
    /// As [`Gather::encode`], except that its buffers grow.
    pub fn encode<G: Gather + ?Sized>(
        &mut self,
        codec: &G,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
    ) -> Result<&[u8], EncodeError> {
        self.encode_by(codec, step.layout, step.units, |scratch, frame| {
            codec.encode(step, memory, scratch, frame)
        })
    }

    /// Encodes one frame of units whose residuals are in `before`; see [`Gather::encode_beside`].
    ///
    /// # Errors
    /// As [`Gather::encode_beside`], except that its buffers grow.
    pub fn encode_beside<G: Gather + ?Sized>(
        &mut self,
        codec: &G,
        step: &StepInput<'_, &[Grad<'_>]>,
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<&[u8], EncodeError> {
        self.encode_by(codec, step.layout, step.units, |scratch, frame| {
            codec.encode_beside(step, before, memory, scratch, frame)
        })
    }

    pub(super) fn encode_by<G: Gather + ?Sized>(
        &mut self,
        codec: &G,
        layout: &LayoutRef<'_>,
        units: &[Unit],
        encode: impl FnOnce(&mut Scratch<'_>, &mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result<&[u8], EncodeError> {
        // Check first, so that no buffer grows for units that will be refused.
        check_units(layout, units)?;
        let needed = codec.scratch_len(units);
        grow(&mut self.words, needed.words);
        grow(&mut self.bytes, needed.bytes);
        self.make_room_for(codec.max_frame_bytes(units).ok_or(EncodeError::TooLarge)?);
        self.clear();
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        self.len = encode(&mut scratch, &mut self.frame)?;
        self.mark(0..self.len);
        Ok(self.frame())
    }

    /// Room for a frame and a byte that may be appended: for that byte alone, a buffer would double.
    pub(crate) fn make_room_for(&mut self, frame_bytes: usize) {
        grow(&mut self.frame, frame_bytes.saturating_add(1));
    }

    /// Writes the divisor into a frame that was just written.
    pub(crate) fn mark(&mut self, frame: Range<usize>) {
        if self.divisor != Divisor::Contributors {
            let marked = self.divisor.write_to(&mut self.frame[frame]);
            debug_assert_eq!(marked, Ok(()), "a frame that was just written");
        }
    }

    /// The frame of the last successful call; empty before it, and after an error.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame[..self.len]
    }

    /// Writes a byte behind the frame that is no part of it, for whoever sends frames in messages that end
    /// with one. The frame is not copied, and stays as it is.
    pub fn append(&mut self, byte: u8) {
        grow(&mut self.frame, self.len + 1);
        self.frame[self.len] = byte;
        self.has_tail = true;
    }

    /// The [frame](Self::frame) of the last successful call, and the byte that was [appended](Self::append)
    /// to it.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.frame[..self.len + usize::from(self.has_tail)]
    }

    /// There is no frame.
    pub(crate) fn clear(&mut self) {
        (self.len, self.has_tail) = (0, false);
    }
}

/// Working memory of a decoder. Allocates on the first call, and then only when frames grow; never beyond
/// what `limits` allow.
///
/// # Examples
/// ```
/// use gradwire::{DecodeError, Decoder, LayoutRef, Limits};
///
/// let layout = LayoutRef::flat(4);
/// let mut decoder = Decoder::new();
/// let result = decoder.parse(b"no frame", &layout, &Limits::for_layout(&layout));
/// assert_eq!(result.unwrap_err(), DecodeError::BadMagic);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    pub(crate) words: Vec<u32>,
}

impl Decoder {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses one frame; see [`Frame::parse`].
    ///
    /// # Errors
    /// As [`Frame::parse`], except that its scratch memory grows.
    pub fn parse<'a>(
        &'a mut self,
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
    ) -> Result<Frame<'a>, DecodeError> {
        self.open(bytes, layout, limits, Parser::NONE)
    }

    /// As [`parse`](Self::parse), for a frame that may be one of the [experiment](crate::experiments) that
    /// `parser` is for; see [`Frame::parse_with`].
    ///
    /// # Errors
    /// As [`Frame::parse_with`], except that its scratch memory grows.
    pub fn parse_with<'a>(
        &'a mut self,
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
        parser: Option<&'a dyn ParseBody>,
    ) -> Result<Frame<'a>, DecodeError> {
        self.open(bytes, layout, limits, Parser::new(parser))
    }

    fn open<'a>(
        &'a mut self,
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
        parser: Parser<'a>,
    ) -> Result<Frame<'a>, DecodeError> {
        let opened = Opened::new(bytes, layout, limits, parser)?;
        grow(&mut self.words, opened.scratch_words());
        opened.check(&mut self.words)
    }
}

pub(crate) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}
