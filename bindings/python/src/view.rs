//! Memory of ours that Python may look at: through the buffer protocol, without a copy.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Elements of 4 bytes that an owner keeps where they are for as long as it lives.
#[pyclass(frozen, module = "gradwire._core", name = "_View")]
pub(crate) struct View {
    _owner: Py<PyAny>,
    pointer: NonNull<c_void>,
    /// One dimension, in elements.
    shape: ffi::Py_ssize_t,
    stride: ffi::Py_ssize_t,
    format: &'static CStr,
    is_read_only: bool,
}

// SAFETY: the pointer is only handed on, under the GIL.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// f32 values that stay at `pointer` while `owner` lives.
    pub(crate) fn read_only(owner: Py<PyAny>, pointer: NonNull<c_void>, len: usize) -> Self {
        Self {
            _owner: owner,
            pointer,
            shape: len as ffi::Py_ssize_t,
            stride: 4,
            format: c"f",
            is_read_only: true,
        }
    }

    /// The same, to be written to, in this format of 4 bytes.
    pub(crate) fn writable(
        owner: Py<PyAny>,
        pointer: NonNull<c_void>,
        len: usize,
        format: &'static CStr,
    ) -> Self {
        Self { is_read_only: false, format, ..Self::read_only(owner, pointer, len) }
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.shape as usize
    }

    /// # Safety
    /// Python calls it with a buffer to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill in"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE && this.is_read_only {
            return Err(PyBufferError::new_err("this memory is read-only"));
        }
        let asks = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is a buffer that the caller lends. Shape and stride stand in a frozen object that
        // the buffer keeps alive by `obj`, and with it the owner of the elements.
        unsafe {
            (*view).buf = this.pointer.as_ptr();
            (*view).len = 4 * this.shape;
            (*view).readonly = c_int::from(this.is_read_only);
            (*view).itemsize = 4;
            (*view).format =
                if asks(ffi::PyBUF_FORMAT) { this.format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = 1;
            (*view).shape =
                if asks(ffi::PyBUF_ND) { ptr::from_ref(&this.shape).cast_mut() } else { ptr::null_mut() };
            (*view).strides = if asks(ffi::PyBUF_STRIDES) {
                ptr::from_ref(&this.stride).cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
