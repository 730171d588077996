//! What needs no object of its own.

use crate::frame::{gw_frame, gw_frame_add, gw_frame_free, gw_frame_new};
use crate::layout::gw_layout;
use crate::raw::boundary;
use crate::results::{GW_OK, gw_result};

/// The most bytes of a frame of `elements` numbers in one unit, by any codec: the macro GW_FRAME_BOUND as
/// a function. With `unit=tensor`, ask gw_encoder_frame_bound.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_frame_bound(elements: usize) -> usize {
    elements.saturating_mul(8).saturating_add(2048)
}

/// Reads a frame, checks all of it, and adds `weight` times its values to a sum: gw_frame_new,
/// gw_frame_add and gw_frame_free in one. On an error the sum is as it was.
///
/// Errors: as gw_frame_new and gw_frame_add. Threads: any, at any time.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_add(
    bytes: *const u8,
    byte_count: usize,
    layout: *const gw_layout,
    weight: f32,
    sum: *mut f32,
    count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut frame: *mut gw_frame = std::ptr::null_mut();
        let read = gw_frame_new(bytes, byte_count, layout, std::ptr::null(), &raw mut frame);
        if read != GW_OK {
            return Err(read);
        }
        let added = gw_frame_add(frame, weight, sum, count);
        gw_frame_free(frame);
        if added == GW_OK { Ok(()) } else { Err(added) }
    })
}
