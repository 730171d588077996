//! Frames of codecs of other crates. A frame is written, read back, and only then subtracted from the memory.

use crate::codec::{EncodeBody, EncodeUnit, Law, ParseBody, Reduction, Refused, ShareNumbers};
use crate::codec::{UnitInput, UnitSource};
use crate::codecs::dense::Dense;
use crate::corrected::Corrected;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::frame::gather::{Gather, StepInput};
use crate::frame::message::{check_frame_fits, check_units, longest_message, write_message};
use crate::frame::rounds_first::RoundsFirst;
use crate::gradient::grad::Grad;
use crate::gradient::unit::Unit;
use crate::kernels::{Isa, floats_of};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::writer::Writer;

/// Makes a [`Gather`] codec of a codec of another crate.
///
/// [`EncodeBody::encode_body`] gets the values of every unit, p = fl(residual + gradient). Units that are
/// sent dense are sent as f32. The frame is then read back as any receiver would read it, and the residual
/// becomes p less the decoded values. So if receivers would refuse a body, or if it breaks the codec's
/// [law](EncodeBody::law), encoding fails at the sender, and the memory is as it was.
///
/// Codecs of other crates keep only a residual in the memory, and have no packets. A codec with
/// [`EncodeBody::shared`] is a [`RoundsFirst`].
///
/// # Examples
/// A codec that sends the first coordinate of each unit, as a frame of its own kind.
#[cfg_attr(feature = "alloc", doc = "```")]
#[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
/// use gradwire::experiments::{BodyOutline, EncodeBody, Experiment, Experimental, ParseBody};
/// use gradwire::experiments::{Refused, UnitBody, UnitSource};
/// use gradwire::registry::Law;
/// use gradwire::{Decoder, Encoder, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source};
/// use gradwire::{StepInput, StepKey, Unit};
///
/// struct First;
///
/// impl ParseBody for First {
///     fn experiment(&self) -> Experiment {
///         Experiment::new(0xf7).unwrap()
///     }
///
///     fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
///         let held = body.unit.len.min(1);
///         Ok(BodyOutline { bytes: 4 * held, held, scratch_words: 0 })
///     }
///
///     fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
///         if let Some(value) = body.bytes.first_chunk() {
///             f(0, f32::from_le_bytes(*value));
///         }
///     }
/// }
///
/// impl EncodeBody for First {
///     fn law(&self) -> Law {
///         Law::Exact
///     }
///
///     fn max_body_bytes(&self, len: usize) -> Option<usize> {
///         Some(4 * len.min(1))
///     }
///
///     fn encode_body(
///         &self,
///         _: &UnitSource<'_>,
///         values: &[f32],
///         _: &mut Scratch<'_>,
///         out: &mut [u8],
///     ) -> Result<usize, Refused> {
///         values.first().map_or(Ok(0), |first| {
///             out.copy_from_slice(&first.to_le_bytes());
///             Ok(4)
///         })
///     }
/// }
///
/// let (codec, layout, units) = (Experimental(First), LayoutRef::flat(2), [Unit::whole(2)]);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let mut memory = Memory::new(vec![0.0; 2]);
/// let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&[2.0, 0.5]) };
/// let frame = encoder.encode(&codec, &step, Some(&mut memory)).unwrap();
/// assert_eq!(memory.residual(), [0.0, 0.5]);
///
/// let limits = Limits::for_layout(&layout);
/// assert!(decoder.parse(frame, &layout, &limits).is_err());
/// let mut sum = [0.0; 2];
/// let frame = decoder.parse_with(frame, &layout, &limits, codec.parser()).unwrap();
/// frame.add_scaled_to(1.0, &mut sum);
/// assert_eq!(sum, [2.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experimental<C>(pub C);

impl<C: EncodeBody> Gather for Experimental<C> {
    fn id(&self) -> CodecId {
        self.0.experiment().codec()
    }

    fn parser(&self) -> Option<&dyn ParseBody> {
        Some(&self.0)
    }

    fn rounds_first(&self) -> Option<&dyn RoundsFirst> {
        self.0.shared().map(|_| self as &dyn RoundsFirst)
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        Frames(&self.0).max_bytes(units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        Frames(&self.0).scratch_len(units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        Frames(&self.0).encode(step, memory, scratch, out)
    }
}

impl<C: EncodeBody> RoundsFirst for Experimental<C> {
    fn number_count(&self, unit: &Unit) -> usize {
        number_count(self.0.shared(), unit)
    }

    fn round(
        &self,
        index: u32,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, EncodeError> {
        Frames(&self.0).round(index, step, memory, scratch, numbers)
    }

    fn encode_after(
        &self,
        numbers: &[f32],
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        Frames(&self.0).encode_after(numbers, step, memory, scratch, out)
    }
}

/// The frames of a codec of another crate.
#[derive(Clone, Copy)]
pub(crate) struct Frames<'c>(pub(crate) &'c dyn EncodeBody);

impl<'c> Frames<'c> {
    /// Those of a registered codec; `None` for every codec of this crate.
    pub(crate) fn of(codec: &'c dyn EncodeUnit) -> Option<Self> {
        codec.as_experiment().map(Self)
    }

    /// As [`Gather::max_frame_bytes`].
    pub(crate) fn max_bytes(self, units: &[Unit]) -> Option<usize> {
        longest_message(units, |unit| max_body_bytes(self.0, unit))
    }

    /// As [`Gather::scratch_len`].
    pub(crate) fn scratch_len(self, units: &[Unit]) -> ScratchLen {
        let own = units.iter().filter(|unit| !unit.dense).map(|unit| self.0.scratch_len(unit.len));
        let dense = units.iter().filter(|unit| unit.dense).map(|unit| Dense::F32.unit_scratch_len(unit.len));
        let encoding = own.chain(dense).fold(ScratchLen::default(), ScratchLen::max);
        let reading = units.iter().filter(|unit| !unit.dense).map(|unit| self.0.max_parse_words(unit.len));
        let words = reading.fold(0, usize::saturating_add).max(encoding.words);
        ScratchLen { words: words.saturating_add(longest(units)), ..encoding }
    }

    /// As [`Gather::encode`].
    pub(crate) fn encode(
        self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let draft = Draft::of(self.0, step, &[]);
        draft.check_lengths(memory.as_deref())?;
        draft.check_has_no_rounds()?;
        self.write(&draft, memory, scratch, out)
    }

    /// As [`RoundsFirst::round`].
    pub(crate) fn round(
        self,
        index: u32,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, EncodeError> {
        let draft = Draft::of(self.0, step, &[]);
        draft.check_lengths(memory)?;
        self.check_scratch(step.units, scratch)?;
        assert_eq!(numbers.len(), draft.number_count(), "numbers and units differ in length");
        draft.round(index, memory, scratch, numbers)
    }

    /// As [`RoundsFirst::encode_after`].
    pub(crate) fn encode_after(
        self,
        numbers: &[f32],
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let draft = Draft::of(self.0, step, numbers);
        draft.check_lengths(memory.as_deref())?;
        assert_eq!(numbers.len(), draft.number_count(), "numbers and units differ in length");
        self.write(&draft, memory, scratch, out)
    }

    /// Writes the frame, and checks that [`commit`](Self::commit) can follow; no memory changes. For a frame
    /// that is one of several, of which all or none are sent.
    ///
    /// # Errors
    /// As [`Gather::encode`].
    #[cfg(feature = "alloc")]
    pub(crate) fn prepare(
        self,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let draft = Draft::of(self.0, step, &[]);
        draft.check_lengths(memory)?;
        draft.check_has_no_rounds()?;
        check_frame_fits(self.max_bytes(step.units), out.len())?;
        self.check_scratch(step.units, scratch)?;
        let bytes = draft.write(memory, scratch, out)?;
        draft.verify(&out[..bytes], memory, scratch)?;
        Ok(bytes)
    }

    /// Subtracts a frame that was [prepared](Self::prepare) from the memory.
    ///
    /// # Panics
    /// If the codec reads the same frame differently this time.
    #[cfg(feature = "alloc")]
    pub(crate) fn commit(
        self,
        step: &StepInput<'_>,
        frame: &[u8],
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
    ) {
        let committed = Draft::of(self.0, step, &[]).commit(frame, memory, scratch);
        committed.expect("a codec reads the same frame in the same way");
    }

    fn write(
        self,
        draft: &Draft<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        check_frame_fits(self.max_bytes(draft.step.units), out.len())?;
        self.check_scratch(draft.step.units, scratch)?;
        let bytes = draft.write(memory.as_deref(), scratch, out)?;
        draft.commit(&out[..bytes], memory, scratch)?;
        Ok(bytes)
    }

    fn check_scratch(self, units: &[Unit], scratch: &Scratch<'_>) -> Result<(), EncodeError> {
        let needed = self.scratch_len(units);
        if scratch.holds(needed) { Ok(()) } else { Err(EncodeError::ScratchTooSmall { needed }) }
    }
}

/// Number of values that a unit has in the rounds before its frame. A unit that is sent dense has none.
pub(crate) fn number_count(shared: Option<&dyn ShareNumbers>, unit: &Unit) -> usize {
    shared.filter(|_| !unit.dense).map_or(0, |shared| shared.count(unit.len))
}

fn max_body_bytes(codec: &dyn EncodeBody, unit: &Unit) -> Option<usize> {
    if unit.dense { Dense::F32.max_body_bytes(unit.len) } else { codec.max_body_bytes(unit.len) }
}

/// Elements of the longest unit.
fn longest(units: &[Unit]) -> usize {
    units.iter().map(|unit| unit.len).max().unwrap_or(0)
}

/// A frame that is written and read back before any memory changes.
struct Draft<'a> {
    codec: &'a dyn EncodeBody,
    step: StepInput<'a>,
    /// The numbers that all ranks agreed on, unit after unit.
    numbers: &'a [f32],
}

impl<'a> Draft<'a> {
    fn of(codec: &'a dyn EncodeBody, step: &StepInput<'a>, numbers: &'a [f32]) -> Self {
        Self { codec, step: *step, numbers }
    }
}

impl Draft<'_> {
    /// Number of values that all units have in the rounds before.
    fn number_count(&self) -> usize {
        let shared = self.codec.shared();
        self.step.units.iter().map(|unit| number_count(shared, unit)).sum()
    }

    fn check_has_no_rounds(&self) -> Result<(), EncodeError> {
        if self.number_count() == 0 {
            return Ok(());
        }
        Err(refused(&self.step.units[0], Refused::new("its rounds come before its frame")))
    }

    /// One round before the frame, for all units.
    fn round(
        &self,
        index: u32,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        mut numbers: &mut [f32],
    ) -> Result<Option<Reduction>, EncodeError> {
        let Some(shared) = self.codec.shared() else { return Ok(None) };
        let mut same = None;
        for unit in self.step.units.iter().filter(|unit| !unit.dense) {
            let own = numbers.split_off_mut(..shared.count(unit.len)).unwrap_or_default();
            let p = &mut scratch.words[..unit.len];
            self.write_sums(unit, memory, p)?;
            let source = self.source(unit, &[]);
            let reduction = shared.round(index, &source, floats_of(p), own);
            let reduction = reduction.map_err(|why| refused(unit, why))?;
            check_round(reduction, own, *same.get_or_insert(reduction)).map_err(|why| refused(unit, why))?;
        }
        Ok(same.flatten())
    }

    fn source<'s>(&'s self, unit: &Unit, numbers: &'s [f32]) -> UnitSource<'s> {
        UnitSource { key: self.step.key, layout: self.step.layout, unit: *unit, numbers, density: None }
    }

    fn check_lengths(&self, memory: Option<&Memory<'_>>) -> Result<(), EncodeError> {
        assert_eq!(self.step.grad.len(), self.step.layout.len(), "gradient and layout differ in length");
        if let Some(memory) = memory {
            assert_eq!(memory.len(), self.step.layout.len(), "memory and layout differ in length");
            if self.codec.law() == Law::NotKept {
                return Err(EncodeError::MemoryRefused);
            }
        }
        check_units(self.step.layout, self.step.units)
    }

    /// Writes p of a unit, and checks every value.
    fn write_sums(&self, unit: &Unit, memory: Option<&Memory<'_>>, p: &mut [u32]) -> Result<(), EncodeError> {
        let residual = memory.map(|memory| memory.view(unit.range()).residual);
        let grad = self.step.grad.slice(unit.start, unit.len);
        let bound = if unit.dense { f32::INFINITY } else { self.codec.overflow_bound() };
        Corrected::new(grad, residual, unit.start, bound).fold(Isa::best(), 0, p).map(drop)
    }

    /// Writes the frame; nothing else changes.
    fn write(
        &self,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let (experiment, mut numbers) = (self.codec.experiment(), self.numbers);
        let kind = |unit: &Unit| if unit.dense { Kind::DENSE } else { experiment.kind() };
        write_message(&self.step, experiment.codec(), out, kind, |_, unit, writer| {
            let own = numbers.split_off(..number_count(self.codec.shared(), unit)).unwrap_or_default();
            let (p, words) = scratch.words.split_at_mut(unit.len);
            self.write_sums(unit, memory, p)?;
            let scratch = &mut Scratch { words, bytes: scratch.bytes };
            self.write_body(&self.source(unit, own), floats_of(p), scratch, writer)
        })
    }

    fn write_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let (codec, unit) = (self.codec, &source.unit);
        let StepInput { key, layout, .. } = self.step;
        if unit.dense {
            let (grad, memory, momentum, state) = (Grad::F32(values), None, None, None);
            #[cfg(feature = "parallel")]
            let threads = 1;
            let input = UnitInput {
                key,
                layout,
                unit,
                grad,
                memory,
                initial: None,
                momentum,
                state,
                #[cfg(feature = "parallel")]
                threads,
            };
            return Dense::F32.encode_body(input, scratch, writer);
        }
        let room = max_body_bytes(codec, unit).ok_or(EncodeError::TooLarge)?;
        let out = &mut writer.spare()[..room];
        // A frame does not depend on what its buffer held before.
        out.fill(0);
        let written = codec.encode_body(source, values, scratch, out);
        match written {
            Ok(bytes) if bytes <= room => writer.advance(bytes),
            Ok(_) => return Err(refused(unit, Refused::new("more bytes than its bound"))),
            Err(why) => return Err(refused(unit, why)),
        }
        Ok(())
    }

    /// Reads the frame back, and subtracts its content from the memory.
    fn commit(
        &self,
        bytes: &[u8],
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), EncodeError> {
        let Some(memory) = memory else { return self.verify(bytes, None, scratch) };
        let (p, words) = scratch.words.split_at_mut(longest(self.step.units));
        let frame = self.parse_back(bytes, words)?;
        self.check_law(&frame, memory, p)?;
        for (unit, sent) in self.step.units.iter().zip(frame.units()) {
            let p = &mut p[..unit.len];
            self.write_sums(unit, Some(memory), p)?;
            let mut memory = memory.slice(unit.range());
            memory.keep_all(p);
            let residual = memory.residual_mut();
            sent.for_each(|i, value| residual[i] -= value);
        }
        Ok(())
    }

    /// Reads the frame back, and checks that its content can be subtracted from the memory.
    fn verify(
        &self,
        bytes: &[u8],
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), EncodeError> {
        let (p, words) = scratch.words.split_at_mut(longest(self.step.units));
        let frame = self.parse_back(bytes, words)?;
        memory.map_or(Ok(()), |memory| self.check_law(&frame, memory, p))
    }

    /// Reads the frame as a receiver would; the codec's bounds were compared with the limits earlier.
    fn parse_back<'b>(&'b self, bytes: &'b [u8], words: &'b mut [u32]) -> Result<Frame<'b>, EncodeError> {
        let parsed = Frame::parse_with(bytes, self.step.layout, &Limits::NONE, Some(self.codec), words);
        let frame = parsed.map_err(|error| self.error_of(error))?;
        let held = frame.units().map(|unit| (unit.id(), unit.range()));
        let is_whole = held.eq(self.step.units.iter().map(|unit| (unit.id, unit.range())));
        if is_whole { Ok(frame) } else { Err(self.error_of(DecodeError::TrailingBytes)) }
    }

    /// Refuses a frame that the memory could not keep the rest of.
    fn check_law(&self, frame: &Frame<'_>, memory: &Memory<'_>, p: &mut [u32]) -> Result<(), EncodeError> {
        for (unit, sent) in self.step.units.iter().zip(frame.units()) {
            let p = &mut p[..unit.len];
            self.write_sums(unit, Some(memory), p)?;
            let mut wrong = None;
            sent.for_each(|i, value| {
                let is_kept = keeps(self.codec.law(), f32::from_bits(p[i]), value);
                wrong = wrong.or((!is_kept).then_some(i));
            });
            if let Some(at) = wrong {
                return Err(refused(unit, Refused::at(at, "what it sends and keeps would not add up")));
            }
        }
        Ok(())
    }

    /// The error of a receiver, as an error of the sender.
    fn error_of(&self, error: DecodeError) -> EncodeError {
        let why = match error {
            DecodeError::Experiment { why, .. } => why,
            DecodeError::IndexOutOfRange => "its positions do not ascend inside of a unit",
            DecodeError::NonFiniteValue => "it decodes to a value that is not finite",
            _ => "it cannot read what it wrote",
        };
        let named = |unit: &&Unit| matches!(error, DecodeError::Experiment { unit: id, .. } if id == unit.id);
        refused(self.step.units.iter().find(named).unwrap_or(&self.step.units[0]), Refused::new(why))
    }
}

/// Refuses numbers that others could not reduce.
fn check_round(
    reduction: Option<Reduction>,
    numbers: &[f32],
    same: Option<Reduction>,
) -> Result<(), Refused> {
    match reduction {
        _ if reduction != same => Err(Refused::new("its units have different rounds")),
        None | Some(Reduction::SumF32 | Reduction::MaxF32) => {
            let is_finite = numbers.iter().all(|number| number.is_finite());
            if is_finite { Ok(()) } else { Err(Refused::new("a number of its rounds is not finite")) }
        }
        Some(_) => Err(Refused::new("its rounds reduce something else than f32")),
    }
}

fn refused(unit: &Unit, Refused { why, at }: Refused) -> EncodeError {
    // A coordinate that the unit does not have is not named.
    let at = at.filter(|&at| at < unit.len).unwrap_or(0);
    EncodeError::Experiment { unit: unit.id, index: unit.start + at, why }
}

/// Whether p less the sent value obeys the law: it is exactly an f32, or is rounded to one. Rounded, it may
/// exceed p by a rounding when it is given back, which must not overflow.
fn keeps(law: Law, p: f32, sent: f32) -> bool {
    let kept = p - sent;
    if law != Law::Exact {
        return kept.is_finite() && (kept + sent).is_finite();
    }
    // The error of a difference of two floats is a float, and this is it.
    let subtracted = kept - p;
    let error = (p - (kept - subtracted)) + (-sent - subtracted);
    kept.is_finite() && error == 0.0
}
