//! Objects in memory of the caller: a head with a tag, a value, and arrays behind it.

use super::{GW_ALIGNMENT, Outcome, address, check, give, outcome};
use crate::results::{
    GW_ERROR_NOT_AN_OBJECT, GW_ERROR_OBJECT_TOO_SMALL, GW_ERROR_WRONG_LENGTH, GW_OK, gw_result,
};
use codecs::Unit;
use codecs::state::UnitState;
use core::ffi::c_void;

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

fn check_len<T>(len: usize) -> Outcome {
    if len > isize::MAX as usize / size_of::<T>() { Err(GW_ERROR_WRONG_LENGTH) } else { Ok(()) }
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
