//! From what C passes to what Rust can use, and back. Everything is checked that can be checked: null,
//! alignment, lengths, and the tag of an object. No panic leaves a call.

use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_MISALIGNED, GW_ERROR_NO_HEAP, GW_ERROR_NOT_ALLOCATED,
    GW_ERROR_NOT_AN_OBJECT, GW_ERROR_NOT_UTF8, GW_ERROR_NULL_POINTER, GW_ERROR_OBJECT_TOO_SMALL,
    GW_ERROR_OVERLAP, GW_ERROR_PANIC, GW_ERROR_WRONG_LENGTH, GW_OK, gw_result,
};
use std::alloc;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What every object's memory must be aligned to. What malloc returns is.
pub const GW_ALIGNMENT: usize = 8;

pub(crate) type Outcome<T = ()> = Result<T, gw_result>;

/// Runs the body of a call. A panic of the body becomes a result.
pub(crate) fn boundary(body: impl FnOnce() -> Outcome) -> gw_result {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => GW_OK,
        Ok(Err(error)) => error,
        Err(payload) => {
            // Its destructor could panic again.
            std::mem::forget(payload);
            GW_ERROR_PANIC
        }
    }
}

/// Refuses null and misaligned pointers.
fn check<T>(pointer: *const T) -> Outcome {
    if pointer.is_null() {
        Err(GW_ERROR_NULL_POINTER)
    } else if !pointer.is_aligned() {
        Err(GW_ERROR_MISALIGNED)
    } else {
        Ok(())
    }
}

fn check_len<T>(len: usize) -> Outcome {
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    bytes.map(drop).ok_or(GW_ERROR_WRONG_LENGTH)
}

/// The caller's array. Null will do for an empty one.
///
/// # Safety
/// `len` elements are there to read, and nobody writes them while the slice is in use.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer)?;
    check_len::<T>(len)?;
    // SAFETY: not null, aligned, of a length that can be addressed; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
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
    check(pointer)?;
    check_len::<T>(len)?;
    // SAFETY: as in `slice`.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Refuses two ranges of memory that share a byte.
pub(crate) fn disjoint<A, B>(a: &[A], b: &[B]) -> Outcome {
    let (a, b) = (a.as_ptr_range(), b.as_ptr_range());
    let apart = a.end.cast::<u8>() <= b.start.cast() || b.end.cast::<u8>() <= a.start.cast();
    let empty = a.start == a.end || b.start == b.end;
    if apart || empty { Ok(()) } else { Err(GW_ERROR_OVERLAP) }
}

/// The caller's text.
///
/// # Safety
/// A text that ends with a zero byte, which nobody writes while it is in use.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    check(pointer)?;
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| GW_ERROR_NOT_UTF8)
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
    let mut whole = String::new();
    // Writing to a string does not fail.
    let _ = write!(whole, "{value}");
    // SAFETY: the caller's promise; C's text is bytes.
    let out = unsafe { slice_mut(out.cast::<u8>(), room)? };
    // SAFETY: the caller's promise.
    unsafe { give_if_wanted(needed, whole.len() + 1)? };
    if let Some((last, front)) = out.split_last_mut() {
        let len = whole.len().min(front.len());
        front[..len].copy_from_slice(&whole.as_bytes()[..len]);
        *front.get_mut(len).unwrap_or(last) = 0;
    }
    if room > whole.len() { Ok(()) } else { Err(GW_ENCODE_BUFFER_TOO_SMALL) }
}

/// What stands in front of every object.
#[repr(C)]
#[derive(Debug)]
struct Head {
    /// Says what kind of object this is.
    tag: u64,
    /// Bytes that were allocated for it; 0 in the caller's memory.
    allocated: usize,
}

/// An object where the caller sees only its address.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Placed<T> {
    head: Head,
    pub(crate) value: T,
}

/// A type of the header. It has one field, which is `Placed`.
pub(crate) trait Object: Sized {
    type Value;
    const TAG: u64;

    /// Bytes of the object alone, to which an object adds what it lays out behind itself.
    const ROOM: Size = Size(Some(size_of::<Placed<Self::Value>>()));
}

/// The size of an object, as it is added up. `None` after an overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(Option<usize>);

impl Size {
    /// With an array behind what is there.
    pub(crate) fn and<T>(self, len: usize) -> Self {
        let aligned = self.0.and_then(|bytes| bytes.checked_next_multiple_of(align_of::<T>()));
        let array = len.checked_mul(size_of::<T>());
        Self(aligned.zip(array).and_then(|(bytes, array)| bytes.checked_add(array)))
    }

    pub(crate) fn bytes(self) -> Outcome<usize> {
        let bytes = self.0.and_then(|bytes| bytes.checked_next_multiple_of(GW_ALIGNMENT));
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(GW_ERROR_WRONG_LENGTH)
    }
}

/// The rest of the memory behind an object.
#[derive(Debug)]
pub(crate) struct Rest {
    next: *mut u8,
    left: usize,
}

impl Rest {
    /// The next array, filled with a value. As long as the object lives, nobody else uses this memory.
    pub(crate) fn array<T: Copy>(&mut self, len: usize, value: T) -> Outcome<&'static mut [T]> {
        let skip = self.next.align_offset(align_of::<T>());
        check_len::<T>(len)?;
        let bytes = skip.checked_add(len * size_of::<T>()).filter(|&bytes| bytes <= self.left);
        let bytes = bytes.ok_or(GW_ERROR_OBJECT_TOO_SMALL)?;
        let first = self.next.wrapping_add(skip).cast::<T>();
        self.next = self.next.wrapping_add(bytes);
        self.left -= bytes;
        for i in 0..len {
            // SAFETY: inside of the caller's memory, by the check above; aligned.
            unsafe { first.wrapping_add(i).write(value) };
        }
        // SAFETY: just initialised; `next` is now behind it, so it is given out once.
        Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(first, len) } })
    }
}

/// Opens the caller's memory for an object of type `O`.
pub(crate) struct Place<O: Object> {
    object: *mut Placed<O::Value>,
    pub(crate) rest: Rest,
}

impl<O: Object> Place<O> {
    /// # Safety
    /// `size` bytes at `memory` are there to write, and nobody else uses them until the object is no
    /// longer used.
    pub(crate) unsafe fn open(memory: *mut c_void, size: usize) -> Outcome<Self> {
        const { assert!(align_of::<Placed<O::Value>>() <= GW_ALIGNMENT) };
        check(memory.cast::<u64>())?;
        let own = size_of::<Placed<O::Value>>();
        let left = size.checked_sub(own).ok_or(GW_ERROR_OBJECT_TOO_SMALL)?;
        let object = memory.cast::<Placed<O::Value>>();
        // Whatever stood here is no object from now on, also if the call fails. SAFETY: inside of the
        // caller's memory.
        unsafe { (&raw mut (*object).head).write(Head { tag: 0, allocated: 0 }) };
        Ok(Self { object, rest: Rest { next: memory.cast::<u8>().wrapping_add(own), left } })
    }

    /// Writes the object, and its address to the caller's variable.
    ///
    /// # Safety
    /// `out` is a variable of the caller.
    pub(crate) unsafe fn write(self, value: O::Value, out: *mut *mut O) -> Outcome {
        check(out)?;
        let head = Head { tag: O::TAG, allocated: 0 };
        // SAFETY: `open` checked room and alignment.
        unsafe { self.object.write(Placed { head, value }) };
        // SAFETY: the caller's promise.
        unsafe { give(out, self.object.cast()) }
    }
}

/// Refuses what is no object of the type.
unsafe fn check_object<O: Object>(object: *const O) -> Outcome<*mut Placed<O::Value>> {
    check(object.cast::<u64>())?;
    let placed = object.cast_mut().cast::<Placed<O::Value>>();
    // SAFETY: aligned; the caller's promise is that at least a tag's bytes are there. Every object begins
    // with it.
    let tag = unsafe { object.cast::<u64>().read() };
    if tag == O::TAG { Ok(placed) } else { Err(GW_ERROR_NOT_AN_OBJECT) }
}

/// An object that is only read.
///
/// # Safety
/// Null or readable memory; if an object is there, nobody changes it meanwhile.
pub(crate) unsafe fn object<'a, O: Object>(object: *const O) -> Outcome<&'a O::Value> {
    // SAFETY: the tag says that `Place::write` wrote a value of the type.
    unsafe { Ok(&(*check_object(object)?).value) }
}

/// An object that is changed.
///
/// # Safety
/// Null or readable memory; if an object is there, nobody else uses it meanwhile.
pub(crate) unsafe fn object_mut<'a, O: Object>(object: *mut O) -> Outcome<&'a mut O::Value> {
    // SAFETY: as `object`.
    unsafe { Ok(&mut (*check_object(object)?).value) }
}

/// An object that may be left out.
///
/// # Safety
/// As [`object_mut`].
pub(crate) unsafe fn optional_mut<'a, O: Object>(object: *mut O) -> Outcome<Option<&'a mut O::Value>> {
    // SAFETY: as `object_mut`.
    if object.is_null() { Ok(None) } else { unsafe { object_mut(object).map(Some) } }
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

#[cfg(test)]
mod tests {
    use super::*;

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
