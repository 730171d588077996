//! Routes and their settings.

use super::{Held, gw_exchange};
use crate::codec::gw_codec;
use crate::heap::allocate;
use crate::layout::gw_layout;
use crate::raw::{Object, Outcome, Place, boundary, object, object_mut};
use crate::results::{
    GW_ERROR_LAYOUT, GW_ERROR_NO_HEAP, GW_ERROR_NOT_SUPPORTED, GW_ERROR_OUT_OF_RANGE, GW_ERROR_WRONG_LENGTH,
    GW_EXCHANGE_NO_DOWNLINK, gw_result,
};
use codecs::plan::ToPlan;
use codecs::{Codec, Density, Layout, LayoutRef, Spec};
use core::hint::black_box;
use core::time::Duration;
use transports::Rank;
use transports::collective::Wire;
use transports::exchange::{Exchange, Route, ServerOptions};

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
/// the frames of rank 0 alone. gw_exchange_new_server has another server, and another codec for the way back.
pub const GW_ROUTE_SERVER: u32 = 5;
/// Payloads are summed by the ranks, each a segment: two messages wait for each other instead of two for each
/// rank, as on a ring. For codecs with GW_CAN_SUM.
pub const GW_ROUTE_OWNERS: u32 = 6;

/// Allocates an exchange of gradients of that layout by a codec, on a route. Both are copied.
/// gw_exchange_free frees it. Its buffers grow in the first step. A layout for which 32 bytes an element
/// cannot be had is refused here, because a step that finds no memory ends the program.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a route that GW_ROUTE_ does not name, GW_EXCHANGE_NOT_LINEAR,
/// GW_EXCHANGE_NO_FRAMES, GW_EXCHANGE_NOT_SPARSE, GW_EXCHANGE_GOSSIP and GW_EXCHANGE_PACKETS for a codec
/// that the route does not take, GW_ERROR_NOT_SUPPORTED for the key `clip`, GW_ERROR_LAYOUT for a layout
/// of gw_layout_init_opaque, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT, GW_ERROR_NO_HEAP, and
/// GW_ERROR_WRONG_LENGTH for a layout that cannot be addressed.
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
        let (spec, layout) = (object(codec)?.spec, owned(&object(layout)?.layout)?);
        let route = route_of(route, &spec, &layout.as_ref())?;
        make(spec, layout, route, 1, exchange)
    })
}

/// As gw_exchange_new, for steps in at most `messages` parts of neighbouring units: while the messages of one
/// travel, the next is encoded. The mean has the same bits. For codecs with several units, such as those with
/// `unit=tensor`.
///
/// Errors: as gw_exchange_new; GW_EXCHANGE_ONE_MESSAGE for a server and for GW_ROUTE_TREE,
/// GW_ERROR_OUT_OF_RANGE for 0.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_new_pipelined(
    codec: *const gw_codec,
    layout: *const gw_layout,
    route: u32,
    messages: usize,
    exchange: *mut *mut gw_exchange,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (spec, layout) = (object(codec)?.spec, owned(&object(layout)?.layout)?);
        let route = route_of(route, &spec, &layout.as_ref())?;
        if messages == 0 {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        make(spec, layout, route, messages, exchange)
    })
}

/// As gw_exchange_new with GW_ROUTE_SERVER, for a server of any rank, which sends the mean back by the codec
/// `downlink`. What that codec keeps stays at the server. NULL is "none": the mean as f32. All ranks pass the
/// same.
///
/// Errors: as gw_exchange_new, also for the downlink.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_new_server(
    codec: *const gw_codec,
    layout: *const gw_layout,
    server: u32,
    downlink: *const gw_codec,
    exchange: *mut *mut gw_exchange,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (spec, layout) = (object(codec)?.spec, owned(&object(layout)?.layout)?);
        let downlink = if downlink.is_null() { Spec::new(Codec::NONE) } else { object(downlink)?.spec };
        let quorum = usize::from(spec.packets.is_some());
        let options = ServerOptions { server: Rank(server), quorum, downlink, ..ServerOptions::default() };
        make(spec, layout, Route::Server(options), 1, exchange)
    })
}

/// # Safety
/// As [`allocate`].
unsafe fn make(
    spec: Spec,
    layout: Layout,
    route: Route,
    messages: usize,
    exchange: *mut *mut gw_exchange,
) -> Outcome {
    if spec.codec.local_clip(1).is_some() {
        return Err(GW_ERROR_NOT_SUPPORTED);
    }
    require_room(layout.len())?;
    let is_server = matches!(route, Route::Server(_));
    let made = Exchange::new(spec, layout.clone(), route);
    let made = made.and_then(|made| if messages > 1 { made.pipelined(messages) } else { Ok(made) });
    let held = Held {
        exchange: made.map_err(|error| error.code())?,
        layout,
        spec,
        is_server,
        memory: core::ptr::null_mut(),
        failed: None,
        report: None,
    };
    // SAFETY: the caller's promise.
    unsafe {
        allocate(gw_exchange::ROOM.bytes()?, exchange, |memory, size| {
            boundary(|| Place::<gw_exchange>::open(memory, size)?.write(held, exchange))
        })
    }
}

/// Refuses a layout for whose buffers there is no room: frame, working memory, state and their copies take up
/// to 32 bytes an element.
fn require_room(elements: usize) -> Outcome {
    let bytes = elements.checked_mul(32).ok_or(GW_ERROR_WRONG_LENGTH)?;
    if isize::try_from(bytes).is_err() {
        return Err(GW_ERROR_WRONG_LENGTH);
    }
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(bytes);
    // Or the compiler leaves the allocation out.
    black_box(&room);
    reserved.map_err(|_| GW_ERROR_NO_HEAP)
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
        GW_ROUTE_OWNERS => Ok(Route::Owners { wire: Wire::F32 }),
        GW_ROUTE_SERVER if spec.packets.is_none() => Ok(Route::Server(ServerOptions::default())),
        GW_ROUTE_SERVER => Ok(Exchange::best_route(&spec.to_plan(layout))),
        _ => Err(GW_ERROR_OUT_OF_RANGE),
    }
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

/// Sets the epoch, counted from 0, for the steps from here on: the density is then that of the warm-up that
/// the spelling asks for. All ranks set the same for the same steps.
///
/// Errors: GW_EXCHANGE_BUSY during a step, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_set_epoch(exchange: *mut gw_exchange, epoch: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { object_mut(exchange)?.exchange.set_epoch(epoch).map_err(|error| error.code()) })
}

/// Of a server, for the steps from here on: the fewest frames with which a step succeeds, its own included; 0
/// is all, which is the default without packets. Frames that come too late go back to the memories of their
/// ranks.
///
/// Errors: GW_EXCHANGE_NO_DOWNLINK on a route without a server, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_set_quorum(exchange: *mut gw_exchange, quorum: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.server()?.set_quorum(quorum);
        Ok(())
    })
}

/// Of a server, for the steps from here on: how long it waits for frames, in nanoseconds, before it goes on
/// with those of a quorum. By default until the deadline of the step.
///
/// Errors: as gw_exchange_set_quorum.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_set_patience(exchange: *mut gw_exchange, nanoseconds: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.server()?.set_patience(Duration::from_nanos(nanoseconds));
        Ok(())
    })
}

impl Held {
    fn server(&mut self) -> Outcome<&mut Exchange> {
        if self.is_server { Ok(&mut self.exchange) } else { Err(GW_EXCHANGE_NO_DOWNLINK) }
    }
}
