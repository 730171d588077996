//! From bytes to values.

use crate::layout::gw_layout;
use crate::limits::{gw_limits, limits_or};
use crate::raw::{
    Object, Outcome, Place, Placed, Size, boundary, give, give_if_wanted, object, slice, slice_mut,
};
use crate::results::{
    GW_ERROR_NOT_VOID, GW_ERROR_NULL_POINTER, GW_ERROR_OBJECT_TOO_SMALL, GW_ERROR_WRONG_LENGTH, gw_result,
};
use codecs::format::{Header, VoidFrame, frame_scratch_len};
use codecs::{DecodeError, Frame, LayoutRef};
use core::ffi::c_void;

/// A frame that passed every check. What is done with it cannot fail for what it holds. It needs the
/// bytes that it was read from, which nobody may change.
///
/// Threads: many may use it at once.
pub struct gw_frame(#[allow(dead_code, reason = "its place is what counts")] Placed<Parsed>);

pub(crate) struct Parsed {
    pub(crate) frame: Frame<'static>,
    len: usize,
}

impl Parsed {
    pub(crate) fn is_for(&self, layout: &LayoutRef<'_>) -> bool {
        self.len == layout.len() && self.frame.header().fingerprint == layout.fingerprint()
    }
}

impl Object for gw_frame {
    type Value = Parsed;
    const TAG: u64 = u64::from_le_bytes(*b"gw_frame");
}

/// Bytes of a header: what gw_frame_length needs.
pub const GW_HEADER_BYTES: usize = 24;

/// Of the bytes of a stream that begin a frame, GW_HEADER_BYTES at least: how many bytes the whole frame
/// has. The number comes from the sender; compare it with what you are ready to read.
///
/// Errors: GW_DECODE_TRUNCATED for fewer bytes than a header, GW_DECODE_BAD_MAGIC,
/// GW_DECODE_UNSUPPORTED_VERSION, GW_DECODE_UNKNOWN_CODEC, GW_DECODE_UNKNOWN_FLAG,
/// GW_DECODE_INVALID_FIELD, GW_ERROR_NULL_POINTER. Threads: any.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_length(bytes: *const u8, byte_count: usize, length: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let header = Header::parse(slice(bytes, byte_count)?).map_err(|error| error.code())?;
        give(length, header.frame_bytes())
    })
}

fn size_of_words(words: usize) -> Size {
    gw_frame::ROOM.and::<u32>(words)
}

/// Bytes of the object for a frame. `limits` may be NULL: then they are those that gw_limits_init makes.
/// Never more than they allow.
///
/// Errors: GW_DECODE_: everything that is wrong with the bytes, except for positions and values.
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_size(
    bytes: *const u8,
    byte_count: usize,
    layout: *const gw_layout,
    limits: *const gw_limits,
    size: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(size, needed(slice(bytes, byte_count)?, layout, limits)?) })
}

/// # Safety
/// As [`gw_frame_size`].
pub(crate) unsafe fn needed(
    bytes: &[u8],
    layout: *const gw_layout,
    limits: *const gw_limits,
) -> Outcome<usize> {
    // SAFETY: the caller's promise.
    let layout = unsafe { &object(layout)?.layout };
    // SAFETY: as above.
    let limits = unsafe { limits_or(limits, layout)? };
    size_of_words(frame_scratch_len(bytes, layout, &limits).map_err(|error| error.code())?).bytes()
}

/// Reads a frame and checks all of it, into the caller's memory. The bytes must stay as they are for as
/// long as the frame is used.
///
/// Errors: GW_DECODE_: everything that is wrong with the bytes; GW_DECODE_VOID for a void frame, which
/// gw_void_read reads; and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_init(
    memory: *mut c_void,
    size: usize,
    bytes: *const u8,
    byte_count: usize,
    layout: *const gw_layout,
    limits: *const gw_limits,
    frame: *mut *mut gw_frame,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut place = Place::<gw_frame>::open(memory, size)?;
        let (bytes, layout) = (slice(bytes, byte_count)?, &object(layout)?.layout);
        let limits = limits_or(limits, layout)?;
        let parsed = Frame::parse(bytes, layout, &limits, place.rest.words()?);
        let parsed = parsed.map_err(|error| match error {
            DecodeError::ScratchTooSmall { .. } => GW_ERROR_OBJECT_TOO_SMALL,
            error => error.code(),
        })?;
        place.write(Parsed { frame: parsed, len: layout.len() }, frame)
    })
}

/// The step that the frame belongs to.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_step(frame: *const gw_frame, step: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(step, object(frame)?.frame.step()) })
}

/// Adds `weight` times every value of the frame to a sum of `count` values, as many as the layout has:
/// coordinates ascending, each product and each sum rounded once. To have the same sum at all ranks, add
/// the frames in the order of the ranks.
///
/// Errors: GW_ERROR_WRONG_LENGTH, GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_add(
    frame: *const gw_frame,
    weight: f32,
    sum: *mut f32,
    count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (parsed, sum) = (object(frame)?, slice_mut(sum, count)?);
        if sum.len() != parsed.len {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        parsed.frame.add_scaled_to(weight, sum);
        Ok(())
    })
}

/// Called with each value of a frame, and its place in the gradient.
pub type gw_value_visitor = Option<unsafe extern "C" fn(context: *mut c_void, index: usize, value: f32)>;

/// Calls `visit` with every value that the frame holds, places ascending.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_frame_each(
    frame: *const gw_frame,
    visit: gw_value_visitor,
    context: *mut c_void,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (parsed, visit) = (object(frame)?, visit.ok_or(GW_ERROR_NULL_POINTER)?);
        for unit in parsed.frame.units() {
            let start = unit.range().start;
            unit.for_each(|index, value| visit(context, start + index, value));
        }
        Ok(())
    })
}

/// Reads a void frame: the sender has no gradient in `*step`, because of the value at `*index`. Each may
/// be NULL.
///
/// Errors: GW_ERROR_NOT_VOID for any other frame, GW_DECODE_: what is wrong with the bytes,
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_void_read(
    bytes: *const u8,
    byte_count: usize,
    layout: *const gw_layout,
    step: *mut u64,
    index: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (bytes, layout) = (slice(bytes, byte_count)?, &object(layout)?.layout);
        let void = VoidFrame::parse(bytes, layout).map_err(|error| error.code())?;
        let void = void.ok_or(GW_ERROR_NOT_VOID)?;
        give_if_wanted(step, void.step)?;
        give_if_wanted(index, void.index)
    })
}
