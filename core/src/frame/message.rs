//! Writing one message of many units.

use crate::built::{Full, FullBound};
use crate::codec::{EncodeUnit, UnitInput};
use crate::codecs::dense::Dense;
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::frame::gather::StepInput;
use crate::frame::header::{HEADER_BYTES, Header};
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
#[cfg(not(feature = "parallel"))]
use crate::kernels::Isa;
use crate::memory::Memory;
use crate::momentum::Momentum;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::unit_header::{Cursor, MAX_UNIT_HEADER_BYTES, MAX_UNIT_LEN};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// The codec of one unit: the frame's own, or dense f32 where the unit asks for it.
pub(crate) fn codec_of<'c>(codec: &'c dyn EncodeUnit, unit: &Unit) -> &'c dyn EncodeUnit {
    if unit.dense { &Dense::F32 } else { codec }
}

fn is_built(codec: &dyn EncodeUnit) -> bool {
    !codec.capabilities().needs_full || Full::build().is_some()
}

/// The codec's momentum. Codecs of small builds have none, so they need no call.
pub(crate) fn momentum_of(codec: &dyn EncodeUnit) -> Option<Momentum> {
    Full::build().and_then(|_| codec.momentum())
}

pub(crate) fn max_frame_bytes(codec: &dyn EncodeUnit, units: &[Unit]) -> Option<usize> {
    if !is_built(codec) {
        return None;
    }
    longest_message(units, |unit| codec_of(codec, unit).max_body_bytes(unit.len))
}

/// The longest message of these units, each with the longest body that `body` says.
pub(crate) fn longest_message(units: &[Unit], body: impl Fn(&Unit) -> Option<usize>) -> Option<usize> {
    units.iter().try_fold(HEADER_BYTES + MAX_VARINT_BYTES, |sum, unit| {
        sum.checked_add(body(unit)?)?.checked_add(MAX_UNIT_HEADER_BYTES)
    })
}

/// Writes a message with a body for each unit, which `body` writes; the unit is named by its position, too.
/// Returns the length.
pub(crate) fn write_message(
    step: &StepInput<'_>,
    codec: CodecId,
    out: &mut [u8],
    kind: impl Fn(&Unit) -> Kind,
    mut body: impl FnMut(usize, &Unit, &mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let (header, bodies) = out.split_at_mut(HEADER_BYTES);
    let (mut writer, mut cursor) = (Writer::new(bodies), Cursor::default());
    writer.varint(step.key.step);
    for (at, unit) in step.units.iter().enumerate() {
        cursor.write(&mut writer, unit, kind(unit));
        body(at, unit, &mut writer)?;
    }
    let written = Header::new(codec, step.layout, step.units.len(), writer.len());
    header.copy_from_slice(&written.to_bytes(&writer));
    Ok(HEADER_BYTES + writer.len())
}

pub(crate) fn scratch_len(codec: &dyn EncodeUnit, units: &[Unit]) -> ScratchLen {
    let needs = units.iter().map(|unit| codec_of(codec, unit).unit_scratch_len(unit.len));
    needs.fold(ScratchLen::default(), ScratchLen::max)
}

/// Checks that one message can hold these units: at least one, ascending, disjoint, inside the layout, and
/// not too large for the fields of the wire.
pub(crate) fn check_units(layout: &LayoutRef<'_>, units: &[Unit]) -> Result<(), EncodeError> {
    let mut cursor = Cursor::default();
    for unit in units {
        if !cursor.accepts(unit) || unit.start + unit.len > layout.len() {
            return Err(EncodeError::UnitOutOfOrder { unit: unit.id });
        }
        if unit.len > MAX_UNIT_LEN {
            return Err(EncodeError::TooLarge);
        }
        cursor.pass(unit);
    }
    let fits_field = u16::try_from(units.len()).is_ok();
    if fits_field && !units.is_empty() { Ok(()) } else { Err(EncodeError::TooLarge) }
}

/// # Panics
/// When there is not one gradient for each unit, of its length.
pub(crate) fn check_grads(units: &[Unit], grads: &[Grad<'_>]) {
    let same =
        units.len() == grads.len() && units.iter().zip(grads).all(|(unit, grad)| unit.len == grad.len());
    assert!(same, "units and gradients differ in number or length");
}

/// Checks that the longest frame, of `bound` bytes, fits the length field of the wire and the caller's
/// buffer.
pub(crate) fn check_frame_fits(bound: Option<usize>, out_len: usize) -> Result<(), EncodeError> {
    let needed = bound.ok_or(EncodeError::TooLarge)?;
    if u32::try_from(needed).is_err() {
        return Err(EncodeError::TooLarge);
    }
    if out_len < needed { Err(EncodeError::BufferTooSmall { needed, actual: out_len }) } else { Ok(()) }
}

/// The read-only inputs of one encode call.
pub(crate) struct Encoding<'a> {
    pub(crate) codec: &'a dyn EncodeUnit,
    pub(crate) step: StepInput<'a>,
    /// No magnitude of the gradient is above this; infinite where nothing is known.
    pub(crate) largest_gradient: FullBound,
    /// For [`encode_beside`](Self::encode_beside): the gradient of each unit. That of the step is then what
    /// was kept.
    pub(crate) beside: Option<&'a [Grad<'a>]>,
    /// The number of threads that share the work.
    #[cfg(feature = "parallel")]
    pub(crate) threads: usize,
}

impl<'a> Encoding<'a> {
    /// Uses only the caller's thread.
    pub(crate) fn new(codec: &'a dyn EncodeUnit, step: &StepInput<'a>) -> Self {
        Self {
            codec,
            step: *step,
            largest_gradient: FullBound::UNKNOWN,
            beside: None,
            #[cfg(feature = "parallel")]
            threads: 1,
        }
    }

    /// What `before` kept, to be added to a memory that gets the gradients of the units.
    pub(crate) fn beside(
        codec: &'a dyn EncodeUnit,
        step: &StepInput<'a, &'a [Grad<'a>]>,
        before: &'a Memory<'_>,
    ) -> Self {
        let encoding = Self::new(codec, &step.with_grad(Grad::F32(before.residual())));
        let largest_gradient = FullBound::new(before.magnitude_bound());
        Self { largest_gradient, beside: Some(step.grad), ..encoding }
    }

    /// See [`Gather::encode_beside`](crate::Gather::encode_beside).
    pub(crate) fn encode_beside(
        &self,
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        check_units(self.step.layout, self.step.units)?;
        let grads = self.beside.unwrap_or_default();
        check_grads(self.step.units, grads);
        for (at, (unit, grad)) in self.step.units.iter().zip(grads).enumerate() {
            match self.initial(at) {
                Some(_) => memory.take_state(before, unit),
                None => memory.begin_beside(before, unit, *grad),
            }
        }
        self.encode(Some(memory), scratch, out)
    }

    /// The gradient of unit number `at`, if the pass that adds what was kept copies it to the memory.
    fn initial(&self, at: usize) -> Option<&'a [f32]> {
        let Grad::F32(values) = Full::build().and(self.beside)?.get(at)? else { return None };
        let codec = codec_of(self.codec, &self.step.units[at]);
        codec.capabilities().refuses_in_pass.then_some(values)
    }

    /// See [`Gather::encode`](crate::Gather::encode).
    pub(crate) fn encode(
        &self,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        self.check_lengths(memory.as_deref())?;
        self.check_structure(scratch, out.len())?;
        self.check_parts(memory.as_deref())?;
        let adds_early = |unit| codec_of(self.codec, unit).capabilities().adds_early;
        if self.step.units.len() > 1 || memory.is_some() && self.step.units.iter().any(adds_early) {
            self.check_values(memory.as_deref())?;
        }
        self.write(memory, scratch, out)
    }

    /// Writes the frame and commits the memory. After all checks it cannot fail.
    pub(crate) fn write(
        &self,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        self.write_by(memory, scratch, out, |codec, input, scratch, writer| {
            codec.encode_body(input, scratch, writer)
        })
    }

    /// The same with bodies that `encode` writes, which has what [`EncodeUnit::encode_body`] has.
    pub(crate) fn write_by(
        &self,
        mut memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
        mut encode: impl FnMut(
            &dyn EncodeUnit,
            UnitInput<'_, '_>,
            &mut Scratch<'_>,
            &mut Writer<'_>,
        ) -> Result<(), EncodeError>,
    ) -> Result<usize, EncodeError> {
        let units = self.step.units;
        let covers_all = units.iter().map(|unit| unit.len).sum::<usize>() == self.step.layout.len();
        let mut largest =
            memory.as_ref().filter(|_| !covers_all).map_or(0.0, |memory| memory.magnitude_bound());
        let moves = |unit: &Unit| momentum_of(codec_of(self.codec, unit)).is_some();
        let moves_all = covers_all && units.iter().all(moves);
        let known = memory.as_ref().filter(|_| !moves_all).map_or(0.0, |memory| memory.momentum_bound());
        let mut largest_momentum = known;
        let kind = |unit: &Unit| codec_of(self.codec, unit).capabilities().kind;
        let id = self.codec.capabilities().id;
        let bytes = write_message(&self.step, id, out, kind, |at, unit, writer| {
            let mut memory = memory.as_deref_mut().map(|memory| memory.slice(unit.range()));
            let input = self.input(at, unit, memory.as_mut());
            encode(codec_of(self.codec, unit), input, scratch, writer)?;
            if let Some(memory) = memory.as_ref().filter(|_| moves(unit)) {
                largest_momentum = largest_momentum.max(memory.momentum_bound());
            }
            largest = memory.map_or(largest, |memory| largest.max(memory.magnitude_bound()));
            Ok(())
        })?;
        if let Some(memory) = memory {
            memory.set_magnitude_bound(largest);
            memory.set_momentum_bound(largest_momentum);
        }
        Ok(bytes)
    }

    /// Checks that gradient and memory have the length of the layout, and that the codec accepts them.
    pub(crate) fn check_lengths(&self, memory: Option<&Memory<'_>>) -> Result<(), EncodeError> {
        assert_eq!(self.step.grad.len(), self.step.layout.len(), "gradient and layout differ in length");
        if let Some(memory) = memory {
            assert_eq!(memory.len(), self.step.layout.len(), "memory and layout differ in length");
        }
        if memory.is_some() && !self.codec.capabilities().keeps() {
            return Err(EncodeError::MemoryRefused);
        }
        let is_half = matches!(self.step.grad, Grad::F16(_)) && Full::build().is_none();
        if is_built(self.codec) && !is_half { Ok(()) } else { Err(EncodeError::NotBuilt) }
    }

    /// Checks units and buffers, before any value is read.
    pub(crate) fn check_structure(&self, scratch: &Scratch<'_>, out_len: usize) -> Result<(), EncodeError> {
        check_units(self.step.layout, self.step.units)?;
        check_frame_fits(max_frame_bytes(self.codec, self.step.units), out_len)?;
        let needed = scratch_len(self.codec, self.step.units);
        if scratch.holds(needed) { Ok(()) } else { Err(EncodeError::ScratchTooSmall { needed }) }
    }

    /// Checks that the memory has every part that the codec needs for these units. Codecs of small builds
    /// need none.
    pub(crate) fn check_parts(&self, memory: Option<&Memory<'_>>) -> Result<(), EncodeError> {
        if Full::build().is_none() {
            return Ok(());
        }
        if !self.codec.capabilities().has_frames {
            return Err(EncodeError::NoFrames);
        }
        let momentum = memory.and_then(Memory::momentum);
        let states = memory.map_or(0, |memory| memory.states().len());
        let has_momentum = self.codec.momentum().is_none() || momentum.is_some();
        let has_state = |unit: &Unit| unit.dense || (unit.id as usize) < states;
        let has_states = !self.codec.capabilities().adapts || self.step.units.iter().all(has_state);
        if has_momentum && has_states { Ok(()) } else { Err(EncodeError::MemoryIncomplete) }
    }

    /// Checks all values before the memory changes. Otherwise the last value could be refused when the memory
    /// of the first unit has already changed. This costs another read of the gradient. It also costs a read
    /// of the residual, unless the memory knows a bound on its values.
    pub(crate) fn check_values(&self, memory: Option<&Memory<'_>>) -> Result<(), EncodeError> {
        let largest = memory.map_or(0.0, |memory| memory.magnitude_bound());
        let momentum_bound = memory.map_or(0.0, |memory| memory.momentum_bound());
        let unchecked = self.step.units.iter().enumerate().filter(|(at, _)| self.initial(*at).is_none());
        unchecked.map(|(_, unit)| unit).try_for_each(|unit| {
            let residual = memory.map(|memory| memory.view(unit.range()).residual);
            let codec = codec_of(self.codec, unit);
            let momentum =
                momentum_of(codec).and_then(|rule| Some((rule, &memory?.momentum()?[unit.range()])));
            let grad = self.step.grad.slice(unit.start, unit.len);
            let source = Corrected::new(grad, residual, unit.start, codec.overflow_bound());
            let source = source.with_largest(largest).with_largest_gradient(self.largest_gradient);
            let source = source.with_momentum(momentum).with_momentum_bound(momentum_bound);
            #[cfg(feature = "parallel")]
            return source.check_all_on(self.threads);
            #[cfg(not(feature = "parallel"))]
            source.check_all(Isa::best())
        })
    }

    fn input<'i, 'm>(
        &'i self,
        at: usize,
        unit: &'i Unit,
        memory: Option<&'i mut Memory<'m>>,
    ) -> UnitInput<'i, 'm> {
        let grad = self.step.grad.slice(unit.start, unit.len);
        let momentum = momentum_of(codec_of(self.codec, unit));
        UnitInput {
            key: self.step.key,
            layout: self.step.layout,
            unit,
            grad,
            memory,
            initial: self.initial(at),
            momentum,
            state: None,
            #[cfg(feature = "parallel")]
            threads: self.threads,
        }
    }

    pub(crate) fn header(&self, unit_count: usize, body_bytes: usize) -> Header {
        Header::new(self.codec.capabilities().id, self.step.layout, unit_count, body_bytes)
    }
}
