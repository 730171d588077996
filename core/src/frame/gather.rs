//! Codecs that make frames.

#[cfg(feature = "full")]
use crate::codec::{EncodeUnit, Reduction};
use crate::codec::{PacketSize, ParseBody};
use crate::error::EncodeError;
#[cfg(feature = "full")]
use crate::frame::experiment::{Frames, number_count};
use crate::frame::message;
use crate::frame::packets::{self, Packets};
use crate::frame::rounds_first::RoundsFirst;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::memory::Memory;
use crate::registry::AsUnitCodec;
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::CodecId;

/// What one encode reads: the gradient of a step, and what names it.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a, G = Grad<'a>> {
    /// Names every random draw of the step.
    pub key: StepKey,
    /// The layout of the whole gradient.
    pub layout: &'a LayoutRef<'a>,
    /// The units of the frame, ascending and disjoint.
    pub units: &'a [Unit],
    /// The flat gradient, of `layout.len()` elements. Or a list with the gradient of each unit, for the calls
    /// that take one.
    pub grad: G,
}

impl<'a, G> StepInput<'a, G> {
    /// The same step with another gradient.
    pub(crate) fn with_grad<H>(&self, grad: H) -> StepInput<'a, H> {
        StepInput { key: self.key, layout: self.layout, units: self.units, grad }
    }
}

/// A codec that turns the units of a gradient into one self-describing frame. The frames of all workers are
/// gathered and added.
///
/// # Examples
/// ```
/// use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
/// use gradwire::{Density, Gather, Grad, LayoutRef, Scratch, Source, StepInput, StepKey, Unit};
///
/// let codec = TopK::new(Density::new(0.25).unwrap(), IndexChoice::Auto, ValueChoice::F32);
/// let (layout, units) = (LayoutRef::flat(4), [Unit::whole(4)]);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let (mut words, mut out) = ([0; 64], [0; 128]);
/// assert!(codec.scratch_len(&units).words <= words.len());
/// assert!(codec.max_frame_bytes(&units).unwrap() <= out.len());
/// let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
/// let grad = Grad::F32(&[0.5, -3.0, 0.0, 1.0]);
/// let step = StepInput { key, layout: &layout, units: &units, grad };
/// let bytes = codec.encode(&step, None, &mut scratch, &mut out).unwrap();
/// assert!(bytes < 40);
/// ```
///
/// A codec holds parameters and no state. What a method keeps between steps is in the [`Memory`], which the
/// caller lends, saves and restores.
pub trait Gather: Send + Sync {
    /// The number of the method on the wire.
    fn id(&self) -> CodecId;

    /// For a codec of [another crate](crate::experiments), the parser of its bodies. Parsing a frame then
    /// takes no more words than [`scratch_len`](Self::scratch_len) of its units. `None` for codecs of this
    /// crate, whose frames every reader knows.
    fn parser(&self) -> Option<&dyn ParseBody> {
        None
    }

    /// The rounds that all ranks run before this codec encodes. With such rounds, [`encode`](Self::encode) is
    /// an error, and [`AfterRounds`](crate::rounds::AfterRounds) encodes. `None` for a codec without rounds,
    /// such as every codec that has a spelling.
    fn rounds_first(&self) -> Option<&dyn RoundsFirst> {
        None
    }

    /// The largest frame of these units, in bytes, whatever the gradient. `None` on overflow, and if
    /// [`encode`](Self::encode) would return `NotBuilt`.
    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize>;

    /// Working memory that [`encode`](Self::encode) needs for these units.
    fn scratch_len(&self, units: &[Unit]) -> ScratchLen;

    /// Writes one frame with all units of the step to the front of `out` and returns its bytes.
    ///
    /// With a memory, which has the length of the layout, the codec encodes p = fl(residual + gradient), and
    /// the residual becomes exactly p less what the frame decodes to. Every worker's frame holds the same
    /// units.
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say; the memory is then as it was, bit for bit.
    ///
    /// # Panics
    /// When the gradient or the memory has another length than the layout.
    ///
    /// # Determinism
    /// Same parameters, key, layout, units, gradient and residual: same bytes, on every machine.
    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>;

    /// The next step of units in another memory: `before` holds what was kept until now and stays as it is,
    /// and the input has the gradient of each unit, wherever it stands. Writes the frame that
    /// [`encode`](Self::encode) with `before` would write, and leaves in `memory` what that would leave in
    /// `before`. Other units of `memory` do not change; [`Memory::carry_over`] takes them over.
    ///
    /// For steps that may come to nothing: `before` holds what the step began with until the caller knows
    /// that all went well. A [`Snapshot`](crate::state::Snapshot) does the same for every codec, and costs a
    /// copy. Codecs with momentum or factors need the snapshot.
    ///
    /// # Errors
    /// As [`encode`](Self::encode). `memory` then holds nothing of use in these units.
    ///
    /// # Panics
    /// When a memory has another length than the layout, or there is not one gradient for each unit, of its
    /// length.
    ///
    /// # Determinism
    /// As [`encode`](Self::encode).
    ///
    /// # Examples
    /// ```
    /// use gradwire::{Gather, Grad, LayoutRef, Memory, Scratch, Source, Spec, StepInput, StepKey, Unit};
    ///
    /// let codec = Spec::parse("topk:density=0.5")?.codec;
    /// let (layout, units) = (LayoutRef::flat(2), [Unit::whole(2)]);
    /// let (mut old, mut new) = ([0.25, 0.0], [0.0; 2]);
    /// let (before, mut memory) = (Memory::new(&mut old), Memory::new(&mut new));
    ///
    /// let (mut words, mut bytes, mut frame) = ([0; 64], [0; 64], [0; 128]);
    /// let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    /// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    /// let step = StepInput { key, layout: &layout, units: &units, grad: &[Grad::F32(&[1.0, 8.0])][..] };
    /// codec.encode_beside(&step, &before, &mut memory, &mut scratch, &mut frame)?;
    /// assert_eq!((memory.residual(), before.residual()), (&[1.25, 0.0][..], &[0.25, 0.0][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn encode_beside(
        &self,
        step: &StepInput<'_, &[Grad<'_>]>,
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let kept = begin_beside(step, before, memory)?;
        self.encode(&kept, Some(memory), scratch, out)
    }

    /// Working memory that [`packets`](Self::packets) needs for these units. Zero for a codec that cannot be
    /// cut.
    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen {
        let _ = (units, size);
        ScratchLen::default()
    }

    /// Encodes the same content as several frames of at most `size` bytes, for links that lose packets. Each
    /// frame decodes alone. The memory is lent until the last packet was drawn; see [`Packets`]. Without an
    /// implementation, the codec cannot be cut.
    ///
    /// # Errors
    /// `NoPackets` for a codec that cannot be cut, `NotBuilt` without the feature `full`, `PacketTooSmall`,
    /// and those of [`encode`](Self::encode) except for its output buffer. The memory is then as it was, bit
    /// for bit. Nothing fails later.
    ///
    /// # Panics
    /// When the gradient or the memory has another length than the layout.
    ///
    /// # Determinism
    /// As [`encode`](Self::encode): same parameters, key, layout, units, gradient, residual and packet size,
    /// same packets.
    fn packets<'a>(
        &'a self,
        step: &StepInput<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError> {
        let _ = (step, memory, scratch, size);
        Err(EncodeError::NoPackets)
    }
}

/// Leaves the gradients of the units in `memory`, and returns the input that adds what `before` kept.
fn begin_beside<'a>(
    step: &StepInput<'a, &[Grad<'_>]>,
    before: &'a Memory<'_>,
    memory: &mut Memory<'_>,
) -> Result<StepInput<'a>, EncodeError> {
    message::check_units(step.layout, step.units)?;
    message::check_grads(step.units, step.grad);
    step.units.iter().zip(step.grad).for_each(|(unit, grad)| memory.begin_beside(before, unit, *grad));
    Ok(step.with_grad(Grad::F32(before.residual())))
}

impl<C: AsUnitCodec> Gather for C {
    fn id(&self) -> CodecId {
        self.as_unit_codec().capabilities().id
    }

    #[cfg(feature = "full")]
    fn parser(&self) -> Option<&dyn ParseBody> {
        self.as_unit_codec().as_experiment().map(|experiment| experiment as &dyn ParseBody)
    }

    #[cfg(feature = "full")]
    fn rounds_first(&self) -> Option<&dyn RoundsFirst> {
        self.as_unit_codec().as_experiment()?.shared().map(|_| self as &dyn RoundsFirst)
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        #[cfg(feature = "full")]
        if let Some(experiment) = Frames::of(self.as_unit_codec()) {
            return experiment.max_bytes(units);
        }
        message::max_frame_bytes(self.as_unit_codec(), units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        #[cfg(feature = "full")]
        if let Some(experiment) = Frames::of(self.as_unit_codec()) {
            return experiment.scratch_len(units);
        }
        message::scratch_len(self.as_unit_codec(), units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        #[cfg(feature = "full")]
        if let Some(experiment) = Frames::of(self.as_unit_codec()) {
            return experiment.encode(step, memory, scratch, out);
        }
        message::Encoding::new(self.as_unit_codec(), step).encode(memory, scratch, out)
    }

    fn encode_beside(
        &self,
        step: &StepInput<'_, &[Grad<'_>]>,
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        #[cfg(feature = "full")]
        if let Some(experiment) = Frames::of(self.as_unit_codec()) {
            let kept = begin_beside(step, before, memory)?;
            return experiment.encode(&kept, Some(memory), scratch, out);
        }
        message::Encoding::beside(self.as_unit_codec(), step, before)
            .encode_beside(before, memory, scratch, out)
    }

    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen {
        #[cfg(feature = "full")]
        if self.as_unit_codec().as_experiment().is_some() {
            return ScratchLen::default();
        }
        packets::scratch_len(self.as_unit_codec(), units, size)
    }

    fn packets<'a>(
        &'a self,
        step: &StepInput<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError> {
        #[cfg(feature = "full")]
        if self.as_unit_codec().as_experiment().is_some() {
            return Err(EncodeError::NoPackets);
        }
        packets::begin(self.as_unit_codec(), step, memory, scratch, size)
    }
}

/// Only a registered codec of another crate has such rounds.
///
/// # Panics
/// Every function, for a codec without [`Gather::rounds_first`].
#[cfg(feature = "full")]
impl<C: AsUnitCodec> RoundsFirst for C {
    fn number_count(&self, unit: &Unit) -> usize {
        number_count(with_rounds(self.as_unit_codec()).0.shared(), unit)
    }

    fn round(
        &self,
        index: u32,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, EncodeError> {
        with_rounds(self.as_unit_codec()).round(index, step, memory, scratch, numbers)
    }

    fn encode_after(
        &self,
        numbers: &[f32],
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        with_rounds(self.as_unit_codec()).encode_after(numbers, step, memory, scratch, out)
    }
}

#[cfg(feature = "full")]
fn with_rounds(codec: &dyn EncodeUnit) -> Frames<'_> {
    Frames::of(codec).expect("rounds before a frame are those of a codec of another crate")
}
