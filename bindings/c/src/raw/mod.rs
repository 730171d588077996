//! From what C passes to what Rust can use, and back. Everything is checked that can be checked: null,
//! alignment, lengths, and the tag of an object. No panic leaves a call.
//!
//! Here are variables, arrays and texts of the caller; `objects` has the objects that this library lays out
//! in memory of the caller.

mod objects;

#[cfg(feature = "heap")]
pub(crate) use self::objects::{Head, check_object};
pub(crate) use self::objects::{Object, Place, Placed, Rest, Size, object, object_mut, optional_mut};
#[cfg(feature = "heap")]
use crate::results::GW_ERROR_NOT_UTF8;
use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_MISALIGNED, GW_ERROR_NULL_POINTER, GW_ERROR_OVERLAP,
    GW_ERROR_WRONG_LENGTH, GW_OK, gw_result,
};
use core::ffi::c_char;
use core::fmt::{self, Write};

/// What every object's memory must be aligned to. What malloc returns is.
pub const GW_ALIGNMENT: usize = 8;

pub(crate) type Outcome<T = ()> = Result<T, gw_result>;

/// Runs the body of a call. A panic of the body becomes a result; without a heap there is nothing that could
/// unwind, and it stops the program.
pub(crate) fn boundary(body: impl FnOnce() -> Outcome) -> gw_result {
    #[cfg(feature = "heap")]
    let outcome = crate::heap::without_panic(body);
    #[cfg(not(feature = "heap"))]
    let outcome = body();
    match outcome {
        Ok(()) => GW_OK,
        Err(error) => error,
    }
}

/// Refuses null and misaligned pointers.
pub(crate) fn check<T>(pointer: *const T) -> Outcome {
    outcome(address(pointer.cast(), align_of::<T>()))
}

// What every call does is code of its own, once for all types, so that it is small.

fn outcome(result: gw_result) -> Outcome {
    if result == GW_OK { Ok(()) } else { Err(result) }
}

#[inline(never)]
fn address(pointer: *const u8, align: usize) -> gw_result {
    if pointer.is_null() {
        GW_ERROR_NULL_POINTER
    } else if pointer.addr() & (align - 1) != 0 {
        GW_ERROR_MISALIGNED
    } else {
        GW_OK
    }
}

/// Whether an array can be there.
#[inline(never)]
fn array(pointer: *const u8, len: usize, size: usize, align: usize) -> gw_result {
    match address(pointer, align) {
        GW_OK if len > isize::MAX as usize / size => GW_ERROR_WRONG_LENGTH,
        result => result,
    }
}

/// The caller's array. Null will do for an empty one.
///
/// # Safety
/// `len` elements are there to read, and nobody writes them while the slice is in use.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    outcome(array(pointer.cast(), len, size_of::<T>(), align_of::<T>()))?;
    // SAFETY: not null, aligned, of a length that can be addressed; the rest is the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, len) })
}

/// The caller's array, to write to. Null will do for an empty one.
///
/// # Safety
/// `len` elements are there to write, all of them initialised, and nobody else uses them while the slice
/// is in use.
pub(crate) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize) -> Outcome<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    outcome(array(pointer.cast(), len, size_of::<T>(), align_of::<T>()))?;
    // SAFETY: as in `slice`.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, len) })
}

/// Refuses two ranges of memory that share a byte.
pub(crate) fn disjoint<A, B>(a: &[A], b: &[B]) -> Outcome {
    outcome(overlap((a.as_ptr().cast(), size_of_val(a)), (b.as_ptr().cast(), size_of_val(b))))
}

#[inline(never)]
fn overlap(a: (*const u8, usize), b: (*const u8, usize)) -> gw_result {
    let ((a, a_len), (b, b_len)) = ((a.0.addr(), a.1), (b.0.addr(), b.1));
    let is_apart = a + a_len <= b || b + b_len <= a;
    if is_apart || a_len == 0 || b_len == 0 { GW_OK } else { GW_ERROR_OVERLAP }
}

/// The caller's text.
///
/// # Safety
/// A text that ends with a zero byte, which nobody writes while it is in use.
#[cfg(feature = "heap")]
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    check(pointer)?;
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { core::ffi::CStr::from_ptr(pointer) }.to_str().map_err(|_| GW_ERROR_NOT_UTF8)
}

/// Writes to a variable of the caller.
///
/// # Safety
/// There is room for a `T`.
pub(crate) unsafe fn give<T>(pointer: *mut T, value: T) -> Outcome {
    check(pointer)?;
    // SAFETY: not null, aligned; the rest is the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes to a variable of the caller, unless the caller does not want to know and passes null.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn give_if_wanted<T>(pointer: *mut T, value: T) -> Outcome {
    // SAFETY: as `give`.
    if pointer.is_null() { Ok(()) } else { unsafe { give(pointer, value) } }
}

/// Writes a text and its zero byte; cut off if the room is short. `needed` becomes the bytes of the whole
/// text with its zero byte.
///
/// # Safety
/// `room` bytes are there to write at `out`; `needed` is null or a variable.
pub(crate) unsafe fn give_text(
    value: impl fmt::Display,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> Outcome {
    // SAFETY: the caller's promise; C's text is bytes.
    let mut text = Text { out: unsafe { slice_mut(out.cast::<u8>(), room)? }, len: 0 };
    // Writing a text does not fail.
    let _ = write!(text, "{value}");
    let Text { out, len } = text;
    // SAFETY: the caller's promise.
    unsafe { give_if_wanted(needed, len + 1)? };
    if let Some(last) = room.checked_sub(1) {
        out[len.min(last)] = 0;
    }
    if room > len { Ok(()) } else { Err(GW_ENCODE_BUFFER_TOO_SMALL) }
}

/// A text that is written as far as there is room, and counted beyond.
struct Text<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let rest = self.out.get_mut(self.len..).unwrap_or_default();
        rest.iter_mut().zip(piece.bytes()).for_each(|(slot, byte)| *slot = byte);
        self.len += piece.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_off_and_say_what_they_need() {
        let mut out: [c_char; 8] = [0x55; 8];
        let mut needed = 0;
        // SAFETY: the lengths are those of the arrays.
        let mut write = |room| unsafe { give_text("gradw", out.as_mut_ptr(), room, &raw mut needed) };
        assert_eq!(write(6), Ok(()));
        assert_eq!(write(5), Err(GW_ENCODE_BUFFER_TOO_SMALL));
        assert_eq!(write(1), Err(GW_ENCODE_BUFFER_TOO_SMALL));
        assert_eq!(write(0), Err(GW_ENCODE_BUFFER_TOO_SMALL));
        assert_eq!(needed, 6);
        assert_eq!(out.map(|c| c as u8), *b"\0rad\0\0\x55\x55");
        // SAFETY: as above.
        assert_eq!(unsafe { give_text("gradw", out.as_mut_ptr(), 8, &raw mut needed) }, Ok(()));
        assert_eq!(out.map(|c| c as u8), *b"gradw\0\x55\x55");
    }

    #[test]
    fn buffers_that_share_a_byte_overlap() {
        let bytes = [0u8; 8];
        assert_eq!(disjoint(&bytes[..4], &bytes[4..]), Ok(()));
        assert_eq!(disjoint(&bytes[..5], &bytes[4..]), Err(GW_ERROR_OVERLAP));
        assert_eq!(disjoint(&bytes[4..], &bytes[..5]), Err(GW_ERROR_OVERLAP));
        assert_eq!(disjoint(&bytes[2..2], &bytes[..5]), Ok(()), "nothing overlaps with nothing");
    }
}
