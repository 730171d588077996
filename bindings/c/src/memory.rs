//! What a rank keeps from step to step.

use crate::codec::{Chosen, gw_codec};
use crate::frame::gw_frame;
use crate::layout::gw_layout;
#[cfg(feature = "heap")]
use crate::raw::optional_mut;
use crate::raw::{
    Object, Outcome, Place, Placed, Size, boundary, disjoint, give, give_if_wanted, object, object_mut,
    slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ENCODE_MEMORY_INCOMPLETE, GW_ENCODE_TOO_LARGE, GW_ERROR_NOTHING_KEPT,
    GW_ERROR_OUT_OF_RANGE, GW_ERROR_OVERLAP, GW_ERROR_WRONG_LAYOUT, GW_ERROR_WRONG_LENGTH, gw_result,
};
use codecs::state::{MemoryChoice, SaveError};
use codecs::{Grad, LayoutRef, Memory, Spec};
use core::ffi::c_void;

/// What a rank keeps from step to step: the part of its gradients that was not sent yet, and whatever
/// else its codec needs. Each rank has its own.
///
/// Threads: one at a time.
pub struct gw_memory(#[allow(dead_code, reason = "its place is what counts")] Placed<Kept>);

pub(crate) struct Kept {
    pub(crate) memory: Memory<'static>,
    layout: LayoutRef<'static>,
}

/// The memory for a call that also has these values, which must not overlap with its residual.
///
/// # Safety
/// As [`object_mut`]. The memory may be left out.
#[cfg(feature = "heap")]
pub(crate) unsafe fn beside<'a>(
    memory: *mut gw_memory,
    values: &[f32],
) -> Outcome<Option<&'a mut Memory<'static>>> {
    // SAFETY: the caller's promise.
    let Some(kept) = (unsafe { optional_mut(memory)? }) else { return Ok(None) };
    disjoint(values, kept.memory.residual())?;
    Ok(Some(&mut kept.memory))
}

impl Object for gw_memory {
    type Value = Kept;
    const TAG: u64 = u64::from_le_bytes(*b"gwmemory");
}

impl Kept {
    pub(crate) fn is_for(&self, layout: &LayoutRef<'_>) -> bool {
        self.memory.len() == layout.len() && self.layout.fingerprint() == layout.fingerprint()
    }
}

/// Bytes of a memory that has a residual alone.
pub(crate) fn residual_size(spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Size> {
    if spec.memory == MemoryChoice::None {
        return Err(GW_ERROR_NOTHING_KEPT);
    }
    Ok(gw_memory::ROOM.and::<f32>(layout.len()))
}

pub(crate) fn size(codec: &Chosen, layout: &LayoutRef<'_>) -> Outcome<usize> {
    codec.method.memory_size(&codec.spec, layout)?.bytes()
}

/// Bytes of a memory for this codec and layout.
///
/// Errors: GW_ERROR_NOTHING_KEPT for a codec without GW_CAN_KEEP, GW_ERROR_WRONG_LENGTH when they cannot
/// be addressed, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_size(
    codec: *const gw_codec,
    layout: *const gw_layout,
    bytes: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(bytes, size(object(codec)?, &object(layout)?.layout)?) })
}

/// Makes a memory of zeros in the caller's memory. The layout must stay; the codec is not needed
/// afterwards.
///
/// Errors: as gw_memory_size, and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_init(
    at: *mut c_void,
    size: usize,
    codec: *const gw_codec,
    layout: *const gw_layout,
    memory: *mut *mut gw_memory,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut place = Place::<gw_memory>::open(at, size)?;
        let layout = object(layout)?.layout;
        let Chosen { spec, method } = object(codec)?;
        let kept = method.memory(spec, &layout, &mut place.rest)?;
        place.write(Kept { memory: kept, layout }, memory)
    })
}

/// Where the residual lies: what was not sent yet, one value for each element of the layout. It is there
/// to read, until the memory is used the next time.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_residual(
    memory: *const gw_memory,
    residual: *mut *const f32,
    count: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let kept = object(memory)?.memory.residual();
        give(residual, kept.as_ptr())?;
        give_if_wanted(count, kept.len())
    })
}

/// The Euclidean norm of the residual.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_norm(memory: *const gw_memory, norm: *mut f64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(norm, object(memory)?.memory.norm()) })
}

/// Adds what a frame holds to the residual again: for a frame of this rank that did not enter the mean.
/// Right after the gw_encode that made it, this restores residual + gradient.
///
/// Errors: GW_ERROR_WRONG_LAYOUT, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_give_back(memory: *mut gw_memory, frame: *const gw_frame) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (kept, parsed) = (object_mut(memory)?, object(frame)?);
        if !parsed.is_for(&kept.layout) {
            return Err(GW_ERROR_WRONG_LAYOUT);
        }
        kept.memory.give_back(&parsed.frame);
        Ok(())
    })
}

/// Adds a gradient to the residual that was not encoded, because the step failed earlier.
///
/// Errors: GW_ENCODE_NON_FINITE_INPUT, with nothing changed; GW_ERROR_WRONG_LENGTH, GW_ERROR_OVERLAP when
/// the values are the residual itself, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_keep(
    memory: *mut gw_memory,
    values: *const f32,
    count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (kept, values) = (object_mut(memory)?, slice(values, count)?);
        if values.len() != kept.memory.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        disjoint(values, kept.memory.residual())?;
        kept.memory.keep(Grad::F32(values)).map_err(|error| error.code())
    })
}

/// Multiplies the residual by a finite number: by the ratio of the learning rates, old to new, when that
/// changes.
///
/// Errors: GW_ERROR_OUT_OF_RANGE also where a product would not be finite, with nothing changed;
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_rescale(memory: *mut gw_memory, ratio: f32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let kept = object_mut(memory)?;
        let is_finite = |value: &f32| (value * ratio).is_finite();
        if !ratio.is_finite() || !kept.memory.residual().iter().all(is_finite) {
            return Err(GW_ERROR_OUT_OF_RANGE);
        }
        kept.memory.rescale(ratio);
        Ok(())
    })
}

/// Multiplies the residual by a factor from 0 to 1, so that what waits for long weighs less. What decays
/// is lost. An exchange does it where the codec's spelling has `decay=`; who encodes without one calls this
/// once a step.
///
/// Errors: GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_decay(memory: *mut gw_memory, factor: f32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { object_mut(memory)?.memory.decay(factor).map_err(|_| GW_ERROR_OUT_OF_RANGE) })
}

/// Sets everything to zeros, as before the first step.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_clear(memory: *mut gw_memory) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(memory)?.memory.clear();
        Ok(())
    })
}

/// Writes the memory to `out`, to load it in another process. `*written` becomes its bytes. Any machine
/// and the Python package read them too.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that are needed. GW_ENCODE_TOO_LARGE,
/// GW_ERROR_OVERLAP, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_save(
    memory: *const gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (kept, out) = (object(memory)?, slice_mut(out, room)?);
        disjoint(kept.memory.residual(), out)?;
        match kept.memory.save(&kept.layout, out) {
            Ok(bytes) => give(written, bytes),
            Err(SaveError::BufferTooSmall { needed, .. }) => {
                give(written, needed)?;
                Err(GW_ENCODE_BUFFER_TOO_SMALL)
            }
            Err(_) => Err(GW_ENCODE_TOO_LARGE),
        }
    })
}

/// Reads what gw_memory_save wrote, into a memory of the same codec and layout. On an error it is as it
/// was.
///
/// Errors: those of reading bytes, GW_DECODE_ among them GW_DECODE_LAYOUT_MISMATCH, and
/// GW_DECODE_INVALID_FIELD for a memory of other parts. GW_ERROR_OVERLAP, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_load(
    memory: *mut gw_memory,
    bytes: *const u8,
    byte_count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (kept, bytes) = (object_mut(memory)?, slice(bytes, byte_count)?);
        disjoint(kept.memory.residual(), bytes)?;
        kept.memory.load(&kept.layout, bytes).map_err(|error| error.code())
    })
}

/// Moves what `from` holds to `into`, a memory of another layout: for a model whose tensors were added,
/// removed, renamed or put in another order. Each tensor moves to the one of its name and shape; what has
/// no place is dropped, and what is new begins with zeros. What `into` held is overwritten. `*kept` and
/// `*dropped` become the elements that moved and that had no place, `*dropped_norm` the Euclidean norm of
/// what was lost; each may be NULL.
///
/// Errors: GW_ENCODE_MEMORY_INCOMPLETE when only one has momentum, GW_ERROR_OVERLAP when both are the
/// same, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_memory_remap(
    from: *const gw_memory,
    into: *mut gw_memory,
    kept: *mut usize,
    dropped: *mut usize,
    dropped_norm: *mut f64,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        if core::ptr::eq(from, into) && !from.is_null() {
            return Err(GW_ERROR_OVERLAP);
        }
        let (from, into) = (object(from)?, object_mut(into)?);
        if from.memory.momentum().is_some() != into.memory.momentum().is_some() {
            return Err(GW_ENCODE_MEMORY_INCOMPLETE);
        }
        let report = from.memory.remap(&from.layout, &into.layout, &mut into.memory, drop);
        give_if_wanted(kept, report.coordinates.kept)?;
        give_if_wanted(dropped, report.coordinates.dropped)?;
        give_if_wanted(dropped_norm, report.dropped_norm)
    })
}
