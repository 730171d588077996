//! Encoding and decoding by a plan: a frame for each group of units, all of them or none.

use super::{Group, Plan};
use crate::codec::Parser;
use crate::error::{DecodeError, EncodeError};
use crate::frame::experiment::Frames;
use crate::frame::gather::StepInput;
use crate::frame::header::Header;
use crate::frame::message::{Encoding, check_units};
use crate::frame::{Frame, Opened};
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::owned::buffers::{Decoder, Encoder, grow};
use crate::scratch::Scratch;
use crate::wire::ids::CodecId;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;

impl Encoder {
    /// Encodes the frames of all groups of a plan that have units among those of `step`, one after the other
    /// in the order of their rules. `step.units` are units of the plan, ascending: all of them, or those of a
    /// part of the step. With one group, these are the bytes that [`encode`](Self::encode) makes.
    ///
    /// With a memory, each group keeps in it what its spelling says. Groups with `memory=none` are encoded as
    /// if there were no memory.
    ///
    /// # Errors
    /// As [`Gather::encode`](crate::Gather::encode), except that its buffers grow. After an error there are
    /// no frames of any group, and the memory is as it was, bit for bit: every value of every group is
    /// checked before the first group changes anything. With several groups, this check reads the whole
    /// gradient once more.
    ///
    /// # Panics
    /// If the plan is that of another layout, or gradient or memory has another length than it. If a
    /// registered codec of another crate, as one of several groups, reads the same frame twice differently.
    ///
    /// # Determinism
    /// Same plan, step and memory: same bytes, on every machine.
    ///
    /// # Examples
    /// ```
    /// use gradwire::plan::Plan;
    /// use gradwire::rules::Rules;
    /// use gradwire::{Decoder, Encoder, Grad, LayoutRef, Limits, Memory, Source};
    /// use gradwire::{StepInput, StepKey, TensorRef};
    ///
    /// let tensors = [
    ///     TensorRef { name: "fc.weight", shape: &[2, 3], offset: 0 },
    ///     TensorRef { name: "fc.bias", shape: &[2], offset: 6 },
    /// ];
    /// let layout = LayoutRef::new(&tensors)?;
    /// let plan = Plan::of_rules(&Rules::parse("*.bias=none; topk:density=0.5")?, &layout);
    /// let mut memory = Memory::for_plan(&plan, &layout).expect("topk keeps what it does not send");
    /// let mut encoder = Encoder::new();
    /// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    /// let grad = Grad::F32(&[1.0, -8.0, 0.5, 4.0, 0.25, 2.0, 0.125, 16.0]);
    /// let step = StepInput { key, layout: &layout, units: plan.units(), grad };
    /// let bytes = encoder.encode_plan(&plan, &step, Some(&mut memory))?;
    ///
    /// let mut decoder = Decoder::new();
    /// let frames = decoder.parse_plan(&plan, plan.units(), bytes, &layout, &Limits::for_layout(&layout))?;
    /// let mut sum = [0.0; 8];
    /// frames.add_scaled_to(1.0, &mut sum);
    /// assert_eq!(sum, [0.0, -8.0, 0.0, 4.0, 0.0, 2.0, 0.125, 16.0]);
    /// assert_eq!(memory.residual(), [1.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn encode_plan(
        &mut self,
        plan: &Plan,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
    ) -> Result<&[u8], EncodeError> {
        plan.assert_for(step.layout);
        let memory_len = memory.as_ref().map_or(step.layout.len(), |memory| memory.len());
        assert_eq!(memory_len, step.layout.len(), "memory and layout differ in length");
        self.clear();
        self.make_room(plan, step)?;
        let mut groups = groups_in(plan, step.units);
        self.len = match (groups.next(), groups.next()) {
            (Some((group, units)), None) => self.encode_alone(group, &units, step, memory)?,
            _ => self.encode_all(plan, step, memory)?,
        };
        Ok(self.frame())
    }

    /// The frame of the only group that has units in the step.
    fn encode_alone(
        &mut self,
        group: &Group,
        units: &[Unit],
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
    ) -> Result<usize, EncodeError> {
        let memory = memory.filter(|_| group.keeps() || group.listed().is_none());
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        let step = StepInput { units, ..*step };
        let bytes = group.codec().encode(&step, memory, &mut scratch, &mut self.frame)?;
        self.mark(0..bytes);
        Ok(bytes)
    }

    /// The frames of several groups. First comes everything that can fail: a codec of another crate may
    /// refuse what it has begun, so its frame is written at once, at the end of the room that the frames
    /// before it can take.
    fn encode_all(
        &mut self,
        plan: &Plan,
        step: &StepInput<'_>,
        mut memory: Option<&mut Memory<'_>>,
    ) -> Result<usize, EncodeError> {
        let (mut start, mut prepared) = (0, Vec::new());
        for (group, units) in groups_in(plan, step.units) {
            let memory = memory.as_deref().filter(|_| group.keeps());
            let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
            let (room, step) = (room(group, &units)?, StepInput { units: &units, ..*step });
            let out = &mut self.frame[start..start + room];
            match Frames::of(group.unit_codec()) {
                Some(frames) => {
                    prepared.push(start..start + frames.prepare(&step, memory, &mut scratch, out)?);
                }
                None => check(&Encoding::new(group.unit_codec(), &step), memory, &scratch, room)?,
            }
            start += room;
        }
        let (mut end, mut prepared) = (0, prepared.into_iter());
        for (group, units) in groups_in(plan, step.units) {
            let memory = memory.as_deref_mut().filter(|_| group.keeps());
            let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
            let step = StepInput { units: &units, ..*step };
            let bytes =
                match Frames::of(group.unit_codec()).and_then(|frames| Some((frames, prepared.next()?))) {
                    Some((frames, frame)) => {
                        let bytes = frame.len();
                        self.frame.copy_within(frame, end);
                        frames.commit(&step, &self.frame[end..end + bytes], memory, &mut scratch);
                        bytes
                    }
                    None => Encoding::new(group.unit_codec(), &step).write(
                        memory,
                        &mut scratch,
                        &mut self.frame[end..],
                    )?,
                };
            self.mark(end..end + bytes);
            end += bytes;
        }
        Ok(end)
    }

    /// Makes room for the frames of all groups, whatever the gradient.
    fn make_room(&mut self, plan: &Plan, step: &StepInput<'_>) -> Result<(), EncodeError> {
        let mut frames = 0usize;
        for (group, units) in groups_in(plan, step.units) {
            // Check first, so that no buffer grows for units that will be refused.
            check_units(step.layout, &units)?;
            let needed = group.codec().scratch_len(&units);
            grow(&mut self.words, needed.words);
            grow(&mut self.bytes, needed.bytes);
            frames = frames.checked_add(room(group, &units)?).ok_or(EncodeError::TooLarge)?;
        }
        self.make_room_for(frames);
        Ok(())
    }
}

/// Bytes that the longest frame of a group takes.
fn room(group: &Group, units: &[Unit]) -> Result<usize, EncodeError> {
    group.codec().max_frame_bytes(units).ok_or(EncodeError::TooLarge)
}

/// The groups that have units among these, with those units.
fn groups_in<'a>(plan: &'a Plan, units: &'a [Unit]) -> impl Iterator<Item = (&'a Group, Cow<'a, [Unit]>)> {
    let groups = plan.groups().iter().map(move |group| (group, group.units_in(units)));
    groups.filter(|(_, units)| !units.is_empty())
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

impl Decoder {
    /// Checks the frames of all groups of a plan that have units among `units` completely. It checks each
    /// frame as [`Frame::parse`] does, and that it belongs to its group. The frames that it returns decode
    /// without failing. The limits hold for all frames together. With several groups, each call allocates a
    /// list of the frames.
    ///
    /// # Errors
    /// [`GroupsDecodeError`].
    ///
    /// # Panics
    /// If the plan is that of another layout.
    ///
    /// # Examples
    /// ```
    /// use gradwire::plan::{GroupsDecodeError, Plan};
    /// use gradwire::{DecodeError, Decoder, LayoutRef, Limits, Spec};
    ///
    /// let layout = LayoutRef::flat(4);
    /// let plan = Plan::of(&Spec::parse("topk").unwrap(), &layout);
    /// let mut decoder = Decoder::new();
    /// let result = decoder.parse_plan(&plan, plan.units(), b"no frame", &layout, &Limits::for_layout(&layout));
    /// assert_eq!(result.unwrap_err(), GroupsDecodeError::Frame { rule: 0, error: DecodeError::BadMagic });
    /// ```
    pub fn parse_plan<'a>(
        &'a mut self,
        plan: &'a Plan,
        units: &'a [Unit],
        bytes: &'a [u8],
        layout: &LayoutRef<'_>,
        limits: &Limits,
    ) -> Result<GroupFrames<'a>, GroupsDecodeError> {
        plan.assert_for(layout);
        let opened = open_all(plan, units, bytes, layout, limits)?;
        grow(&mut self.words, opened.iter().map(Opened::scratch_words).sum());
        let (mut rest, mut frames) = (&mut self.words[..], Vec::new());
        for ((group, units), opened) in groups_in(plan, units).zip(opened) {
            let (own, others) = rest.split_at_mut(opened.scratch_words());
            let frame = opened.check(own).map_err(|error| in_frame(group, error))?;
            check_group((group, &units), &frame, frames.first().map_or(&frame, |(_, first)| first))?;
            frames.push((group, frame));
            rest = others;
        }
        Ok(GroupFrames { frames })
    }
}

/// Checks headers, checksums and structure of the frames of all groups, and that nothing is left over.
fn open_all<'a, 'l>(
    plan: &'a Plan,
    units: &'a [Unit],
    mut bytes: &'a [u8],
    layout: &'l LayoutRef<'l>,
    limits: &Limits,
) -> Result<Vec<Opened<'a, 'l>>, GroupsDecodeError> {
    let (mut limits, mut all) = (*limits, Vec::new());
    for (group, _) in groups_in(plan, units) {
        let (frame, behind) = split(bytes).map_err(|error| in_frame(group, error))?;
        let parser = Parser::new(group.codec().parser());
        let opened = Opened::new(frame, layout, &limits, parser).map_err(|error| in_frame(group, error))?;
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
fn check_group(
    (group, own): (&Group, &[Unit]),
    frame: &Frame<'_>,
    first: &Frame<'_>,
) -> Result<(), GroupsDecodeError> {
    let (rule, found) = (group.rule, frame.header().codec);
    let expected = group.codec().id();
    if found != expected {
        return Err(GroupsDecodeError::Codec { rule, expected, found });
    }
    let units = frame.units().map(|unit| (unit.id(), unit.range()));
    if !units.eq(own.iter().map(|unit| (unit.id, unit.range()))) {
        return Err(GroupsDecodeError::Units { rule });
    }
    let is_alike = frame.step() == first.step() && frame.header().divisor == first.header().divisor;
    if is_alike { Ok(()) } else { Err(GroupsDecodeError::Mixed { rule }) }
}

/// The frames of all groups, which passed every check.
#[derive(Debug)]
pub struct GroupFrames<'a> {
    frames: Vec<(&'a Group, Frame<'a>)>,
}

impl<'a> GroupFrames<'a> {
    /// The frames, one for each group, with their groups.
    #[must_use]
    pub fn frames(&self) -> &[(&'a Group, Frame<'a>)] {
        &self.frames
    }

    /// The step that all frames belong to.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.frames.first().map_or(0, |(_, frame)| frame.step())
    }

    /// Adds `weight` times every value of all frames to the flat accumulator; see [`Frame::add_scaled_to`].
    ///
    /// # Panics
    /// When `acc` has another length than the layout.
    pub fn add_scaled_to(&self, weight: f32, acc: &mut [f32]) {
        self.frames.iter().for_each(|(_, frame)| frame.add_scaled_to(weight, acc));
    }

    /// Returns the frames of groups that keep a residual to the memory, as [`Memory::give_back`] does. The
    /// memory has no place for the values of groups with `memory=none`, so these are lost.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn give_back_to(&self, memory: &mut Memory<'_>) {
        let keeping = self.frames.iter().filter(|(group, _)| group.keeps());
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
