//! From what C passes to what Rust can use, and back. Everything is checked that can be checked: null,
//! alignment, lengths, and the tag of an object. No panic leaves a call.

#[cfg(feature = "heap")]
use crate::results::GW_ERROR_NOT_UTF8;
use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT, GW_ERROR_NULL_POINTER,
    GW_ERROR_OBJECT_TOO_SMALL, GW_ERROR_OVERLAP, GW_ERROR_WRONG_LENGTH, GW_OK, gw_result,
};
use codecs::Unit;
use codecs::state::UnitState;
use core::ffi::{c_char, c_void};
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

fn check_len<T>(len: usize) -> Outcome {
    if len > isize::MAX as usize / size_of::<T>() { Err(GW_ERROR_WRONG_LENGTH) } else { Ok(()) }
}

/// Whether an object of that tag is there.
///
/// # Safety
/// Null or readable memory.
#[inline(never)]
unsafe fn tagged(object: *const u8, tag: u64) -> gw_result {
    match address(object, GW_ALIGNMENT) {
        // SAFETY: aligned; the caller's promise is that at least a tag's bytes are there. Every object
        // begins with it.
        GW_OK if unsafe { object.cast::<u64>().read() } != tag => GW_ERROR_NOT_AN_OBJECT,
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

/// What stands in front of every object.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Head {
    /// Says what kind of object this is.
    pub(crate) tag: u64,
    /// Bytes that were allocated for it; 0 in the caller's memory.
    pub(crate) allocated: usize,
}

/// An object where the caller sees only its address.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Placed<T> {
    pub(crate) head: Head,
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
    /// The next array, of zeros. As long as the object lives, nobody else uses this memory.
    pub(crate) fn array<T: Zeros>(&mut self, len: usize) -> Outcome<&'static mut [T]> {
        check_len::<T>(len)?;
        let first = self.zeros(len * size_of::<T>(), align_of::<T>())?.cast::<T>();
        // SAFETY: just written, with what is a `T`; `next` is now behind it, so it is given out once.
        Ok(if len == 0 { &mut [] } else { unsafe { core::slice::from_raw_parts_mut(first, len) } })
    }

    /// The next array, with a copy of these values.
    #[cfg(feature = "heap")]
    pub(crate) fn copied<T: Copy>(&mut self, values: &[T]) -> Outcome<&'static mut [T]> {
        let first = self.zeros(size_of_val(values), align_of::<T>())?.cast::<T>();
        // SAFETY: room for as many values, which is theirs alone.
        unsafe { first.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        if values.is_empty() {
            return Ok(&mut []);
        }
        // SAFETY: as above, and just written.
        Ok(unsafe { core::slice::from_raw_parts_mut(first, values.len()) })
    }

    #[inline(never)]
    fn zeros(&mut self, bytes: usize, align: usize) -> Outcome<*mut u8> {
        let skip = self.next.align_offset(align);
        let whole = skip.checked_add(bytes).filter(|&whole| whole <= self.left);
        let whole = whole.ok_or(GW_ERROR_OBJECT_TOO_SMALL)?;
        let first = self.next.wrapping_add(skip);
        self.next = self.next.wrapping_add(whole);
        self.left -= whole;
        // SAFETY: inside of the caller's memory, by the check above.
        unsafe { first.write_bytes(0, bytes) };
        Ok(first)
    }
}

/// What zeros are a value of.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Zeros {}

// SAFETY: numbers.
unsafe impl Zeros for f32 {}
// SAFETY: as above.
unsafe impl Zeros for i32 {}
// SAFETY: as above.
unsafe impl Zeros for u32 {}
// SAFETY: as above.
unsafe impl Zeros for u8 {}
// SAFETY: numbers and a bool, which is then false.
unsafe impl Zeros for Unit {}
// SAFETY: words, all of which are numbers.
unsafe impl Zeros for UnitState {}

impl Rest {
    /// All that is left, as words of zeros.
    pub(crate) fn words(&mut self) -> Outcome<&'static mut [u32]> {
        // They need not skip anything: objects are multiples of words.
        self.array(self.left / size_of::<u32>())
    }
}

/// Whatever stood in this memory is no object from now on, also if the call fails.
///
/// # Safety
/// `size` bytes are there to write.
#[inline(never)]
unsafe fn vacate(memory: *mut Head, size: usize, own: usize) -> gw_result {
    match address(memory.cast(), GW_ALIGNMENT) {
        GW_OK if size < own => GW_ERROR_OBJECT_TOO_SMALL,
        GW_OK => {
            // SAFETY: aligned, and long enough: every object begins with it.
            unsafe { memory.write(Head { tag: 0, allocated: 0 }) };
            GW_OK
        }
        result => result,
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
        let own = size_of::<Placed<O::Value>>();
        // SAFETY: the caller's promise.
        outcome(unsafe { vacate(memory.cast(), size, own) })?;
        let next = memory.cast::<u8>().wrapping_add(own);
        Ok(Self { object: memory.cast(), rest: Rest { next, left: size - own } })
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
///
/// # Safety
/// Null or readable memory.
pub(crate) unsafe fn check_object<O: Object>(object: *const O) -> Outcome<*mut Placed<O::Value>> {
    // SAFETY: the caller's promise.
    outcome(unsafe { tagged(object.cast(), O::TAG) })?;
    Ok(object.cast_mut().cast())
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
