//! Encoding and decoding by rules: a frame for each group of tensors, all of them or none.

use crate::codec::Parser;
use crate::error::{DecodeError, EncodeError};
use crate::frame::header::Header;
use crate::frame::message::{Encoding, check_units, max_frame_bytes, scratch_len};
use crate::frame::{Frame, Opened};
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::owned::buffers::grow;
use crate::registry::codecs::AsUnitCodec;
use crate::rng::key::StepKey;
use crate::scratch::Scratch;
use crate::spec::rules::{Group, Groups};
use crate::wire::ids::CodecId;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Output and working memory of an encoder by [rules](crate::rules). Allocates on the first call, and then
/// only when units grow.
///
/// # Examples
/// ```
/// use gradwire::rules::{Rules, RulesDecoder, RulesEncoder};
/// use gradwire::{Grad, LayoutRef, Limits, Memory, Source, StepKey, TensorRef};
///
/// let tensors = [
///     TensorRef { name: "fc.weight", shape: &[2, 3], offset: 0 },
///     TensorRef { name: "fc.bias", shape: &[2], offset: 6 },
/// ];
/// let layout = LayoutRef::new(&tensors)?;
/// let groups = Rules::parse("*.bias=none; topk:density=0.5")?.groups(&layout);
/// let mut memory = Memory::for_groups(&groups, &layout).expect("topk keeps what it does not send");
/// let mut encoder = RulesEncoder::new();
/// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
/// let grad = [1.0, -8.0, 0.5, 4.0, 0.25, 2.0, 0.125, 16.0];
/// let bytes = encoder.encode(&groups, key, &layout, Grad::F32(&grad), Some(&mut memory))?;
///
/// let mut decoder = RulesDecoder::new();
/// let frames = decoder.parse(&groups, bytes, &layout, &Limits::for_layout(&layout))?;
/// let mut sum = [0.0; 8];
/// frames.add_scaled_to(1.0, &mut sum);
/// assert_eq!(sum, [0.0, -8.0, 0.0, 4.0, 0.0, 2.0, 0.125, 16.0]);
/// assert_eq!(memory.residual(), [1.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RulesEncoder {
    words: Vec<u32>,
    bytes: Vec<u8>,
    frames: Vec<u8>,
    /// Where each frame ends in `frames`.
    ends: Vec<usize>,
}

impl RulesEncoder {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes the frames of all groups, one after the other in the order of their rules. With one rule,
    /// these are the bytes that [`Encoder`](crate::Encoder) makes.
    ///
    /// With a memory, each group keeps in it what its spelling says. Groups with `memory=none` are encoded as
    /// if there were no memory. `grad` and the memory have `layout.len()` elements.
    ///
    /// # Errors
    /// As [`Gather::encode`](crate::Gather::encode), except that its buffers grow. After an error there are
    /// no frames of any group, and the memory is as it was, bit for bit: every value of every group is
    /// checked before the first group changes anything. With several groups, this check reads the whole
    /// gradient once more.
    ///
    /// # Panics
    /// If the groups are those of another layout, or `grad` or the memory has another length than it.
    ///
    /// # Determinism
    /// Same groups, key, layout, gradient and memory: same bytes, on every machine.
    pub fn encode(
        &mut self,
        groups: &Groups,
        key: StepKey,
        layout: &LayoutRef<'_>,
        grad: Grad<'_>,
        mut memory: Option<&mut Memory<'_>>,
    ) -> Result<&[u8], EncodeError> {
        groups.assert_for(layout);
        let memory_len = memory.as_ref().map_or(layout.len(), |memory| memory.len());
        assert_eq!(memory_len, layout.len(), "memory and layout differ in length");
        self.ends.clear();
        self.grow(groups, layout)?;
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        let encoding = |group| encoding(group, key, layout, grad);
        if let [group] = groups.groups() {
            let memory = memory.filter(|_| group.keeps());
            self.ends.push(encoding(group).encode(memory, &mut scratch, &mut self.frames)?);
            return Ok(self.frames());
        }
        for group in groups.groups() {
            let memory = memory.as_deref().filter(|_| group.keeps());
            check(&encoding(group), memory, &scratch, self.frames.len())?;
        }
        let mut end = 0;
        for group in groups.groups() {
            let memory = memory.as_deref_mut().filter(|_| group.keeps());
            end += encoding(group).write(memory, &mut scratch, &mut self.frames[end..])?;
            self.ends.push(end);
        }
        Ok(self.frames())
    }

    /// Makes room for the frames of all groups, whatever the gradient.
    fn grow(&mut self, groups: &Groups, layout: &LayoutRef<'_>) -> Result<(), EncodeError> {
        let mut frames = 0usize;
        for group in groups.groups() {
            let codec = group.spec.codec.as_unit_codec();
            // Check first, so that no buffer grows for units that will be refused.
            check_units(layout, &group.units)?;
            let needed = scratch_len(codec, &group.units);
            grow(&mut self.words, needed.words);
            grow(&mut self.bytes, needed.bytes);
            let bytes = max_frame_bytes(codec, &group.units).ok_or(EncodeError::TooLarge)?;
            frames = frames.checked_add(bytes).ok_or(EncodeError::TooLarge)?;
        }
        grow(&mut self.frames, frames);
        Ok(())
    }

    /// All frames of the last successful call; empty before it, and after an error.
    #[must_use]
    pub fn frames(&self) -> &[u8] {
        &self.frames[..self.ends.last().copied().unwrap_or(0)]
    }

    /// The frame of one group, counted from 0, of the last successful call.
    #[must_use]
    pub fn frame(&self, group: usize) -> Option<&[u8]> {
        Some(&self.frames[self.range(group)?])
    }

    fn range(&self, group: usize) -> Option<Range<usize>> {
        let start = if group == 0 { 0 } else { *self.ends.get(group - 1)? };
        Some(start..*self.ends.get(group)?)
    }
}

/// The encoding of one group, on the caller's thread.
fn encoding<'a>(group: &'a Group, key: StepKey, layout: &'a LayoutRef<'a>, grad: Grad<'a>) -> Encoding<'a> {
    Encoding::new(group.spec.codec.as_unit_codec(), key, layout, &group.units, grad)
}

/// Checks everything that can make the encode of one group fail, to the last value.
fn check(
    encoding: &Encoding<'_>,
    memory: Option<&Memory<'_>>,
    scratch: &Scratch<'_>,
    out_len: usize,
) -> Result<(), EncodeError> {
    encoding.check_lengths(memory)?;
    encoding.check_structure(scratch, out_len)?;
    encoding.check_parts(memory)?;
    encoding.check_values(memory)
}

/// Working memory of a decoder by [rules](crate::rules). It grows when frames do, never beyond what `limits`
/// allow; each call allocates a list of the frames.
#[derive(Clone, Debug, Default)]
pub struct RulesDecoder {
    words: Vec<u32>,
}

impl RulesDecoder {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the frames of all groups completely. It checks each frame as [`Frame::parse`] does, and that it
    /// belongs to its group. The frames that it returns decode without failing. The limits hold for all
    /// frames together.
    ///
    /// # Errors
    /// [`GroupsDecodeError`].
    ///
    /// # Panics
    /// If the groups are those of another layout.
    ///
    /// # Examples
    /// ```
    /// use gradwire::rules::{GroupsDecodeError, Rules, RulesDecoder};
    /// use gradwire::{DecodeError, LayoutRef, Limits};
    ///
    /// let layout = LayoutRef::flat(4);
    /// let groups = Rules::parse("topk").unwrap().groups(&layout);
    /// let mut decoder = RulesDecoder::new();
    /// let result = decoder.parse(&groups, b"no frame", &layout, &Limits::for_layout(&layout));
    /// assert_eq!(result.unwrap_err(), GroupsDecodeError::Frame { rule: 0, error: DecodeError::BadMagic });
    /// ```
    pub fn parse<'a>(
        &'a mut self,
        groups: &'a Groups,
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
    ) -> Result<GroupFrames<'a>, GroupsDecodeError> {
        groups.assert_for(layout);
        let opened = open_all(groups, bytes, layout, limits)?;
        grow(&mut self.words, opened.iter().map(Opened::scratch_words).sum());
        let (mut rest, mut frames) = (&mut self.words[..], Vec::new());
        for (group, opened) in groups.groups().iter().zip(opened) {
            let (own, others) = rest.split_at_mut(opened.scratch_words());
            let frame = opened.check(own).map_err(|error| in_frame(group, error))?;
            check_group(group, &frame, frames.first().unwrap_or(&frame))?;
            frames.push(frame);
            rest = others;
        }
        Ok(GroupFrames { groups, frames })
    }
}

/// Checks headers, checksums and structure of the frames of all groups, and that nothing is left over.
fn open_all<'a, 'l>(
    groups: &Groups,
    mut bytes: &'a [u8],
    layout: &'l LayoutRef<'l>,
    limits: &Limits,
) -> Result<Vec<Opened<'a, 'l>>, GroupsDecodeError> {
    let (mut limits, mut all) = (*limits, Vec::new());
    for group in groups.groups() {
        let (frame, behind) = split(bytes).map_err(|error| in_frame(group, error))?;
        let opened =
            Opened::new(frame, layout, &limits, Parser::NONE).map_err(|error| in_frame(group, error))?;
        limits = opened.left_of(&limits);
        all.push(opened);
        bytes = behind;
    }
    if bytes.is_empty() { Ok(all) } else { Err(GroupsDecodeError::TrailingBytes) }
}

/// The first frame, which ends where its header says, and the bytes after it. If the frame is cut short, no
/// bytes follow it.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let end = usize::try_from(Header::parse(bytes)?.frame_bytes()).unwrap_or(usize::MAX);
    Ok(bytes.split_at_checked(end).unwrap_or((bytes, &[])))
}

fn in_frame(group: &Group, error: DecodeError) -> GroupsDecodeError {
    GroupsDecodeError::Frame { rule: group.rule, error }
}

/// Whether a frame belongs to its group: its codec, all of its units, and the step and divisor of the first
/// frame.
fn check_group(group: &Group, frame: &Frame<'_>, first: &Frame<'_>) -> Result<(), GroupsDecodeError> {
    let (rule, found) = (group.rule, frame.header().codec);
    let expected = group.spec.codec.capabilities().id;
    if found != expected {
        return Err(GroupsDecodeError::Codec { rule, expected, found });
    }
    let units = frame.units().map(|unit| (unit.id(), unit.range()));
    if !units.eq(group.units.iter().map(|unit| (unit.id, unit.range()))) {
        return Err(GroupsDecodeError::Units { rule });
    }
    let is_alike = frame.step() == first.step() && frame.header().divisor == first.header().divisor;
    if is_alike { Ok(()) } else { Err(GroupsDecodeError::Mixed { rule }) }
}

/// The frames of all groups, which passed every check.
#[derive(Clone, Debug)]
pub struct GroupFrames<'a> {
    groups: &'a Groups,
    /// One for each group.
    frames: Vec<Frame<'a>>,
}

impl<'a> GroupFrames<'a> {
    /// The frames, one for each group.
    #[must_use]
    pub fn frames(&self) -> &[Frame<'a>] {
        &self.frames
    }

    /// The step that all frames belong to.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.frames.first().map_or(0, Frame::step)
    }

    /// Adds `weight` times every value of all frames to the flat accumulator; see [`Frame::add_scaled_to`].
    ///
    /// # Panics
    /// When `acc` has another length than the layout.
    pub fn add_scaled_to(&self, weight: f32, acc: &mut [f32]) {
        self.frames.iter().for_each(|frame| frame.add_scaled_to(weight, acc));
    }

    /// Returns the frames of groups that keep a residual to the memory, as [`Memory::give_back`] does. The
    /// memory has no place for the values of groups with `memory=none`, so these are lost.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn give_back_to(&self, memory: &mut Memory<'_>) {
        let keeping = self.groups.groups().iter().zip(&self.frames).filter(|(group, _)| group.keeps());
        keeping.for_each(|(_, frame)| memory.give_back(frame));
    }
}

/// Why bytes are not the frames of some groups. `rule` is the position of the group's rule, from 0.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupsDecodeError {
    /// The group's frame is missing, or was refused.
    Frame {
        /// Of the group.
        rule: usize,
        /// What is wrong with the frame.
        error: DecodeError,
    },
    /// The group's frame is one of another codec.
    Codec {
        /// Of the group.
        rule: usize,
        /// The rule's codec.
        expected: CodecId,
        /// The frame's.
        found: CodecId,
    },
    /// The group's frame has other units than the group.
    Units {
        /// Of the group.
        rule: usize,
    },
    /// The group's frame differs from the first frame in its step, or in how the mean is formed.
    Mixed {
        /// Of the group.
        rule: usize,
    },
    /// Bytes are left over after the last group's frame.
    TrailingBytes,
}

impl fmt::Display for GroupsDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Frame { rule, error } => write!(f, "frame of rule {}: {error}", rule + 1),
            Self::Codec { rule, expected, found } => {
                let (expected, found) = (expected.number(), found.number());
                write!(f, "frame of rule {}: codec {found} instead of {expected}", rule + 1)
            }
            Self::Units { rule } => write!(f, "frame of rule {}: other units than its tensors are", rule + 1),
            Self::Mixed { rule } => write!(f, "frame of rule {}: another step or divisor", rule + 1),
            Self::TrailingBytes => f.write_str("trailing bytes behind the frame of the last rule"),
        }
    }
}

impl core::error::Error for GroupsDecodeError {}

impl GroupsDecodeError {
    /// The number of this kind of error, for callers without Rust's enums: that of the [`DecodeError`] in a
    /// frame, otherwise one of 151 to 199. A number never changes its meaning.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Frame { error, .. } => error.code(),
            Self::Codec { .. } => 151,
            Self::Units { .. } => 152,
            Self::Mixed { .. } => 153,
            Self::TrailingBytes => 154,
        }
    }
}
