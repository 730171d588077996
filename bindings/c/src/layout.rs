//! The tensors of a gradient.

use crate::raw::{Object, Place, Placed, boundary, give, object};
use crate::results::gw_result;
use codecs::LayoutRef;
use core::ffi::c_void;

/// The tensors of a gradient, whose values lie in one array, one tensor after the other. Both ends of a
/// wire have the same layout.
///
/// Threads: many may use it at once.
pub struct gw_layout(#[allow(dead_code, reason = "its place is what counts")] Placed<Held>);

/// The layout, and its table if it was allocated.
pub(crate) struct Held {
    pub(crate) layout: LayoutRef<'static>,
    #[cfg(feature = "heap")]
    pub(crate) table: *mut codecs::Layout,
}

impl Held {
    fn new(layout: LayoutRef<'static>) -> Self {
        Self {
            layout,
            #[cfg(feature = "heap")]
            table: core::ptr::null_mut(),
        }
    }
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
        place.write(Held::new(LayoutRef::flat(elements)), layout)
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
        place.write(Held::new(LayoutRef::opaque(elements, fingerprint)), layout)
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
