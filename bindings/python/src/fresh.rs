//! New `bytes` objects of many bytes.

use std::ptr;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::detached;

/// A `bytes` object with these bytes. Much is copied without the GIL, into large pages where the system has
/// them.
///
/// The system hands out new memory page by page, zeroed, at the first touch: pages of 4 KiB cost several
/// times what a codec does with the bytes. What is left of that cost is why encoders have `out=`.
pub(crate) fn bytes_object<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let len = ffi::Py_ssize_t::try_from(bytes.len()).map_err(|_| PyMemoryError::new_err(()))?;
    // SAFETY: without a source Python returns a new object that is yet to be filled, or null with an
    // exception set.
    let object =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), len))? };
    // SAFETY: that function makes objects of this type and no other.
    let object: Bound<'py, PyBytes> = unsafe { object.cast_into_unchecked() };
    let target = Target(object.as_bytes().as_ptr().cast_mut());
    detached(py, bytes.len(), move || target.fill(bytes));
    Ok(object)
}

/// The memory of a new object, which nobody else knows yet.
struct Target(*mut u8);

// SAFETY: whoever makes one waits until the thread is done with it, and reads nothing meanwhile.
unsafe impl Send for Target {}

impl Target {
    fn fill(self, bytes: &[u8]) {
        ask_for_large_pages(self.0, bytes.len());
        // SAFETY: the object has as many bytes, it is new, so nobody reads or writes them, and Python allows
        // to fill it once.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) }
    }
}

/// 512 times fewer faults.
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
