//! `_new` and `_free` of every object: a thin layer on `_size` and `_init`.

use super::{allocate, free};
use crate::codec::{gw_codec, gw_codec_size};
use crate::encoder::{self, gw_encoder, gw_encoder_init};
use crate::frame::{self, gw_frame, gw_frame_init};
use crate::layout::{Held, gw_layout, gw_layout_init, gw_layout_init_opaque, gw_layout_size};
use crate::limits::{gw_limits, gw_limits_init, gw_limits_size};
use crate::memory::{self, gw_memory, gw_memory_init};
use crate::outline::{gw_outline, gw_outline_init, gw_outline_size};
use crate::raw::{Outcome, Place, boundary, object, slice, text};
use crate::results::{GW_ERROR_LAYOUT, GW_ERROR_WRONG_LENGTH, GW_OK, gw_result};
use crate::rounds::{gw_rounds, gw_rounds_init, gw_rounds_size};
use crate::spelling::gw_codec_init;
use codecs::Layout;
use core::ffi::c_char;

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

/// Allocates a layout of which only length and fingerprint are known, as gw_layout_init_opaque makes it.
/// gw_layout_free frees it.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_new_opaque(
    elements: usize,
    fingerprint: u64,
    layout: *mut *mut gw_layout,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        allocate(gw_layout_size(), layout, |memory, size| {
            gw_layout_init_opaque(memory, size, elements, fingerprint, layout)
        })
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

/// Frees what gw_layout_new, gw_layout_new_flat or gw_layout_new_opaque made. Encoders and memories that were
/// made of it must not be used any more. NULL is nothing to free.
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
    workers: u32,
    rounds: *mut *mut gw_rounds,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut bytes = 0;
        match gw_rounds_size(codec, layout, workers, &raw mut bytes) {
            GW_OK => allocate(bytes, rounds, |memory, size| {
                gw_rounds_init(memory, size, codec, layout, workers, rounds)
            }),
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

/// Allocates limits, as gw_limits_init makes them. gw_limits_free frees them.
///
/// Errors: as gw_limits_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_new(layout: *const gw_layout, limits: *mut *mut gw_limits) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        allocate(gw_limits_size(), limits, |memory, size| gw_limits_init(memory, size, layout, limits))
    })
}

/// Frees what gw_limits_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for limits in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_limits_free(limits: *mut gw_limits) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(limits, |_| ()) })
}

/// Allocates and reads the outline of a frame. gw_outline_free frees it.
///
/// Errors: as gw_outline_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_new(
    bytes: *const u8,
    byte_count: usize,
    limits: *const gw_limits,
    outline: *mut *mut gw_outline,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        allocate(gw_outline_size(), outline, |memory, size| {
            gw_outline_init(memory, size, bytes, byte_count, limits, outline)
        })
    })
}

/// Frees what gw_outline_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for an outline in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_free(outline: *mut gw_outline) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(outline, |_| ()) })
}
