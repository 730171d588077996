//! What a frame says about itself, without the layout.

use crate::limits::gw_limits;
use crate::raw::{Object, Outcome, Place, Placed, boundary, give, give_if_wanted, give_text, object, slice};
use crate::results::{GW_ERROR_OUT_OF_RANGE, gw_result};
use codecs::Limits;
use codecs::format::{Outline, UnitInfo};
use core::ffi::{c_char, c_void};
use core::fmt;

/// A frame whose header, checksum and structure are correct; positions and values were not checked. For
/// inspection: it needs no layout, no memory of its own, and time in proportion to the bytes. It needs
/// the bytes that it was read from, which nobody may change.
///
/// Threads: many may use it at once.
pub struct gw_outline(#[allow(dead_code, reason = "its place is what counts")] Placed<Outline<'static>>);

impl Object for gw_outline {
    type Value = Outline<'static>;
    const TAG: u64 = u64::from_le_bytes(*b"gwoutlin");
}

/// Reading an outline takes no more than the bytes that are there.
const NO_LIMITS: Limits = Limits {
    max_elements: usize::MAX,
    max_body_bytes: usize::MAX,
    max_entries: usize::MAX,
    max_units: usize::MAX,
    max_scratch_words: usize::MAX,
    max_magnitude: f32::MAX,
};

/// Bytes of an outline.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_outline_size() -> usize {
    gw_outline::ROOM.bytes().unwrap_or(0)
}

/// Reads the outline of a frame, into the caller's memory. `limits` may be NULL: then there are none.
///
/// Errors: GW_DECODE_: what is wrong with the bytes, except for positions and values; GW_DECODE_VOID for
/// a void frame; and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_init(
    memory: *mut c_void,
    size: usize,
    bytes: *const u8,
    byte_count: usize,
    limits: *const gw_limits,
    outline: *mut *mut gw_outline,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let place = Place::<gw_outline>::open(memory, size)?;
        let limits = if limits.is_null() { NO_LIMITS } else { *object(limits)? };
        let read = Outline::read(slice(bytes, byte_count)?, &limits).map_err(|error| error.code())?;
        place.write(read, outline)
    })
}

/// The step that the frame belongs to.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_step(outline: *const gw_outline, step: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(step, object(outline)?.step()) })
}

/// The name of the codec that made the frame, as gw_codec_explain writes its text.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_codec(
    outline: *const gw_outline,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give_text(object(outline)?.header().codec.name().unwrap_or(""), out, room, needed) })
}

/// The fingerprint of the sender's layout.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_fingerprint(
    outline: *const gw_outline,
    fingerprint: *mut u64,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(fingerprint, object(outline)?.header().fingerprint) })
}

/// The end of the last unit: the sender's layout has at least that many elements. The number comes from
/// the sender; compare it with what you are ready to allocate.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_extent(outline: *const gw_outline, elements: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let end = object(outline)?.units().last().map_or(0, |unit| unit.unit.range().end);
        give(elements, end)
    })
}

/// How many units the frame has.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_units(outline: *const gw_outline, units: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(units, object(outline)?.units().count()) })
}

/// Unit number `i` of the frame, counted from 0: its place in the gradient, how many values the frame
/// holds of it, and the bytes of its body. Each of the last four may be NULL.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a unit that is not there, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_unit(
    outline: *const gw_outline,
    i: usize,
    start: *mut usize,
    elements: *mut usize,
    held: *mut usize,
    body_bytes: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let info = unit(object(outline)?, i)?;
        give_if_wanted(start, info.unit.start)?;
        give_if_wanted(elements, info.unit.len)?;
        give_if_wanted(held, info.held)?;
        give_if_wanted(body_bytes, info.body_bytes)
    })
}

/// How unit number `i` of the frame is coded, as gw_codec_explain writes its text: "sparse: positions
/// rice 41, values q8 120", with the bytes of each section.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_OUT_OF_RANGE, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_outline_unit_text(
    outline: *const gw_outline,
    i: usize,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give_text(Coding(unit(object(outline)?, i)?), out, room, needed) })
}

fn unit(outline: &Outline<'_>, i: usize) -> Outcome<UnitInfo> {
    outline.units().nth(i).ok_or(GW_ERROR_OUT_OF_RANGE)
}

/// The coding of a unit, in words.
struct Coding(UnitInfo);

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind)?;
        let sections = [("positions", self.0.index), ("values", self.0.values)];
        let mut separator = ": ";
        for (what, section) in sections {
            if let Some((name, bytes)) = section {
                write!(f, "{separator}{what} {name} {bytes}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}
