//! Rounds of linear codecs, for an all-reduce of the caller.

use crate::codec::{Chosen, gw_codec};
use crate::draws::GW_RANKS;
use crate::layout::gw_layout;
use crate::memory::{Kept, beside, gw_memory};
use crate::raw::{
    Object, Outcome, Place, Placed, boundary, give, object, object_mut, optional_mut, slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_MEMORY_INCOMPLETE, GW_ENCODE_MEMORY_REFUSED, GW_ERROR_NO_ROUND, GW_ERROR_OUT_OF_RANGE,
    GW_ERROR_WRONG_LAYOUT, GW_ERROR_WRONG_LENGTH, GW_EXCHANGE_NOT_LINEAR, gw_result,
};
use codecs::registry::LinearCodec;
use codecs::rounds::{LinearScratch, LinearScratchLen, Payload, Reduction, Round, UnitStep};
use codecs::state::MemoryChoice;
use codecs::{Grad, LayoutRef, Memory, Source, StepKey, Unit};
use core::ffi::c_void;

/// The rounds of one unit of a codec with GW_CAN_SUM, for programs that have an all-reduce of their own: that
/// of MPI, or NCCL. The exchange runs them by itself.
///
/// For each unit: gw_rounds_begin; then, until gw_rounds_advance says that no round is left, replace what
/// gw_rounds_payload points to by its reduction over all ranks, and call gw_rounds_advance. Units whose
/// payloads travel at the same time need an object each.
///
/// Threads: one at a time.
pub struct gw_rounds(#[allow(dead_code, reason = "its place is what counts")] Placed<Held>);

pub(crate) struct Held {
    codec: LinearCodec,
    keeps: bool,
    layout: LayoutRef<'static>,
    units: &'static [Unit],
    scratch: LinearScratch<'static>,
    workers: u32,
    seed: u64,
    rank: u32,
    /// The memory from `begin` to the last call.
    memory: *mut gw_memory,
    round: Option<Round>,
    /// Whether `round` is over, and can only be abandoned.
    is_last: bool,
    /// The step of the rounds.
    step: u64,
}

impl Object for gw_rounds {
    type Value = Held;
    const TAG: u64 = u64::from_le_bytes(*b"gwrounds");
}

/// The sum of floats, in whatever order, the same at all ranks.
pub const GW_SUM_F32: u32 = 0;
/// The sum of int32_t.
pub const GW_SUM_I32: u32 = 1;
/// The largest of floats.
pub const GW_MAX_F32: u32 = 2;
/// The smallest of int32_t.
pub const GW_MIN_I32: u32 = 3;
/// The bitwise and of uint32_t.
pub const GW_AND_U32: u32 = 4;
/// The sum of uint8_t, modulo 256.
pub const GW_SUM_U8: u32 = 5;
/// The bytes of all ranks, in their order: each has its own in its place, and all places are as long.
pub const GW_GATHER_U8: u32 = 6;
/// The bytes of rank r: the reduction is GW_BROADCAST_U8 + r.
pub const GW_BROADCAST_U8: u32 = 2147483648;

/// The rounds of a codec, unless it cannot sum so many payloads.
fn linear(codec: &Chosen, layout: &LayoutRef<'_>, workers: u32) -> Outcome<LinearCodec> {
    let linear = codec.spec.codec.as_linear().ok_or(GW_EXCHANGE_NOT_LINEAR)?;
    let takes = |unit: Unit| workers <= linear.rounds_of(&unit).most_contributors();
    let takes_all = (1..=GW_RANKS).contains(&workers) && codec.spec.units.units(layout).all(takes);
    if takes_all { Ok(linear) } else { Err(GW_ERROR_OUT_OF_RANGE) }
}

fn needs(
    codec: &LinearCodec,
    layout: &LayoutRef<'_>,
    units: impl Iterator<Item = Unit>,
    workers: u32,
) -> LinearScratchLen {
    let needs = units.map(|unit| codec.rounds_of(&unit).round_scratch_len(layout, &unit, workers));
    needs.fold(LinearScratchLen::default(), |a, b| LinearScratchLen {
        words: a.words.max(b.words),
        floats: a.floats.max(b.floats),
        ints: a.ints.max(b.ints),
    })
}

/// Bytes of an object for the rounds of any unit of this codec and layout, over so many ranks.
///
/// Errors: GW_EXCHANGE_NOT_LINEAR for a codec without GW_CAN_SUM, GW_ERROR_OUT_OF_RANGE for no ranks, or for
/// more than the payloads can sum, GW_ERROR_WRONG_LENGTH when the bytes cannot be addressed,
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_size(
    codec: *const gw_codec,
    layout: *const gw_layout,
    workers: u32,
    bytes: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (codec, layout) = (object(codec)?, &object(layout)?.layout);
        let units = || codec.spec.units.units(layout);
        let needed = needs(&linear(codec, layout, workers)?, layout, units(), workers);
        let room = gw_rounds::ROOM.and::<Unit>(units().count()).and::<u32>(needed.words);
        give(bytes, room.and::<f32>(needed.floats).and::<i32>(needed.ints).bytes()?)
    })
}

/// Makes the object in the caller's memory, for so many ranks, as rank 0 and with seed 0. The codec is
/// copied; the layout must stay.
///
/// Errors: as gw_rounds_size, and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_init(
    memory: *mut c_void,
    size: usize,
    codec: *const gw_codec,
    layout: *const gw_layout,
    workers: u32,
    rounds: *mut *mut gw_rounds,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut place = Place::<gw_rounds>::open(memory, size)?;
        let (Chosen { spec, .. }, layout) = (*object(codec)?, object(layout)?.layout);
        let codec = linear(object(codec)?, &layout, workers)?;
        let units = place.rest.array(spec.units.units(&layout).count())?;
        units.iter_mut().zip(spec.units.units(&layout)).for_each(|(slot, unit)| *slot = unit);
        let needed = needs(&codec, &layout, units.iter().copied(), workers);
        let scratch = LinearScratch {
            words: place.rest.array(needed.words)?,
            floats: place.rest.array(needed.floats)?,
            ints: place.rest.array(needed.ints)?,
        };
        let held = Held {
            codec,
            keeps: spec.memory != MemoryChoice::None,
            layout,
            units,
            scratch,
            workers,
            seed: 0,
            rank: 0,
            memory: core::ptr::null_mut(),
            round: None,
            is_last: false,
            step: 0,
        };
        place.write(held, rounds)
    })
}

/// Sets the seed, the same at all ranks, and the rank, which is below their number.
///
/// Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_set_source(rounds: *mut gw_rounds, seed: u64, rank: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object_mut(rounds)?;
        if rank >= held.workers {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        (held.seed, held.rank) = (seed, rank);
        Ok(())
    })
}

/// How many units a gradient has: all ranks go through the rounds of each.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_units(rounds: *const gw_rounds, units: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(units, object(rounds)?.units.len()) })
}

/// Begins the rounds of unit number `unit`, counted from 0, of a gradient of `count` values, as many as the
/// layout has. Rounds that were not finished are forgotten, as if they had not begun.
///
/// The memory, NULL for a codec without GW_CAN_KEEP, must stay until the rounds are over, and nobody may
/// change it meanwhile. It changes in the last gw_rounds_advance, or in gw_rounds_abandon.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there; GW_ENCODE_NON_FINITE_INPUT,
/// GW_ENCODE_VALUE_OVERFLOW, GW_ENCODE_MEMORY_INCOMPLETE, GW_ENCODE_MEMORY_REFUSED, GW_ENCODE_NOT_BUILT;
/// GW_ERROR_WRONG_LENGTH, GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_begin(
    rounds: *mut gw_rounds,
    unit: usize,
    step: u64,
    values: *const f32,
    count: usize,
    memory: *mut gw_memory,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (held, values) = (object_mut(rounds)?, slice(values, count)?);
        let kept = optional_mut(memory)?;
        held.check(values, kept.as_deref())?;
        held.round = None;
        let unit = held.units.get(unit).copied().ok_or(GW_ERROR_OUT_OF_RANGE)?;
        let view = kept.as_ref().map(|kept| kept.memory.view(unit.range()));
        let grad = Grad::F32(&values[unit.range()]);
        held.step = step;
        let (codec, layout) = (held.codec, held.layout);
        let of = held.unit_step(&layout, &unit);
        let begun = codec.rounds_of(&unit).begin(&of, grad, view, &mut held.scratch);
        held.round = Some(begun.map_err(|error| error.code())?);
        held.memory = memory;
        held.is_last = false;
        Ok(())
    })
}

/// What is to be reduced in this round: `*payload` points to `*elements` numbers, which are to be replaced by
/// their reduction over all ranks; `*reduction` is one of GW_SUM_F32 and the like, which also says of what
/// type they are. They stay where they are until the object is used the next time.
///
/// Errors: GW_ERROR_NO_ROUND before gw_rounds_begin and after the last round, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_payload(
    rounds: *mut gw_rounds,
    reduction: *mut u32,
    payload: *mut *mut c_void,
    elements: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object_mut(rounds)?;
        let round = held.running()?;
        let codec = held.codec.rounds_of(&round.unit);
        let (number, first, len) = match (round.reduction, codec.payload(&round, &mut held.scratch)) {
            (Reduction::SumF32, Payload::F32(of)) => (GW_SUM_F32, of.as_mut_ptr().cast(), of.len()),
            (Reduction::MaxF32, Payload::F32(of)) => (GW_MAX_F32, of.as_mut_ptr().cast(), of.len()),
            (Reduction::SumI32, Payload::I32(of)) => (GW_SUM_I32, of.as_mut_ptr().cast(), of.len()),
            (Reduction::MinI32, Payload::I32(of)) => (GW_MIN_I32, of.as_mut_ptr().cast(), of.len()),
            (Reduction::And, Payload::U32(of)) => (GW_AND_U32, of.as_mut_ptr().cast(), of.len()),
            (Reduction::SumU8, Payload::Bytes(of)) => (GW_SUM_U8, of.as_mut_ptr().cast(), of.len()),
            (Reduction::Gather, Payload::Bytes(of)) => (GW_GATHER_U8, of.as_mut_ptr().cast(), of.len()),
            (Reduction::Broadcast { from }, Payload::Bytes(of)) => {
                (GW_BROADCAST_U8 + from, of.as_mut_ptr().cast(), of.len())
            }
            _ => return Err(GW_EXCHANGE_NOT_LINEAR),
        };
        give(reduction, number)?;
        give(payload, first)?;
        give(elements, len)
    })
}

/// Takes the reduced payload. `*more` becomes 1 when there is another round. Else it becomes 0: the mean of
/// the unit over all ranks is then in its place of `mean`, which has `count` values, as many as the layout
/// has, and the memory keeps what is not in it.
///
/// Errors: nothing has changed then. GW_ERROR_NO_ROUND, GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when the mean
/// is the residual, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_advance(
    rounds: *mut gw_rounds,
    mean: *mut f32,
    count: usize,
    more: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (held, mean) = (object_mut(rounds)?, slice_mut(mean, count)?);
        let round = held.running()?;
        if mean.len() != held.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        give(more, 1)?;
        let memory = beside(held.memory, mean)?;
        let mut kept: Option<Memory<'_>> = memory.map(|memory| memory.slice(round.unit.range()));
        let mean = &mut mean[round.unit.range()];
        let (codec, layout) = (held.codec, held.layout);
        let of = held.unit_step(&layout, &round.unit);
        let next = codec.rounds_of(&round.unit).advance(&of, round, &mut held.scratch, mean, kept.as_mut());
        held.is_last = next.is_none();
        held.round = next.or(held.round);
        give(more, u32::from(next.is_some()))
    })
}

/// Gives up: the memory's residual becomes residual + gradient, so that nothing is lost. Also after the last
/// gw_rounds_advance, when the mean must be refused.
///
/// Errors: GW_ERROR_NO_ROUND when nothing has begun, or it was given up before, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_abandon(rounds: *mut gw_rounds) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object_mut(rounds)?;
        let round = held.round.ok_or(GW_ERROR_NO_ROUND)?;
        let kept = optional_mut(held.memory)?;
        held.round = None;
        let mut kept: Option<Memory<'_>> = kept.map(|kept| kept.memory.slice(round.unit.range()));
        held.codec.rounds_of(&round.unit).abandon(round, &mut held.scratch, kept.as_mut());
        Ok(())
    })
}

impl Held {
    /// What the codec crate would panic about.
    fn check(&self, values: &[f32], memory: Option<&Kept>) -> Outcome {
        if values.len() != self.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        match memory {
            Some(_) if !self.keeps => Err(GW_ENCODE_MEMORY_REFUSED),
            Some(kept) if !kept.is_for(&self.layout) => Err(GW_ERROR_WRONG_LAYOUT),
            None if self.keeps => Err(GW_ENCODE_MEMORY_INCOMPLETE),
            _ => Ok(()),
        }
    }

    /// What the calls of the rounds have in common.
    fn unit_step<'u>(&self, layout: &'u LayoutRef<'u>, unit: &'u Unit) -> UnitStep<'u> {
        let key = StepKey { seed: self.seed, step: self.step, source: Source::Rank(self.rank) };
        UnitStep { key, layout, unit, workers: self.workers, place: self.rank }
    }

    /// The round that is to be reduced.
    fn running(&self) -> Outcome<Round> {
        self.round.filter(|_| !self.is_last).ok_or(GW_ERROR_NO_ROUND)
    }
}
