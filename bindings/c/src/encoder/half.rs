//! Values in 16 bits.

use super::{encode, gw_encoder};
use crate::memory::gw_memory;
use crate::raw::{boundary, disjoint, slice, slice_mut};
use crate::results::gw_result;
use codecs::Grad;
use codecs::half::{bf16, f16};

/// As gw_encode, for values in half precision (IEEE binary16), as their bits.
///
/// Errors: as gw_encode.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_f16(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const u16,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; an f16 is its 16 bits.
    boundary(|| unsafe {
        let (values, out) = (slice(values.cast::<f16>(), count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        encode(encoder, step, Grad::F16(values), memory, out, written)
    })
}

/// As gw_encode, for values in bfloat16, as their bits.
///
/// Errors: as gw_encode.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_bf16(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const u16,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; a bf16 is its 16 bits.
    boundary(|| unsafe {
        let (values, out) = (slice(values.cast::<bf16>(), count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        encode(encoder, step, Grad::Bf16(values), memory, out, written)
    })
}
