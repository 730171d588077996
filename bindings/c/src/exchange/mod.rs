//! A step of all ranks, from their gradients to one mean, without I/O.

pub mod messages;
pub mod parts;
pub mod settings;

use crate::draws::{GW_RANKS, source};
use crate::heap::free;
use crate::memory::{beside, gw_memory};
use crate::raw::{
    Object, Outcome, Placed, boundary, give, give_if_wanted, give_text, object, object_mut, optional_mut,
    slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_MEMORY_INCOMPLETE, GW_ERROR_OUT_OF_RANGE, GW_ERROR_WRONG_LAYOUT, GW_ERROR_WRONG_LENGTH,
    GW_EXCHANGE_NOT_STARTED, gw_result,
};
use codecs::state::MemoryChoice;
use codecs::{Grad, Layout, Memory, Spec, StepKey};
use core::ffi::c_char;
use transports::exchange::{Exchange, ExchangeError, Progress, Report, Setting};
use transports::{Membership, Rank, RankSet};

/// The exchange of a rank: it turns the gradients of all ranks into one mean, the same bits at every
/// rank. It has no sockets, threads or clocks: you give it messages that arrived and the time, and it
/// gives you messages to send. The network is yours.
///
/// A step: gw_exchange_begin; gw_exchange_encode until it says GW_DONE; gw_exchange_complete until it
/// says GW_DONE. Before each of these calls, send what gw_exchange_outgoing has. When one says
/// GW_WAITING, wait for a message and hand it in with gw_exchange_receive, or for the time of
/// gw_exchange_deadline. An error of encode or complete ends the step; whatever did not enter the mean is
/// back in the memory. gw_exchange_begin_in_parts begins a step whose parts are added as their gradients
/// come.
///
/// Threads: one at a time.
pub struct gw_exchange(#[allow(dead_code, reason = "its place is what counts")] Placed<Held>);

pub(crate) struct Held {
    exchange: Exchange,
    layout: Layout,
    spec: Spec,
    is_server: bool,
    /// The memory of the step in progress.
    memory: *mut gw_memory,
    failed: Option<ExchangeError>,
    report: Option<Report>,
}

impl Object for gw_exchange {
    type Value = Held;
    const TAG: u64 = u64::from_le_bytes(*b"exchange");
}

/// A piece of work was done. Send what is queued, and call again.
pub const GW_WORKED: u32 = 0;
/// A message is missing, or one has not left. Call again when one came or left, or at the deadline.
pub const GW_WAITING: u32 = 1;
/// All of it is done.
pub const GW_DONE: u32 = 2;

/// Time that never comes.
pub const GW_NEVER: u64 = u64::MAX;

/// Frees an exchange. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_free(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; nobody uses the object after it.
    boundary(|| unsafe { free(exchange, |held| core::ptr::drop_in_place(held)) })
}

/// Begins a step of the ranks `members`, in any order, this rank among them. `epoch` grows with every
/// change of the members. `fail_stop` is not 0 where every message arrives unless the run ends for all,
/// as over TCP connections that nobody opens again; else all ranks vote at the end of a step. The
/// gradient must be encoded at the time `by`. Time is in nanoseconds from any moment that stays the same;
/// GW_NEVER is never.
///
/// The memory, NULL for a codec without GW_CAN_KEEP, must stay until the step is over, and nobody else
/// may use it. All ranks begin the same steps in the same order, with the same seed.
///
/// Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_OUT_OF_RANGE for a rank that is not among the members
/// or not below GW_RANKS, GW_ENCODE_MEMORY_INCOMPLETE without the memory,
/// GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_begin(
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
        held.begin(memory, |machine, kept| machine.begin(of.setting, of.key, kept, now, by))
    })
}

/// What the arguments of a step name.
struct StepOf {
    setting: Setting,
    key: StepKey,
}

impl StepOf {
    fn new(rank: u32, members: &[u32], epoch: u32, fail_stop: u32, seed: u64, step: u64) -> Outcome<Self> {
        if rank >= GW_RANKS || !members.contains(&rank) {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        let ranks: RankSet = members.iter().copied().map(Rank).collect();
        let membership = Membership { epoch, ranks };
        let setting = Setting { rank: Rank(rank), membership, is_fail_stop: fail_stop != 0 };
        Ok(Self { setting, key: StepKey { seed, step, source: source(rank)? } })
    }
}

/// Encodes and sends, piece by piece. `*progress` becomes GW_WORKED, GW_WAITING or GW_DONE. The values
/// are the same in every call of a step, as many as the layout has.
///
/// Errors: they end the step, except for GW_ERROR_ and GW_EXCHANGE_NOT_STARTED. As gw_encode, and
/// GW_EXCHANGE_. gw_exchange_error_text says more.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_encode(
    exchange: *mut gw_exchange,
    values: *const f32,
    count: usize,
    now: u64,
    progress: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (held, values) = (object_mut(exchange)?, slice(values, count)?);
        if values.len() != held.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        give(progress, GW_WORKED)?;
        let memory = beside(held.memory, values)?;
        let done = held.exchange.encode(Grad::F32(values), memory, now);
        give(progress, held.note(done)?)
    })
}

/// Receives, adds and divides, piece by piece. `*progress` becomes GW_WORKED, GW_WAITING or GW_DONE: then
/// the mean of all ranks is in `mean`, as many values as the layout has. `mean` is the same in every call
/// of a step. The first call sets the time by which the mean must be there, `by`.
///
/// Errors: as gw_exchange_encode. GW_EXCHANGE_NOT_STARTED before gw_exchange_encode is done.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_complete(
    exchange: *mut gw_exchange,
    mean: *mut f32,
    count: usize,
    now: u64,
    by: u64,
    progress: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (held, mean) = (object_mut(exchange)?, slice_mut(mean, count)?);
        if mean.len() != held.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        give(progress, GW_WORKED)?;
        let memory = beside(held.memory, mean)?;
        let done = held.exchange.complete(mean, memory, now, by);
        let done = done.map(|progress| match progress {
            Progress::Done(report) => {
                held.report = Some(report);
                held.memory = core::ptr::null_mut();
                Progress::Done(())
            }
            Progress::Worked(work) => Progress::Worked(work),
            Progress::Waiting => Progress::Waiting,
            Progress::Lent => Progress::Lent,
        });
        give(progress, held.note(done)?)
    })
}

impl Held {
    /// Begins a step with that memory.
    ///
    /// # Safety
    /// As [`optional_mut`], also until the step is over.
    unsafe fn begin(
        &mut self,
        memory: *mut gw_memory,
        begin: impl FnOnce(&mut Exchange, Option<&Memory<'_>>) -> Result<(), ExchangeError>,
    ) -> Outcome {
        // SAFETY: the caller's promise.
        let kept = unsafe { optional_mut(memory)? };
        match &kept {
            None if self.spec.memory != MemoryChoice::None => return Err(GW_ENCODE_MEMORY_INCOMPLETE),
            Some(kept) if !kept.is_for(&self.layout.as_ref()) => return Err(GW_ERROR_WRONG_LAYOUT),
            _ => {}
        }
        let kept: Option<&Memory<'_>> = kept.as_deref().map(|kept| &kept.memory);
        begin(&mut self.exchange, kept).map_err(|error| error.code())?;
        (self.memory, self.failed, self.report) = (memory, None, None);
        Ok(())
    }

    /// Keeps the error for its text.
    fn say(&mut self, error: ExchangeError) -> gw_result {
        let code = error.code();
        self.failed = Some(error);
        code
    }

    /// What a call of the step has reached. An error ends the step, if one has begun.
    fn note(&mut self, done: Result<Progress<()>, ExchangeError>) -> Outcome<u32> {
        done.map(|progress| number_of(&progress)).map_err(|error| {
            let code = self.say(error);
            if code != GW_EXCHANGE_NOT_STARTED {
                self.memory = core::ptr::null_mut();
            }
            code
        })
    }
}

fn number_of(progress: &Progress<()>) -> u32 {
    match progress {
        Progress::Done(()) => GW_DONE,
        Progress::Waiting => GW_WAITING,
        // No route of this interface lends a payload to a library.
        Progress::Worked(_) | Progress::Lent => GW_WORKED,
    }
}

/// Of the last step that is done: how many ranks are in the mean, the bytes of this rank's frame or
/// payload, and the coordinates that it sent. Each may be NULL.
///
/// Errors: GW_EXCHANGE_NOT_STARTED without a step, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_report(
    exchange: *const gw_exchange,
    contributors: *mut usize,
    frame_bytes: *mut usize,
    sent_values: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let report = object(exchange)?.report.as_ref().ok_or(GW_EXCHANGE_NOT_STARTED)?;
        give_if_wanted(contributors, report.contributors.len())?;
        give_if_wanted(frame_bytes, report.frame_bytes)?;
        give_if_wanted(sent_values, report.held)
    })
}

/// Why the last step failed, in words, with the rank that caused it; an empty text if it did not. As
/// gw_codec_explain.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_error_text(
    exchange: *const gw_exchange,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        match &object(exchange)?.failed {
            Some(error) => give_text(error, out, room, needed),
            None => give_text("", out, room, needed),
        }
    })
}
