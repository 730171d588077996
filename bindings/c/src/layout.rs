//! The tensors of a gradient.

use crate::raw::{Object, Outcome, Place, Placed, allocate, boundary, free, give, object, slice, text};
use crate::results::{GW_ERROR_LAYOUT, GW_ERROR_WRONG_LENGTH, gw_result};
use codecs::{Layout, LayoutRef};
use std::ffi::{c_char, c_void};

/// The tensors of a gradient, whose values lie in one array, one tensor after the other. Both ends of a
/// wire have the same layout.
///
/// Threads: many may use it at once.
pub struct gw_layout(#[allow(dead_code, reason = "its place is what counts")] Placed<Held>);

/// The layout, and its table if it was allocated.
pub(crate) struct Held {
    pub(crate) layout: LayoutRef<'static>,
    table: *mut Layout,
}

impl Object for gw_layout {
    type Value = Held;
    const TAG: u64 = u64::from_le_bytes(*b"gwlayout");
}

/// Bytes of a layout.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_layout_size() -> usize {
    gw_layout::ROOM.bytes().unwrap_or(0)
}

/// Makes the layout of one vector of `elements` numbers, in the caller's memory.
///
/// Errors: those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_init(
    memory: *mut c_void,
    size: usize,
    elements: usize,
    layout: *mut *mut gw_layout,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let place = Place::<gw_layout>::open(memory, size)?;
        place.write(Held { layout: LayoutRef::flat(elements), table: std::ptr::null_mut() }, layout)
    })
}

/// Makes a layout of which only length and fingerprint are known, in the caller's memory: to read a frame
/// from a file. gw_outline_extent and gw_outline_fingerprint say them of a frame. Frames that need the
/// shapes are then GW_DECODE_LAYOUT_UNKNOWN.
///
/// Errors: those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_init_opaque(
    memory: *mut c_void,
    size: usize,
    elements: usize,
    fingerprint: u64,
    layout: *mut *mut gw_layout,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let place = Place::<gw_layout>::open(memory, size)?;
        let opaque = LayoutRef::opaque(elements, fingerprint);
        place.write(Held { layout: opaque, table: std::ptr::null_mut() }, layout)
    })
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

/// Elements of all tensors together: the length of every gradient and sum.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_elements(layout: *const gw_layout, elements: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(elements, object(layout)?.layout.len()) })
}

/// The fingerprint of the shapes, which every frame holds.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_layout_fingerprint(layout: *const gw_layout, fingerprint: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(fingerprint, object(layout)?.layout.fingerprint()) })
}
