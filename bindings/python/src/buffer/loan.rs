//! Memory that a Python object lends, through the buffer protocol or through DLPack.

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::dlpack;
use super::element::Element;
use crate::errors::value;

/// Keeps the memory where it is.
enum Held {
    Buffer(#[allow(dead_code, reason = "dropped with the loan")] PyUntypedBuffer),
    Capsule(#[allow(dead_code, reason = "dropped with the loan")] Py<PyCapsule>),
}

/// A contiguous stretch of memory that a Python object lends until this is dropped.
pub(super) struct Loan {
    pointer: NonNull<c_void>,
    bytes: usize,
    pub(super) element: Element,
    pub(super) is_read_only: bool,
    _held: Held,
}

// SAFETY: what holds the memory may go from thread to thread, and so may an address. Slices of the memory
// borrow the loan, shared or alone, in whichever thread.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Loan {
    /// Elements as `dtype` names them, or as the object does. `what` begins the text of errors.
    pub(super) fn of(object: &Bound<'_, PyAny>, dtype: Option<&str>, what: &str) -> Result<Self, Fault> {
        let mut loan = match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(object, buffer, what)?,
            Err(_) => Self::of_other(object, what)?,
        };
        loan.element = loan.element.named(dtype)?;
        let size = loan.element.bytes();
        if loan.bytes % size != 0 {
            return Err(value(format!(
                "{what}: {} bytes are no whole number of {}",
                loan.bytes,
                loan.element.name()
            ))
            .into());
        }
        if !loan.start().is_multiple_of(size) {
            return Err(value(format!("{what}: expected memory aligned to {size} bytes")).into());
        }
        Ok(loan)
    }

    fn of_buffer(object: &Bound<'_, PyAny>, buffer: PyUntypedBuffer, what: &str) -> Result<Self, Fault> {
        let format = buffer.format();
        let Some(element) = Element::from_format(format.to_bytes(), buffer.item_size()) else {
            let name = dtype_name(object).unwrap_or_else(|| format!("format '{}'", format.to_string_lossy()));
            return Err(wrong_dtype(what, &name).into());
        };
        if !buffer.is_c_contiguous() {
            return Err(not_contiguous(what));
        }
        let bytes = buffer.len_bytes();
        let pointer = pointer_of(buffer.buf_ptr(), bytes, what)?;
        Ok(Self { pointer, bytes, element, is_read_only: buffer.readonly(), _held: Held::Buffer(buffer) })
    }

    /// Tensors, and arrays whose elements the buffer protocol cannot name.
    fn of_other(object: &Bound<'_, PyAny>, what: &str) -> Result<Self, Fault> {
        let py = object.py();
        // `ml_dtypes`: numpy lends such an array only as integers.
        if dtype_name(object).as_deref() == Some("bfloat16")
            && object.hasattr(intern!(py, "view"))?
            && !object.hasattr(intern!(py, "detach"))?
        {
            let bits = object.call_method1(intern!(py, "view"), ("uint16",))?;
            let loan = Self::of_buffer(&bits, PyUntypedBuffer::get(&bits)?, what)?;
            return Ok(Self { element: Element::Bf16, ..loan });
        }
        if !object.hasattr(intern!(py, "__dlpack__"))? {
            let name = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "{what}: expected a CPU buffer of float32, float16 or bfloat16 (numpy, torch, memoryview, DLPack), got {name}"
            ))
            .into());
        }
        Self::of_dlpack(object, what)
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, what: &str) -> Result<Self, Fault> {
        let py = object.py();
        let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, _): (i32, i32) = device.extract()?;
        if !dlpack::is_host(kind) {
            return Err(value(format!(
                "{what}: expected a buffer on the CPU, got one on {}",
                device_of(object, kind)
            ))
            .into());
        }
        // Tensors that record their history refuse to lend it; without the history it is the same memory.
        let object = match object.getattr_opt(intern!(py, "detach"))? {
            Some(detach) => detach.call0()?,
            None => object.clone(),
        };
        let capsule =
            object.call_method0(intern!(py, "__dlpack__"))?.cast_into::<PyCapsule>().map_err(PyErr::from)?;
        let tensor = dlpack::read(&capsule)?;
        let Some(element) = tensor.element else {
            return Err(wrong_dtype(what, &tensor.dtype_name()).into());
        };
        if !tensor.is_contiguous {
            return Err(not_contiguous(what));
        }
        let bytes = tensor.len * element.bytes();
        let pointer = pointer_of(tensor.data, bytes, what)?;
        Ok(Self { pointer, bytes, element, is_read_only: false, _held: Held::Capsule(capsule.unbind()) })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes / self.element.bytes()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> usize {
        self.pointer.as_ptr() as usize
    }

    /// Whether any byte belongs to both.
    pub(super) fn overlaps(&self, start: usize, bytes: usize) -> bool {
        self.start() < start + bytes && start < self.start() + self.bytes
    }

    /// # Safety
    /// `T` has the size that the element has, or half or a quarter of it, and any bits are a `T`. Nobody
    /// writes to the memory while the slice is in use.
    pub(super) unsafe fn slice<T>(&self) -> &[T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: the exporter keeps `bytes` bytes alive for as long as the loan; `of` checked alignment; the
        // caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().cast(), len) }
    }

    /// # Safety
    /// As [`slice`](Self::slice); nobody reads the memory either, and it is not read-only.
    pub(super) unsafe fn slice_mut<T>(&mut self) -> &mut [T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: as `slice`; the caller promises that the memory may be written to.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast(), len) }
    }
}

fn pointer_of(pointer: *mut c_void, bytes: usize, what: &str) -> PyResult<NonNull<c_void>> {
    match NonNull::new(pointer) {
        Some(pointer) if bytes > 0 => Ok(pointer),
        // An empty slice may begin anywhere that is aligned.
        _ if bytes == 0 => Ok(NonNull::<u64>::dangling().cast()),
        _ => Err(value(format!("{what}: a buffer without memory"))),
    }
}

/// Why memory was not lent.
pub(super) enum Fault {
    /// It is not contiguous. A copy of it would be lent.
    NotContiguous(PyErr),
    Other(PyErr),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Self::Other(error)
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NotContiguous(error) | Fault::Other(error) => error,
        }
    }
}

fn not_contiguous(what: &str) -> Fault {
    Fault::NotContiguous(value(format!("{what}: expected contiguous memory in row-major order")))
}

fn wrong_dtype(what: &str, got: &str) -> PyErr {
    PyTypeError::new_err(format!("{what}: expected float32, float16 or bfloat16, got {got}"))
}

/// The name of the object's dtype, if it has one.
fn dtype_name(object: &Bound<'_, PyAny>) -> Option<String> {
    let dtype = object.getattr_opt(intern!(object.py(), "dtype")).ok()??;
    Some(dtype.getattr_opt(intern!(object.py(), "name")).ok()??.to_string())
}

fn device_of(object: &Bound<'_, PyAny>, kind: i32) -> String {
    let device = object.getattr_opt(intern!(object.py(), "device")).ok().flatten();
    device.map_or_else(|| format!("a device of kind {kind}"), |device| device.to_string())
}
