//! A step of all ranks, from their gradients to one mean, without I/O.

use crate::codec::gw_codec;
use crate::draws::source;
use crate::layout::gw_layout;
use crate::memory::gw_memory;
use crate::raw::{
    Object, Outcome, Place, Placed, allocate, boundary, disjoint, free, give, give_if_wanted, give_text,
    object, object_mut, optional_mut, slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_MEMORY_INCOMPLETE, GW_ERROR_LAYOUT, GW_ERROR_NOT_SUPPORTED, GW_ERROR_OUT_OF_RANGE,
    GW_ERROR_WRONG_LAYOUT, GW_ERROR_WRONG_LENGTH, GW_EXCHANGE_DUPLICATE, GW_EXCHANGE_FULL,
    GW_EXCHANGE_NOT_STARTED, GW_EXCHANGE_OTHER_EPOCH, GW_EXCHANGE_STALE, GW_EXCHANGE_STRANGER, gw_result,
};
use codecs::plan::ToPlan;
use codecs::state::MemoryChoice;
use codecs::{Density, Grad, Layout, LayoutRef, Memory, Spec, StepKey};
use std::ffi::c_char;
use transports::collective::Wire;
use transports::exchange::{
    Exchange, ExchangeError, Progress, Refusal, Report, Route, ServerOptions, Setting,
};
use transports::{Membership, Rank, RankSet, Tag, TransportError};

/// The exchange of a rank: it turns the gradients of all ranks into one mean, the same bits at every
/// rank. It has no sockets, threads or clocks: you give it messages that arrived and the time, and it
/// gives you messages to send. The network is yours.
///
/// A step: gw_exchange_begin; gw_exchange_encode until it says GW_DONE; gw_exchange_complete until it
/// says GW_DONE. Before each of these calls, send what gw_exchange_outgoing has. When one says
/// GW_WAITING, wait for a message and hand it in with gw_exchange_receive, or for the time of
/// gw_exchange_deadline. An error of encode or complete ends the step; whatever did not enter the mean is
/// back in the memory.
///
/// Threads: one at a time.
pub struct gw_exchange(#[allow(dead_code, reason = "its place is what counts")] Placed<Held>);

pub(crate) struct Held {
    exchange: Exchange,
    layout: Layout,
    spec: Spec,
    /// The memory of the step in progress.
    memory: *mut gw_memory,
    failed: Option<ExchangeError>,
    report: Option<Report>,
}

impl Object for gw_exchange {
    type Value = Held;
    const TAG: u64 = u64::from_le_bytes(*b"exchange");
}

/// A sum where the codec allows it, a server for packets, else all-gather.
pub const GW_ROUTE_BEST: u32 = 0;
/// Every rank sends its frame to every other.
pub const GW_ROUTE_ALL_GATHER: u32 = 1;
/// Every rank sums a part of the coordinates and sends the sums to all: for sparse codecs.
pub const GW_ROUTE_SPARSE: u32 = 2;
/// Payloads are summed along a ring: for codecs with GW_CAN_SUM.
pub const GW_ROUTE_RING: u32 = 3;
/// Payloads are summed along a tree: the same, for short payloads.
pub const GW_ROUTE_TREE: u32 = 4;
/// Rank 0 is a member that receives all frames and answers with the mean, as f32. With packets, a step needs
/// the frames of rank 0 alone.
pub const GW_ROUTE_SERVER: u32 = 5;

/// A piece of work was done. Send what is queued, and call again.
pub const GW_WORKED: u32 = 0;
/// A message is missing, or one has not left. Call again when one came or left, or at the deadline.
pub const GW_WAITING: u32 = 1;
/// All of it is done.
pub const GW_DONE: u32 = 2;

/// Bytes of a tag: which message of which step this is. It travels with the message, as it is.
pub const GW_TAG_BYTES: usize = 20;

/// Time that never comes.
pub const GW_NEVER: u64 = u64::MAX;

/// Allocates an exchange of gradients of that layout by a codec, on a route. Both are copied.
/// gw_exchange_free frees it.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a route that GW_ROUTE_ does not name, GW_EXCHANGE_NOT_LINEAR,
/// GW_EXCHANGE_NO_FRAMES, GW_EXCHANGE_NOT_SPARSE, GW_EXCHANGE_GOSSIP and GW_EXCHANGE_PACKETS for a codec
/// that the route does not take, GW_ERROR_NOT_SUPPORTED for the key `clip`, GW_ERROR_LAYOUT for a layout
/// of gw_layout_init_opaque, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT, GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_new(
    codec: *const gw_codec,
    layout: *const gw_layout,
    route: u32,
    exchange: *mut *mut gw_exchange,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (spec, layout) = (*object(codec)?, owned(&object(layout)?.layout)?);
        if spec.codec.local_clip(1).is_some() {
            return Err(GW_ERROR_NOT_SUPPORTED);
        }
        let route = route_of(route, &spec, &layout.as_ref())?;
        let made = Exchange::new(spec, layout.clone(), route).map_err(|error| error.code())?;
        let size = gw_exchange::ROOM.bytes()?;
        allocate(size, exchange, |memory, size| {
            boundary(|| {
                let place = Place::<gw_exchange>::open(memory, size)?;
                let memory = std::ptr::null_mut();
                place.write(
                    Held { exchange: made, layout, spec, memory, failed: None, report: None },
                    exchange,
                )
            })
        })
    })
}

fn owned(layout: &LayoutRef<'_>) -> Outcome<Layout> {
    let tensors = layout.tensors().map(|tensor| (tensor.name.to_owned(), tensor.shape.to_vec()));
    let copy = Layout::packed(tensors).map_err(|_| GW_ERROR_LAYOUT)?;
    if copy.fingerprint() == layout.fingerprint() { Ok(copy) } else { Err(GW_ERROR_LAYOUT) }
}

fn route_of(route: u32, spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Route> {
    match route {
        GW_ROUTE_BEST => Ok(Exchange::best_route(&spec.to_plan(layout))),
        GW_ROUTE_ALL_GATHER => Ok(Route::AllGather),
        GW_ROUTE_SPARSE => Ok(Route::SparseAllReduce),
        GW_ROUTE_RING => Ok(Route::AllReduce { wire: Wire::F32 }),
        GW_ROUTE_TREE => Ok(Route::Tree { wire: Wire::F32 }),
        GW_ROUTE_SERVER if spec.packets.is_none() => Ok(Route::Server(ServerOptions::default())),
        GW_ROUTE_SERVER => Ok(Exchange::best_route(&spec.to_plan(layout))),
        _ => Err(GW_ERROR_OUT_OF_RANGE),
    }
}

/// Frees an exchange. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_free(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; nobody uses the object after it.
    boundary(|| unsafe { free(exchange, |held| std::ptr::drop_in_place(held)) })
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
/// or not below GW_RANKS, GW_EXCHANGE_TOO_MANY_WORKERS, GW_ENCODE_MEMORY_INCOMPLETE without the memory,
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
        let (held, kept) = (object_mut(exchange)?, optional_mut(memory)?);
        let ranks: RankSet = slice(members, member_count)?.iter().copied().map(Rank).collect();
        source(rank)?;
        if !ranks.contains(Rank(rank)) {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        match &kept {
            None if held.spec.memory != MemoryChoice::None => return Err(GW_ENCODE_MEMORY_INCOMPLETE),
            Some(kept) if !kept.is_for(&held.layout.as_ref()) => return Err(GW_ERROR_WRONG_LAYOUT),
            _ => {}
        }
        let setting = Setting {
            rank: Rank(rank),
            membership: Membership { epoch, ranks },
            is_fail_stop: fail_stop != 0,
        };
        let key = StepKey { seed, step, source: source(rank)? };
        let kept: Option<&Memory<'_>> = kept.as_deref().map(|kept| &kept.memory);
        let begun = held.exchange.begin(setting, key, kept, now, by);
        held.failed = None;
        held.report = None;
        begun.map_err(|error| error.code())?;
        held.memory = memory;
        Ok(())
    })
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
        let kept = optional_mut(held.memory)?;
        if let Some(kept) = &kept {
            disjoint(values, kept.memory.residual())?;
        }
        let memory: Option<&mut Memory<'_>> = kept.map(|kept| &mut kept.memory);
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
        let kept = optional_mut(held.memory)?;
        if let Some(kept) = &kept {
            disjoint(mean, kept.memory.residual())?;
        }
        let memory: Option<&mut Memory<'_>> = kept.map(|kept| &mut kept.memory);
        let done = held.exchange.complete(mean, memory, now, by);
        let done = done.map(|progress| match progress {
            Progress::Done(report) => {
                held.report = Some(report);
                held.memory = std::ptr::null_mut();
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
    /// Keeps the error for its text; the step is over then.
    fn note(&mut self, done: Result<Progress<()>, ExchangeError>) -> Outcome<u32> {
        match done {
            Ok(Progress::Done(())) => Ok(GW_DONE),
            Ok(Progress::Waiting) => Ok(GW_WAITING),
            // No route of this interface lends a payload to a library.
            Ok(_) => Ok(GW_WORKED),
            Err(error) => {
                let code = error.code();
                if code != GW_EXCHANGE_NOT_STARTED {
                    self.memory = std::ptr::null_mut();
                }
                self.failed = Some(error);
                Err(code)
            }
        }
    }
}

/// The next message to send: its number, its receiver, its tag of GW_TAG_BYTES and its bytes. `*bytes` is
/// NULL if nothing is queued. The bytes stay where they are until gw_exchange_sent, gw_exchange_no_room or
/// gw_exchange_not_sent is called with the number, or the step is over.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_outgoing(
    exchange: *const gw_exchange,
    number: *mut u64,
    to: *mut u32,
    tag: *mut u8,
    bytes: *mut *const u8,
    byte_count: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object(exchange)?;
        give(bytes, std::ptr::null())?;
        give(byte_count, 0)?;
        let tag = slice_mut(tag, GW_TAG_BYTES)?;
        let Some(next) = held.exchange.outgoing() else { return Ok(()) };
        give(number, next.id)?;
        give(to, next.to.0)?;
        tag.copy_from_slice(&tag_bytes(next.tag));
        give(byte_count, next.bytes.len())?;
        give(bytes, next.bytes.as_ptr())
    })
}

fn tag_bytes(tag: Tag) -> [u8; GW_TAG_BYTES] {
    let mut bytes = [0; GW_TAG_BYTES];
    bytes[..4].copy_from_slice(&tag.epoch.to_le_bytes());
    bytes[4..12].copy_from_slice(&tag.step.to_le_bytes());
    bytes[12..16].copy_from_slice(&tag.unit.to_le_bytes());
    bytes[16..].copy_from_slice(&tag.chunk.to_le_bytes());
    bytes
}

fn tag_of(bytes: &[u8]) -> Outcome<Tag> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let read = || {
        let step = u64::from(number(4)?) | u64::from(number(8)?) << 32;
        Some(Tag { epoch: number(0)?, step, unit: number(12)?, chunk: number(16)? })
    };
    read().ok_or(GW_ERROR_WRONG_LENGTH)
}

/// The message of that number has left.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_sent(exchange: *mut gw_exchange, number: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.sent(number);
        Ok(())
    })
}

/// There is no room for the message of that number now. Others may leave meanwhile; after
/// gw_exchange_retry it is tried again.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_no_room(exchange: *mut gw_exchange, number: u64, now: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.no_room(number, now);
        Ok(())
    })
}

/// There may be room again for messages that found none.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_retry(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.retry();
        Ok(())
    })
}

/// The network can never send the message of that number to `to`. The step fails.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_not_sent(exchange: *mut gw_exchange, number: u64, to: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let error = TransportError::Disconnected { rank: Rank(to) };
        object_mut(exchange)?.exchange.not_sent(number, error);
        Ok(())
    })
}

/// Takes a message that arrived: who sent it, its tag, its bytes. In any order, early ones too; it is
/// copied. The order of arrival never changes the mean.
///
/// Errors: why it is not taken; the step goes on. GW_EXCHANGE_STRANGER, GW_EXCHANGE_OTHER_EPOCH,
/// GW_EXCHANGE_DUPLICATE, GW_EXCHANGE_STALE: drop it. GW_EXCHANGE_FULL: nobody asked for it yet, and its
/// sender has sent too much ahead; hand it in again later. GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_receive(
    exchange: *mut gw_exchange,
    from: u32,
    tag: *const u8,
    bytes: *const u8,
    byte_count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let machine = &mut object_mut(exchange)?.exchange;
        let (tag, bytes) = (tag_of(slice(tag, GW_TAG_BYTES)?)?, slice(bytes, byte_count)?);
        let mut message = machine.lend();
        message.clear();
        message.extend_from_slice(bytes);
        machine.receive(Rank(from), tag, message).map_err(|refusal| match refusal {
            Refusal::Stranger { .. } => GW_EXCHANGE_STRANGER,
            Refusal::OtherEpoch { .. } => GW_EXCHANGE_OTHER_EPOCH,
            Refusal::Duplicate { .. } => GW_EXCHANGE_DUPLICATE,
            Refusal::Stale { .. } => GW_EXCHANGE_STALE,
            Refusal::Full { .. } => GW_EXCHANGE_FULL,
        })
    })
}

/// When to call again, even if nothing arrives.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_deadline(exchange: *const gw_exchange, time: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(time, object(exchange)?.exchange.deadline()) })
}

/// Nothing more comes from a rank. Its messages that arrived still count.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_peer_lost(exchange: *mut gw_exchange, rank: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.peer_lost(Rank(rank));
        Ok(())
    })
}

/// The network has failed: so does the step.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_fail(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.fail(TransportError::Closed);
        Ok(())
    })
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

/// Sets the share of the coordinates that is sent from the next step on, from 1e-9 to 1. All ranks set
/// the same for the same steps.
///
/// Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_OUT_OF_RANGE, GW_EXCHANGE_CONFLICT for a codec that
/// has no density, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_set_density(exchange: *mut gw_exchange, density: f64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let machine = &mut object_mut(exchange)?.exchange;
        let density = Density::new(density).ok_or(GW_ERROR_OUT_OF_RANGE)?;
        machine.set_density(density).map_err(|error| error.code())
    })
}
