//! The wire format, version 1. FORMAT.md is the authority; names in the code are those of FORMAT.md.
//!
//! Bytes are parsed once, completely, and trusted afterwards: [`Frame::parse`] checks everything that can be
//! wrong, and using the frame that it returns cannot fail.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

#[cfg(feature = "full")]
#[allow(
    clippy::indexing_slicing,
    reason = "the encoding side: lengths were checked against the codec's bounds"
)]
pub(crate) mod experiment;
pub(crate) mod gather;
pub(crate) mod give_back;
pub(crate) mod header;
#[allow(
    clippy::indexing_slicing,
    reason = "the encoding side: the buffer was checked against the codec's bound"
)]
pub(crate) mod message;
pub(crate) mod outline;
#[allow(clippy::indexing_slicing, reason = "the encoding side: pieces lie inside of their unit")]
pub(crate) mod packets;
pub(crate) mod rounds_first;
pub(crate) mod void;

#[cfg(feature = "full")]
use crate::codec::ParseBody;
use crate::codec::{BodyInfo, Parser};
use crate::error::{DecodeError, Field, Limit};
use crate::frame::header::{HEADER_BYTES, Header, frame_checksum};
use crate::gradient::layout::{LayoutRef, Span};
use crate::gradient::unit::Unit;
use crate::limits::Limits;
use crate::registry::{self, AnyBody};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;
use crate::wire::unit_header::Cursor;
#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::ops::Range;

/// Reads the units of a body one by one. The structure may still be wrong.
struct Walk<'a> {
    reader: Reader<'a>,
    cursor: Cursor,
    codec: CodecId,
    step: u64,
    layout_len: usize,
    left: u16,
    parser: Parser<'a>,
    /// Bytes of the last unit's body.
    body_bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(
        header: &Header,
        body: &'a [u8],
        layout_len: usize,
        parser: Parser<'a>,
    ) -> Result<Self, DecodeError> {
        if header.is_void {
            return Err(DecodeError::Void);
        }
        let mut reader = Reader::new(body);
        let step = reader.varint()?;
        Ok(Self {
            reader,
            cursor: Cursor::default(),
            codec: header.codec,
            step,
            layout_len,
            left: header.unit_count,
            parser,
            body_bytes: 0,
        })
    }

    fn next(&mut self) -> Result<Option<(Unit, AnyBody<'a>)>, DecodeError> {
        if self.left == 0 {
            self.reader.finish()?;
            return Ok(None);
        }
        self.left = self.left.saturating_sub(1);
        let (unit, kind) = self.cursor.read(&mut self.reader, self.layout_len)?;
        // Any codec may send a unit dense.
        let codec = self.codec;
        let own_kind = || registry::kind_of(codec).or_else(|| self.parser.kind_of(codec));
        if kind != Kind::DENSE && own_kind() != Some(kind) {
            return Err(DecodeError::InvalidField(Field::Kind));
        }
        let before = self.reader.rest().len();
        let body = AnyBody::read(kind, codec, &unit, self.step, &mut self.reader, self.parser)?;
        self.body_bytes = before - self.reader.rest().len();
        Ok(Some((unit, body)))
    }
}

/// As [`open`]; also refuses a frame of another layout.
fn open_for<'a>(
    bytes: &'a [u8],
    layout: &LayoutRef<'_>,
    limits: &Limits,
    parser: Parser<'_>,
) -> Result<(Header, &'a [u8]), DecodeError> {
    let frame = Header::read(bytes, parser)?.fingerprint;
    if frame == layout.fingerprint() {
        open(bytes, limits, parser)
    } else {
        Err(DecodeError::LayoutMismatch { frame, layout: layout.fingerprint() })
    }
}

/// Checks header, limits, length and checksum: everything that can be checked before the units.
fn open<'a>(bytes: &'a [u8], limits: &Limits, parser: Parser<'_>) -> Result<(Header, &'a [u8]), DecodeError> {
    let header = Header::read(bytes, parser)?;
    let body_bytes = header.body_bytes as usize;
    if body_bytes > limits.max_body_bytes {
        return Err(DecodeError::LimitExceeded(Limit::BodyBytes));
    }
    if usize::from(header.unit_count) > limits.max_units {
        return Err(DecodeError::LimitExceeded(Limit::Units));
    }
    let mut reader = Reader::new(bytes);
    let head = reader.array::<HEADER_BYTES>()?;
    let body = reader.take(body_bytes)?;
    reader.finish()?;
    // A fuzzer would spend its time on guessing checksums.
    if cfg!(not(fuzzing)) {
        let computed = frame_checksum(&head, body);
        if computed != header.checksum {
            return Err(DecodeError::ChecksumMismatch { stated: header.checksum, computed });
        }
    }
    Ok((header, body))
}

/// A frame whose header, checksum and structure are correct, and how much scratch memory it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened<'a, 'l> {
    header: Header,
    body: &'a [u8],
    layout: &'l LayoutRef<'l>,
    max_magnitude: f32,
    words: usize,
    parser: Parser<'a>,
}

impl<'a, 'l> Opened<'a, 'l> {
    pub(crate) fn new(
        bytes: &'a [u8],
        layout: &'l LayoutRef<'l>,
        limits: &Limits,
        parser: Parser<'a>,
    ) -> Result<Self, DecodeError> {
        let (header, body) = open_for(bytes, layout, limits, parser)?;
        let words = scratch_words(&header, body, layout.len(), limits, parser)?;
        Ok(Self { header, body, layout, max_magnitude: limits.max_magnitude, words, parser })
    }

    /// Words of scratch memory that [`check`](Self::check) needs.
    pub(crate) fn scratch_words(&self) -> usize {
        self.words
    }

    /// The limits less what this frame uses, for the frames that follow it in one message.
    #[cfg(feature = "alloc")]
    pub(crate) fn left_of(&self, limits: &Limits) -> Limits {
        let mut left = Limits {
            max_body_bytes: limits.max_body_bytes.saturating_sub(self.body.len()),
            max_units: limits.max_units.saturating_sub(usize::from(self.header.unit_count)),
            max_scratch_words: limits.max_scratch_words.saturating_sub(self.words),
            ..*limits
        };
        let mut walk = Walk::new(&self.header, self.body, self.layout.len(), self.parser).ok();
        while let Some((unit, body)) = walk.as_mut().and_then(|walk| walk.next().ok()?) {
            left.max_elements = left.max_elements.saturating_sub(unit.len);
            left.max_entries = left.max_entries.saturating_sub(body.entries());
        }
        left
    }

    /// Checks everything else: positions and values.
    pub(crate) fn check(self, scratch: &'a mut [u32]) -> Result<Frame<'a>, DecodeError> {
        let Self { header, body, layout, max_magnitude, words, parser } = self;
        let (mut rest, _) =
            scratch.split_at_mut_checked(words).ok_or(DecodeError::ScratchTooSmall { needed: words })?;
        let mut walk = Walk::new(&header, body, layout.len(), parser)?;
        while let Some((unit, body)) = walk.next()? {
            let (own, others) = rest.split_at_mut(body.scratch_words());
            body.check(Span::of(layout, &unit), max_magnitude, own)?;
            rest = others;
        }
        Ok(Frame { header, step: walk.step, body, layout_len: layout.len(), scratch, parser })
    }
}

/// Words of scratch memory that [`Frame::parse`] needs for these bytes, within what `limits` allow.
///
/// # Errors
/// As [`Frame::parse`], for header and structure. Values and positions are not checked.
pub fn frame_scratch_len(
    bytes: &[u8],
    layout: &LayoutRef<'_>,
    limits: &Limits,
) -> Result<usize, DecodeError> {
    Opened::new(bytes, layout, limits, Parser::NONE).map(|opened| opened.scratch_words())
}

/// As [`frame_scratch_len`], for a frame that may be one of an experiment: the words that
/// [`Frame::parse_with`] needs.
///
/// # Errors
/// As [`frame_scratch_len`].
#[cfg(feature = "full")]
pub fn frame_scratch_len_with(
    bytes: &[u8],
    layout: &LayoutRef<'_>,
    limits: &Limits,
    parser: Option<&dyn ParseBody>,
) -> Result<usize, DecodeError> {
    Opened::new(bytes, layout, limits, Parser::new(parser)).map(|opened| opened.scratch_words())
}

/// The end of a frame's last unit: its layout has at least that many elements. For frames whose layout is not
/// known; use [`LayoutRef::opaque`] in its place.
///
/// # Errors
/// As [`frame_scratch_len`], except for the layout.
pub fn frame_extent(bytes: &[u8], limits: &Limits) -> Result<usize, DecodeError> {
    let (header, body) = open(bytes, limits, Parser::NONE)?;
    scratch_words(&header, body, usize::MAX, limits, Parser::NONE)?;
    let mut walk = Walk::new(&header, body, usize::MAX, Parser::NONE)?;
    let mut end = 0;
    while let Some((unit, _)) = walk.next()? {
        end = unit.range().end;
    }
    Ok(end)
}

/// Reads the structure once and compares it with the limits, before any work that grows with what the frame
/// claims.
fn scratch_words(
    header: &Header,
    body: &[u8],
    layout_len: usize,
    limits: &Limits,
    parser: Parser<'_>,
) -> Result<usize, DecodeError> {
    let mut walk = Walk::new(header, body, layout_len, parser)?;
    let (mut elements, mut entries, mut words) = (0usize, 0usize, 0usize);
    while let Some((unit, body)) = walk.next()? {
        elements = elements.saturating_add(unit.len);
        entries = entries.saturating_add(body.entries());
        words = words.saturating_add(body.scratch_words());
        if elements > limits.max_elements {
            return Err(DecodeError::LimitExceeded(Limit::Elements));
        }
        if entries > limits.max_entries {
            return Err(DecodeError::LimitExceeded(Limit::Entries));
        }
        if words > limits.max_scratch_words {
            return Err(DecodeError::LimitExceeded(Limit::ScratchWords));
        }
    }
    Ok(words)
}

/// A frame that passed every check. Borrows the received bytes and the caller's scratch memory; allocates
/// nothing.
///
/// # Examples
/// ```
/// use gradwire::{Density, Frame, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source};
/// use gradwire::{StepInput, StepKey, Unit};
/// use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
///
/// let layout = LayoutRef::flat(4);
/// let units = [Unit::whole(4)];
/// let codec = TopK::new(Density::new(0.25).unwrap(), IndexChoice::Auto, ValueChoice::F32);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let (mut residual, mut words, mut out) = ([0.0; 4], [0; 64], [0; 128]);
/// let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
/// let grad = [0.5, -3.0, 0.0, 1.0];
/// let mut memory = Memory::new(&mut residual);
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
/// let bytes = codec.encode(&step, Some(&mut memory), &mut scratch, &mut out).unwrap();
/// assert_eq!(memory.residual(), [0.5, 0.0, 0.0, 1.0]);
///
/// let limits = Limits::for_layout(&layout);
/// let frame = Frame::parse(&out[..bytes], &layout, &limits, &mut words).unwrap();
/// let mut sum = [0.0; 4];
/// frame.add_scaled_to(1.0, &mut sum);
/// assert_eq!(sum, [0.0, -3.0, 0.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: Header,
    step: u64,
    body: &'a [u8],
    layout_len: usize,
    scratch: &'a [u32],
    parser: Parser<'a>,
}

impl<'a> Frame<'a> {
    /// Checks `bytes` completely. Decoding the frame that it returns cannot fail.
    ///
    /// `scratch` holds at least [`frame_scratch_len`] words and is lent until the frame is dropped. A sparse
    /// unit takes at most one word an entry and 133,320 more. A seeded unit takes one word an entry and at
    /// most one bit a coordinate. A unit of levels takes one word a coordinate under context, and otherwise
    /// at most 65,536 words, one byte for every 32 coordinates and one word a bucket. FORMAT.md, section 11,
    /// has the exact numbers.
    ///
    /// # Errors
    /// Every way in which bytes fail to be a frame that the caller can accept; see [`DecodeError`]. Nothing
    /// changes except the content of `scratch`. `Void` for a [void frame](crate::format::VoidFrame), which
    /// holds nothing to add.
    pub fn parse(
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
        scratch: &'a mut [u32],
    ) -> Result<Self, DecodeError> {
        Opened::new(bytes, layout, limits, Parser::NONE)?.check(scratch)
    }

    /// As [`parse`](Self::parse), for a frame of any codec of this crate or of one
    /// [experiment](crate::experiments), whose bodies `parser` reads. Usually that is the
    /// [`Gather::parser`](crate::Gather::parser) of its codec.
    ///
    /// `scratch` holds at least [`frame_scratch_len_with`](crate::experiments::frame_scratch_len_with) words.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and `Experiment` where `parser` refuses a body.
    #[cfg(feature = "full")]
    pub fn parse_with(
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
        parser: Option<&'a dyn ParseBody>,
        scratch: &'a mut [u32],
    ) -> Result<Self, DecodeError> {
        Opened::new(bytes, layout, limits, Parser::new(parser))?.check(scratch)
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The step that the frame belongs to.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Coordinates of the layout.
    pub(crate) fn layout_len(&self) -> usize {
        self.layout_len
    }

    /// The units of the frame, in ascending order.
    pub fn units(&self) -> impl Iterator<Item = FrameUnit<'a>> + use<'a> {
        let mut walk = Walk::new(&self.header, self.body, self.layout_len, self.parser).ok();
        let mut rest = self.scratch;
        core::iter::from_fn(move || {
            // Parsing the same bytes succeeded, so nothing can fail here.
            let walk = walk.as_mut()?;
            let (unit, body) = walk.next().ok()??;
            let bytes = walk.body_bytes;
            let (scratch, others) = rest.split_at_checked(body.scratch_words())?;
            rest = others;
            Some(FrameUnit::new(walk.codec, unit, body, bytes, scratch))
        })
    }

    /// Adds `weight` times every value of the frame to the flat accumulator: `acc[i] += weight · value`, each
    /// product and each sum rounded once, coordinates ascending.
    ///
    /// # Panics
    /// When `acc` has another length than the layout.
    pub fn add_scaled_to(&self, weight: f32, acc: &mut [f32]) {
        assert_eq!(acc.len(), self.layout_len, "accumulator and layout differ in length");
        for unit in self.units() {
            if let Some(acc) = acc.get_mut(unit.range()) {
                unit.add_scaled_to(weight, acc);
            }
        }
    }
}

/// One unit of a parsed [`Frame`].
#[derive(Clone, Copy, Debug)]
pub struct FrameUnit<'a> {
    unit: Unit,
    #[cfg_attr(not(feature = "alloc"), expect(dead_code, reason = "its reader allocates"))]
    codec: CodecId,
    body: AnyBody<'a>,
    /// Bytes of the body.
    bytes: usize,
    scratch: &'a [u32],
}

impl<'a> FrameUnit<'a> {
    fn new(codec: CodecId, unit: Unit, body: AnyBody<'a>, bytes: usize, scratch: &'a [u32]) -> Self {
        Self { unit, codec, body, bytes, scratch }
    }

    /// Identifier of the unit.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.unit.id
    }

    /// Its coordinates, as a range of the flat gradient.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.unit.range()
    }

    /// Coordinates that the frame sends, whatever their values: the entries of a sparse or seeded unit, all
    /// of a unit of dense values, levels or signs. The mean over senders counts them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.body.held(self.unit.len)
    }

    /// Calls `f(coordinate, value)` for each of the [`held`](Self::held) coordinates, ascending, counted from
    /// the start of the unit.
    pub fn for_each(&self, f: impl FnMut(usize, f32)) {
        self.body.for_each(self.scratch, f);
    }

    /// Adds `weight` times every value to the unit's own part of the accumulator; see
    /// [`Frame::add_scaled_to`].
    ///
    /// # Panics
    /// When `acc` has another length than the unit.
    pub fn add_scaled_to(&self, weight: f32, acc: &mut [f32]) {
        assert_eq!(acc.len(), self.unit.len, "accumulator and unit differ in length");
        self.body.add_scaled_to(self.scratch, weight, acc);
    }

    /// The parts of the unit.
    #[must_use]
    pub fn info(&self) -> UnitInfo {
        self.info_of(self.body, self.bytes)
    }

    /// The parts of the unit under each level coder: the same norms and levels, encoded again with fixed
    /// width, ternary digits (levels of two bits only), Elias, rANS and the adaptive coder, in this order.
    /// `values` has the coder's name. Empty for units without levels, and for pieces that begin inside a
    /// bucket.
    ///
    /// Takes about as long as encoding the unit with each of them, and allocates in proportion to its length.
    #[cfg(feature = "alloc")]
    #[must_use]
    pub fn level_alternatives(&self) -> Vec<UnitInfo> {
        let (codec, kind) = (self.codec, self.body.kind());
        let info = |body: Vec<u8>| {
            let read =
                AnyBody::read(kind, codec, &self.unit, 0, &mut Reader::new(&body), Parser::NONE).ok()?;
            Some(self.info_of(read, body.len()))
        };
        self.body.alternatives(self.scratch).into_iter().filter_map(info).collect()
    }

    fn info_of(&self, body: AnyBody<'_>, body_bytes: usize) -> UnitInfo {
        let BodyInfo { kind, index, values } = body.info();
        UnitInfo { unit: self.unit, kind, held: body.held(self.unit.len), body_bytes, index, values }
    }
}

/// What one unit of a frame is made of, for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Identifier and range.
    pub unit: Unit,
    /// Name of the body's kind.
    pub kind: &'static str,
    /// Coordinates that the frame sends; see [`FrameUnit::held`].
    pub held: usize,
    /// Bytes of the body: both sections, and what says how to read them.
    pub body_bytes: usize,
    /// Name and bytes of the index section, or of the norms of a levels unit.
    pub index: Option<(&'static str, usize)>,
    /// Name and bytes of the value or level section. Names for levels are `fixed`, `ternary`, `elias`,
    /// `rans`, `adaptive` (rANS with several tables or coded norms) and `context` (whose bytes include the
    /// norms).
    pub values: Option<(&'static str, usize)>,
}
