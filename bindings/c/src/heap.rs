//! What allocates: `_new` and `_free` of the objects, and reading a frame in one call. Left out of the build
//! without a heap, where programs have the same objects in memory of their own.

use crate::codec::{gw_codec, gw_codec_size};
use crate::encoder::{self, gw_encoder, gw_encoder_init};
use crate::frame::{self, gw_frame, gw_frame_add, gw_frame_init};
use crate::layout::{Held, gw_layout, gw_layout_init, gw_layout_size};
use crate::limits::gw_limits;
use crate::memory::{self, gw_memory, gw_memory_init};
use crate::raw::{
    GW_ALIGNMENT, Head, Object, Outcome, Place, boundary, check, check_object, object, slice, text,
};
use crate::results::{
    GW_ERROR_LAYOUT, GW_ERROR_NO_HEAP, GW_ERROR_NOT_ALLOCATED, GW_ERROR_PANIC, GW_ERROR_WRONG_LENGTH, GW_OK,
    gw_result,
};
use crate::rounds::{gw_rounds, gw_rounds_init, gw_rounds_size};
use crate::spelling::gw_codec_init;
use codecs::Layout;
use core::ffi::{c_char, c_void};
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

/// Allocates a codec. gw_codec_free frees it.
///
/// Errors: as gw_codec_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_new(spelling: *const c_char, codec: *mut *mut gw_codec) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        allocate(gw_codec_size(), codec, |memory, size| gw_codec_init(memory, size, spelling, codec))
    })
}

/// Frees what gw_codec_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for a codec in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_free(codec: *mut gw_codec) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(codec, |_| ()) })
}

/// Allocates the layout of one vector of `elements` numbers. gw_layout_free frees it.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_new_flat(elements: usize, layout: *mut *mut gw_layout) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        allocate(gw_layout_size(), layout, |memory, size| gw_layout_init(memory, size, elements, layout))
    })
}

/// Allocates a layout of `tensors` tensors. Tensor i has the name `names[i]` and `ranks[i]` dimensions;
/// `dims` has the dimensions of all tensors, one tensor after the other, `dim_count` numbers in all.
/// Everything is copied. `names` may be NULL: then no tensor has a name. gw_layout_free frees it.
///
/// Errors: GW_ERROR_LAYOUT, GW_ERROR_WRONG_LENGTH when the ranks do not sum to `dim_count`,
/// GW_ERROR_NOT_UTF8, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_new(
    tensors: usize,
    names: *const *const c_char,
    ranks: *const usize,
    dims: *const usize,
    dim_count: usize,
    layout: *mut *mut gw_layout,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let shapes = shapes(slice(ranks, tensors)?, slice(dims, dim_count)?)?;
        let names = if names.is_null() { &[] } else { slice(names, tensors)? };
        let mut table = Vec::new();
        for (i, shape) in shapes.into_iter().enumerate() {
            let name = names.get(i).map_or(Ok(""), |&name| text(name))?;
            table.push((name, shape));
        }
        let table = Layout::packed(table).map_err(|_| GW_ERROR_LAYOUT)?;
        allocate(gw_layout_size(), layout, |memory, size| {
            boundary(|| {
                let place = Place::<gw_layout>::open(memory, size)?;
                let table = Box::into_raw(Box::new(table));
                place.write(Held { layout: (*table).as_ref(), table }, layout)
            })
        })
    })
}

/// The shape of each tensor.
fn shapes(ranks: &[usize], mut dims: &[usize]) -> Outcome<Vec<Vec<usize>>> {
    let mut shapes = Vec::new();
    for &rank in ranks {
        let (shape, others) = dims.split_at_checked(rank).ok_or(GW_ERROR_WRONG_LENGTH)?;
        shapes.push(shape.to_vec());
        dims = others;
    }
    if dims.is_empty() { Ok(shapes) } else { Err(GW_ERROR_WRONG_LENGTH) }
}

/// Frees what gw_layout_new or gw_layout_new_flat made. Encoders and memories that were made of it must
/// not be used any more. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for a layout in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_free(layout: *mut gw_layout) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; the table was boxed by `gw_layout_new`.
    boundary(|| unsafe {
        free(layout, |held| {
            if !held.table.is_null() {
                drop(Box::from_raw(held.table));
            }
        })
    })
}

/// Allocates a memory of zeros. gw_memory_free frees it.
///
/// Errors: as gw_memory_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_new(
    codec: *const gw_codec,
    layout: *const gw_layout,
    memory: *mut *mut gw_memory,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let bytes = memory::size(object(codec)?, &object(layout)?.layout)?;
        allocate(bytes, memory, |at, size| gw_memory_init(at, size, codec, layout, memory))
    })
}

/// Frees what gw_memory_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for a memory in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_free(memory: *mut gw_memory) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(memory, |_| ()) })
}

/// Allocates an encoder. gw_encoder_free frees it.
///
/// Errors: as gw_encoder_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_new(
    codec: *const gw_codec,
    layout: *const gw_layout,
    encoder: *mut *mut gw_encoder,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let bytes = encoder::size(object(codec)?, &object(layout)?.layout)?;
        allocate(bytes, encoder, |memory, size| gw_encoder_init(memory, size, codec, layout, encoder))
    })
}

/// Frees what gw_encoder_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for an encoder in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_free(encoder: *mut gw_encoder) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(encoder, |_| ()) })
}

/// Allocates the object for rounds. gw_rounds_free frees it.
///
/// Errors: as gw_rounds_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_new(
    codec: *const gw_codec,
    layout: *const gw_layout,
    rounds: *mut *mut gw_rounds,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut bytes = 0;
        match gw_rounds_size(codec, layout, &raw mut bytes) {
            GW_OK => {
                allocate(bytes, rounds, |memory, size| gw_rounds_init(memory, size, codec, layout, rounds))
            }
            error => Err(error),
        }
    })
}

/// Frees what gw_rounds_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for an object in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_rounds_free(rounds: *mut gw_rounds) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(rounds, |_| ()) })
}

/// Allocates and reads a frame. gw_frame_free frees it.
///
/// Errors: as gw_frame_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_new(
    bytes: *const u8,
    byte_count: usize,
    layout: *const gw_layout,
    limits: *const gw_limits,
    frame: *mut *mut gw_frame,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let size = frame::needed(slice(bytes, byte_count)?, layout, limits)?;
        let init = |memory, size| gw_frame_init(memory, size, bytes, byte_count, layout, limits, frame);
        allocate(size, frame, init)
    })
}

/// Frees what gw_frame_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for a frame in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_free(frame: *mut gw_frame) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(frame, |_| ()) })
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
