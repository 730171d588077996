//! New `bytes` objects of many bytes.

use std::{ptr, slice};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::gil::detached;

/// A `bytes` object with these bytes. If they are many, they are copied without the GIL.
pub(crate) fn bytes_object<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let mut fresh = Fresh::new(py, bytes.len())?;
    let target = fresh.bytes();
    detached(py, bytes.len(), move || target.copy_from_slice(bytes));
    Ok(fresh.done(bytes.len()))
}

/// A `bytes` object that nobody else knows yet, to be filled once, in large pages where the system has them.
///
/// The system hands out new memory page by page, zeroed, at the first touch: pages of 4 KiB cost several
/// times what a codec does with the bytes. Because of the part of that cost that remains, encoders have
/// `out=`.
pub(crate) struct Fresh<'py>(Bound<'py, PyBytes>);

impl<'py> Fresh<'py> {
    pub(crate) fn new(py: Python<'py>, len: usize) -> PyResult<Self> {
        let len = ffi::Py_ssize_t::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without a source Python returns a new object that is yet to be filled, or null with an
        // exception set.
        let object =
            unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), len))? };
        // SAFETY: that function makes objects of this type and no other.
        let object: Bound<'py, PyBytes> = unsafe { object.cast_into_unchecked() };
        ask_for_large_pages(object.as_bytes().as_ptr().cast_mut(), object.as_bytes().len());
        Ok(Self(object))
    }

    /// The bytes that the allocator left there, to be overwritten.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = (self.0.as_bytes().as_ptr().cast_mut(), self.0.as_bytes().len());
        // SAFETY: Python allocated as many bytes and allows to fill a new object, which nobody else has:
        // `done` gives it away. Any bits are bytes.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    /// The object, with its first `len` bytes. Further bytes stay allocated: nothing is copied.
    ///
    /// Panics when it has fewer.
    pub(crate) fn done(mut self, len: usize) -> Bound<'py, PyBytes> {
        let all = self.bytes();
        assert!(len <= all.len(), "a bytes object does not grow");
        if len < all.len() {
            // All objects of this type end with a zero byte.
            all[len] = 0;
            let object = self.0.as_ptr().cast::<ffi::PyVarObject>();
            // SAFETY: an object of this type begins with that struct, which is part of the stable ABI. Nobody
            // else has the object, so nobody asked for its length or its hash. Python gives memory back by
            // its address, not by this length; `_PyBytes_Resize` sets the field too.
            unsafe { (*object).ob_size = len as ffi::Py_ssize_t };
        }
        self.0
    }
}

/// Asks for large pages, which cause 512 times fewer faults.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(start: *mut u8, len: usize) {
    const LARGE: usize = 2 << 20;
    let skipped = start.align_offset(LARGE);
    if let Some(inner) =
        len.checked_sub(skipped).map(|inner| inner / LARGE * LARGE).filter(|inner| *inner > 0)
    {
        // SAFETY: whole pages within the object; this advice changes no byte, and a system without such pages
        // refuses it.
        let _ = unsafe { libc::madvise(start.add(skipped).cast(), inner, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: *mut u8, _: usize) {}
