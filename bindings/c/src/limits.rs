//! Bounds on what bytes from a stranger may cost.

use crate::layout::gw_layout;
use crate::raw::{Object, Outcome, Place, Placed, boundary, object, object_mut};
use crate::results::{GW_ERROR_OUT_OF_RANGE, gw_result};
use codecs::{LayoutRef, Limits};
use core::ffi::c_void;

/// What a frame from a stranger may cost its reader. A frame that asks for more is refused, before any
/// work.
///
/// Threads: many may read it at once; none may change it meanwhile.
pub struct gw_limits(#[allow(dead_code, reason = "its place is what counts")] Placed<Limits>);

impl Object for gw_limits {
    type Value = Limits;
    const TAG: u64 = u64::from_le_bytes(*b"gwlimits");
}

/// The caller's limits, or those of the layout.
///
/// # Safety
/// As [`object`].
pub(crate) unsafe fn limits_or(limits: *const gw_limits, layout: &LayoutRef<'_>) -> Outcome<Limits> {
    if limits.is_null() {
        return Ok(Limits::for_layout(layout));
    }
    // SAFETY: the caller's promise.
    unsafe { object(limits).copied() }
}

/// Bytes of limits.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_limits_size() -> usize {
    gw_limits::ROOM.bytes().unwrap_or(0)
}

/// Makes the limits that stand where NULL is passed for them, in the caller's memory: the most that an
/// honest frame of the layout can need. The setters below change them.
///
/// Errors: those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_init(
    memory: *mut c_void,
    size: usize,
    layout: *const gw_layout,
    limits: *mut *mut gw_limits,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let place = Place::<gw_limits>::open(memory, size)?;
        place.write(Limits::for_layout(&object(layout)?.layout), limits)
    })
}

/// Elements that all units of a frame may cover together.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_elements(limits: *mut gw_limits, value: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(limits)?.max_elements = value;
        Ok(())
    })
}

/// Bytes after the header.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_body_bytes(limits: *mut gw_limits, value: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(limits)?.max_body_bytes = value;
        Ok(())
    })
}

/// Entries of sparse units, over all units of a frame.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_entries(limits: *mut gw_limits, value: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(limits)?.max_entries = value;
        Ok(())
    })
}

/// Units of a frame.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_units(limits: *mut gw_limits, value: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(limits)?.max_units = value;
        Ok(())
    })
}

/// Words of 32 bits that reading a frame may take.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_scratch_words(limits: *mut gw_limits, value: usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(limits)?.max_scratch_words = value;
        Ok(())
    })
}

/// The largest magnitude of a value: what one peer can do to a mean. Not negative, and not NaN.
///
/// Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_set_max_magnitude(limits: *mut gw_limits, value: f32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        if value.is_nan() || value < 0.0 {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        object_mut(limits)?.max_magnitude = value;
        Ok(())
    })
}
