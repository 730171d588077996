//! What allocates: `_new` and `_free` of the objects, and reading a frame in one call. Left out of the build
//! without a heap, where programs have the same objects in memory of their own.

pub mod objects;

use self::objects::{gw_frame_free, gw_frame_new};
use crate::frame::{gw_frame, gw_frame_add};
use crate::layout::gw_layout;
use crate::raw::{GW_ALIGNMENT, Head, Object, Outcome, boundary, check, check_object};
use crate::results::{
    GW_ERROR_NO_HEAP, GW_ERROR_NOT_ALLOCATED, GW_ERROR_PANIC, GW_ERROR_WRONG_LENGTH, GW_OK, gw_result,
};
use core::ffi::c_void;
use std::alloc;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a call. A panic of the body becomes a result.
pub(crate) fn without_panic(body: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Its destructor could panic again.
        std::mem::forget(payload);
        Err(GW_ERROR_PANIC)
    })
}

/// Allocates `size` bytes and makes an object in them.
///
/// # Safety
/// `out` is a variable of the caller; `init` writes an object and its address.
pub(crate) unsafe fn allocate<O: Object>(
    size: usize,
    out: *mut *mut O,
    init: impl FnOnce(*mut c_void, usize) -> gw_result,
) -> Outcome {
    check(out)?;
    let layout = alloc::Layout::from_size_align(size, GW_ALIGNMENT).map_err(|_| GW_ERROR_WRONG_LENGTH)?;
    // SAFETY: no object has size 0.
    let memory = unsafe { alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(GW_ERROR_NO_HEAP);
    }
    let result = init(memory.cast(), size);
    if result == GW_OK {
        // SAFETY: `init` wrote an object there.
        unsafe { (*memory.cast::<Head>()).allocated = size };
        return Ok(());
    }
    // SAFETY: allocated above, with this layout.
    unsafe { alloc::dealloc(memory, layout) };
    Err(result)
}

/// Frees an object that was allocated, after `before`. Null is nothing to free.
///
/// # Safety
/// Null, or an object that nobody uses any more.
pub(crate) unsafe fn free<O: Object>(object: *mut O, before: impl FnOnce(&mut O::Value)) -> Outcome {
    if object.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let placed = unsafe { check_object(object)? };
    // SAFETY: the tag says that it is an object.
    let size = unsafe { (*placed).head.allocated };
    if size == 0 {
        return Err(GW_ERROR_NOT_ALLOCATED);
    }
    // SAFETY: as above; nobody uses it any more.
    unsafe { before(&mut (*placed).value) };
    // SAFETY: as above. A second call finds no tag, as long as the memory is not used again.
    unsafe { (*placed).head.tag = 0 };
    let layout = alloc::Layout::from_size_align(size, GW_ALIGNMENT).map_err(|_| GW_ERROR_PANIC)?;
    // SAFETY: allocated in `allocate`, with this layout.
    unsafe { alloc::dealloc(placed.cast(), layout) };
    Ok(())
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
        let mut frame: *mut gw_frame = core::ptr::null_mut();
        let read = gw_frame_new(bytes, byte_count, layout, core::ptr::null(), &raw mut frame);
        if read != GW_OK {
            return Err(read);
        }
        let added = gw_frame_add(frame, weight, sum, count);
        gw_frame_free(frame);
        if added == GW_OK { Ok(()) } else { Err(added) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::GW_ERROR_OVERLAP;

    #[test]
    fn a_panic_becomes_a_result() {
        assert_eq!(boundary(|| panic!("planted")), GW_ERROR_PANIC);
        struct PanicsAgain;
        impl Drop for PanicsAgain {
            fn drop(&mut self) {
                panic!("planted in a destructor");
            }
        }
        assert_eq!(boundary(|| std::panic::panic_any(PanicsAgain)), GW_ERROR_PANIC);
        assert_eq!(boundary(|| Err(GW_ERROR_OVERLAP)), GW_ERROR_OVERLAP);
        assert_eq!(boundary(|| Ok(())), GW_OK);
    }
}
