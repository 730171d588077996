//! A step whose parts are added one by one, while earlier ones travel.

use super::{StepOf, gw_exchange};
use crate::memory::{beside, gw_memory};
use crate::raw::{Outcome, boundary, give, give_if_wanted, object, object_mut, slice, slice_mut};
use crate::results::{GW_ERROR_OUT_OF_RANGE, GW_ERROR_WRONG_LENGTH, gw_result};
use codecs::Grad;
use transports::Rank;
use transports::exchange::{NewPart, PartState};

/// Frames or sums of the part are missing.
pub const GW_PART_TRAVELLING: u32 = 0;
/// Its mean is there. It must not be used if the step fails.
pub const GW_PART_COMPLETE: u32 = 1;
/// The step has failed before its mean was there. Its values are NaN.
pub const GW_PART_VOID: u32 = 2;

/// The most bytes that a rank says with a part.
pub const GW_MOST_SAID: usize = 16384;

/// How many units a gradient has, as the codec's spelling cuts it: parts are made of them, and name them by
/// their numbers, from 0.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_units(exchange: *const gw_exchange, units: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(units, object(exchange)?.exchange.units().len()) })
}

/// The place of a unit in the gradient. Each of the last two may be NULL.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_unit(
    exchange: *const gw_exchange,
    unit: u32,
    start: *mut usize,
    elements: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let found = object(exchange)?.exchange.units().get(unit as usize).ok_or(GW_ERROR_OUT_OF_RANGE)?;
        give_if_wanted(start, found.start)?;
        give_if_wanted(elements, found.len)
    })
}

/// Begins a step whose parts are added one by one, as their gradients come: as gw_exchange_begin, then
/// gw_exchange_add for each part and gw_exchange_advance in between, and gw_exchange_complete at the end.
/// There is no gw_exchange_encode. All ranks add the same units in the same order, and vote at the end.
///
/// Errors: as gw_exchange_begin; GW_EXCHANGE_NO_PARTS for routes other than GW_ROUTE_ALL_GATHER,
/// GW_ROUTE_SPARSE and GW_ROUTE_OWNERS; GW_EXCHANGE_ROUNDS_FIRST for a codec that needs all of the gradient.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_begin_in_parts(
    exchange: *mut gw_exchange,
    rank: u32,
    members: *const u32,
    member_count: usize,
    epoch: u32,
    fail_stop: u32,
    seed: u64,
    step: u64,
    memory: *mut gw_memory,
    now: u64,
    by: u64,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object_mut(exchange)?;
        let members = slice(members, member_count)?;
        let of = StepOf::new(rank, members, epoch, fail_stop, seed, step)?;
        held.begin(memory, |machine, kept| machine.begin_in_parts(of.setting, of.key, kept, now, by))
    })
}

/// Adds a part: encodes it, and queues its first messages. `units` are the numbers of its units, ascending,
/// none of which was in an earlier part. Of these, `lacks` are those of which this rank has no gradient: a
/// frame holds nothing of them and the residual stays, and a sum takes them as zeros. `says` are bytes for
/// the program at every other rank, GW_MOST_SAID at most: see gw_exchange_said. `values` is the whole
/// gradient, as many values as the layout has, of which only the units of the part are read, in this call.
/// `*part` becomes the number of the part, from 0; NULL if it is not wanted.
///
/// Errors: GW_EXCHANGE_BAD_PART, and the step goes on as if there had been no call; gw_exchange_error_text
/// says what is wrong. GW_EXCHANGE_NOT_STARTED without gw_exchange_begin_in_parts. GW_ERROR_WRONG_LENGTH,
/// GW_ERROR_OVERLAP when the values are the residual, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
/// GW_ERROR_NOT_AN_OBJECT. If the gradient cannot be encoded, gw_exchange_complete says so.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_add(
    exchange: *mut gw_exchange,
    units: *const u32,
    unit_count: usize,
    lacks: *const u32,
    lack_count: usize,
    says: *const u8,
    says_bytes: usize,
    values: *const f32,
    count: usize,
    now: u64,
    part: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object_mut(exchange)?;
        let new = NewPart {
            units: slice(units, unit_count)?,
            lacks: slice(lacks, lack_count)?,
            says: slice(says, says_bytes)?,
        };
        let values = slice(values, count)?;
        if values.len() != held.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        give_if_wanted(part, 0)?;
        let memory = beside(held.memory, values)?;
        let added = held.exchange.add(&new, Grad::F32(values), memory, now);
        give_if_wanted(part, added.map_err(|error| held.say(error))?)
    })
}

/// Does one piece of the work on the parts that were added. `*progress` becomes GW_WORKED, GW_WAITING, or
/// GW_DONE once the mean of each is in `mean`, which is the same in every call of a step, as many values as
/// the layout has: call again after the next gw_exchange_add. If the step fails, whatever has no mean yet
/// becomes NaN, and gw_exchange_complete says why.
///
/// Errors: GW_EXCHANGE_NOT_STARTED without gw_exchange_begin_in_parts, or once gw_exchange_complete was
/// called; GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when the mean is the residual, GW_ERROR_NULL_POINTER,
/// GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_advance(
    exchange: *mut gw_exchange,
    mean: *mut f32,
    count: usize,
    now: u64,
    progress: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (held, mean) = (object_mut(exchange)?, slice_mut(mean, count)?);
        if mean.len() != held.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        give(progress, super::GW_WORKED)?;
        let memory = beside(held.memory, mean)?;
        let done = held.exchange.advance(mean, memory, now);
        give(progress, super::number_of(&done.map_err(|error| held.say(error))?))
    })
}

/// How far a part of the last step is: `*state` becomes GW_PART_TRAVELLING, GW_PART_COMPLETE or
/// GW_PART_VOID. The mean of a part has the same bits at all ranks, but only gw_exchange_complete says
/// whether the step holds.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a part that is not there, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_part(
    exchange: *const gw_exchange,
    part: usize,
    state: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(state, state_of(object(exchange)?.exchange.part(part))?) })
}

fn state_of(state: Option<PartState>) -> Outcome<u32> {
    match state.ok_or(GW_ERROR_OUT_OF_RANGE)? {
        PartState::Travelling => Ok(GW_PART_TRAVELLING),
        // No exchange of this interface takes means that are not finite.
        PartState::Complete | PartState::NotFinite => Ok(GW_PART_COMPLETE),
        PartState::Void => Ok(GW_PART_VOID),
    }
}

/// What a rank said with a part of the last step that is complete: `*byte_count` bytes at `*bytes`, which
/// stay until the next call that changes the exchange.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a rank that is no member, and for a part that is not complete,
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_said(
    exchange: *const gw_exchange,
    part: usize,
    rank: u32,
    bytes: *mut *const u8,
    byte_count: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let said = object(exchange)?.exchange.said(part, Rank(rank)).ok_or(GW_ERROR_OUT_OF_RANGE)?;
        give(byte_count, said.len())?;
        give(bytes, said.as_ptr())
    })
}
