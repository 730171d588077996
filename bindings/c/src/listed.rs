//! What encoders and memories ask a codec that a spelling named.

use crate::memory::gw_memory;
use crate::method::{Frames, Method};
use crate::raw::{Object, Outcome, Rest, Size};
use crate::results::{
    GW_ENCODE_NO_FRAMES, GW_ERROR_NOT_SUPPORTED, GW_ERROR_NOTHING_KEPT, GW_ERROR_WRONG_LENGTH,
};
use codecs::state::{ArrayLen, Keeper, MemoryChoice, StateLen, UnitState};
use codecs::{Codec, Gather, LayoutRef, Memory, ScratchLen, Spec, Unit};
use core::slice;

/// Whatever codec a spelling names.
struct Listed;

pub(crate) const LISTED: &dyn Method = &Listed;

impl Method for Listed {
    fn frames<'c>(&self, codec: &'c Codec) -> &'c dyn Frames {
        codec
    }

    fn units(&self, spec: &Spec, layout: &LayoutRef<'_>, slots: &mut [Unit]) -> Outcome<usize> {
        if !spec.codec.capabilities().has_frames {
            return Err(GW_ENCODE_NO_FRAMES);
        }
        if spec.codec.local_clip(1).is_some() {
            return Err(GW_ERROR_NOT_SUPPORTED);
        }
        slots.iter_mut().zip(spec.units.units(layout)).for_each(|(slot, unit)| *slot = unit);
        Ok(spec.units.units(layout).count())
    }

    fn needs(&self, spec: &Spec, layout: &LayoutRef<'_>) -> ScratchLen {
        let of = |codec: Codec, units: &[Unit]| {
            let packets = spec.packets.map(|size| codec.packet_scratch_len(units, size));
            Gather::scratch_len(&codec, units).max(packets.unwrap_or_default())
        };
        let needs = spec.units.units(layout).map(|unit| {
            let units = slice::from_ref(&unit);
            of(spec.codec, units).max(of(spec.codec_in(0), units))
        });
        needs.fold(ScratchLen::default(), ScratchLen::max)
    }

    fn memory_size(&self, spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Size> {
        Ok(Parts::new(spec, layout)?.size())
    }

    fn memory(&self, spec: &Spec, layout: &LayoutRef<'_>, rest: &mut Rest) -> Outcome<Memory<'static>> {
        Parts::new(spec, layout)?.make(rest)
    }
}

/// The lengths of the parts of a memory.
struct Parts {
    residual: usize,
    momentum: Option<usize>,
    states: usize,
    lengths: StateLen,
    values: usize,
}

impl Parts {
    fn new(spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Self> {
        if spec.memory == MemoryChoice::None {
            return Err(GW_ERROR_NOTHING_KEPT);
        }
        let units = spec.units.units(layout).count();
        let lengths = spec.codec.state_len(layout, units, Keeper::Worker);
        let values = lengths.arrays().iter().try_fold(0usize, |sum, array| sum.checked_add(array.len));
        Ok(Self {
            residual: layout.len(),
            momentum: (spec.memory == MemoryChoice::Momentum).then_some(layout.len()),
            states: if spec.codec.capabilities().adapts { units } else { 0 },
            lengths,
            values: values.ok_or(GW_ERROR_WRONG_LENGTH)?,
        })
    }

    fn size(&self) -> Size {
        gw_memory::ROOM
            .and::<f32>(self.residual)
            .and::<f32>(self.momentum.unwrap_or(0))
            .and::<UnitState>(self.states)
            .and::<f32>(self.lengths.factors())
            .and::<ArrayLen>(self.lengths.arrays().len())
            .and::<f32>(self.values)
    }

    fn make(&self, rest: &mut Rest) -> Outcome<Memory<'static>> {
        let mut kept = Memory::new(rest.array(self.residual)?);
        if let Some(len) = self.momentum {
            kept = kept.with_momentum(rest.array(len)?);
        }
        kept = kept.with_states(rest.array(self.states)?);
        kept = kept.with_factors(rest.array(self.lengths.factors())?);
        let arrays = rest.copied(self.lengths.arrays())?;
        kept = kept.with_arrays(arrays, rest.array(self.values)?);
        // So that it knows that nothing in it is large.
        kept.clear();
        Ok(kept)
    }
}
