//! Buffers of the CPU that Python lends: through the buffer protocol or through DLPack, without a copy.

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyTuple};

use crate::dlpack;
use crate::errors::value;
use crate::names::{Grad, bf16, f16};

/// Work on fewer bytes keeps the GIL, because letting go of it would take longer.
const DETACH_ABOVE_BYTES: usize = 64 << 10;

/// Runs `work` without the GIL if it is about many bytes.
pub(crate) fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes > DETACH_ABOVE_BYTES { py.detach(work) } else { work() }
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    /// 16 bits without a meaning of their own.
    Bits16,
    Byte,
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 | Self::Bits16 => 2,
            Self::Byte => 1,
        }
    }

    /// From the format of the `struct` module; `None` for what no codec takes.
    fn from_format(format: &[u8], item_bytes: usize) -> Option<Self> {
        let format = match format {
            [b'@' | b'=', rest @ ..] => rest,
            [b'<', rest @ ..] if cfg!(target_endian = "little") => rest,
            [b'>' | b'!', rest @ ..] if cfg!(target_endian = "big") => rest,
            format => format,
        };
        let element = match format {
            b"f" => Self::F32,
            b"e" => Self::F16,
            b"H" | b"h" => Self::Bits16,
            b"B" | b"b" | b"c" => Self::Byte,
            _ => return None,
        };
        (element.bytes() == item_bytes).then_some(element)
    }

    /// The element as `dtype=` names it.
    fn named(self, dtype: Option<&str>) -> PyResult<Self> {
        let wanted = match dtype {
            None => return Ok(self),
            Some("f32" | "float32") => Self::F32,
            Some("f16" | "float16") => Self::F16,
            Some("bf16" | "bfloat16") => Self::Bf16,
            Some(other) => return Err(value(format!("dtype='{other}': expected one of f32 f16 bf16"))),
        };
        let fits = self == wanted
            || self == Self::Byte
            || (self == Self::Bits16 && matches!(wanted, Self::F16 | Self::Bf16));
        if fits {
            Ok(wanted)
        } else {
            let text = format!("expected elements that can be {}, got {}", wanted.name(), self.name());
            Err(PyTypeError::new_err(text))
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::Bits16 => "16-bit integers",
            Self::Byte => "bytes",
        }
    }
}

/// Keeps the memory where it is.
enum Held {
    Buffer(#[allow(dead_code, reason = "dropped with the loan")] PyUntypedBuffer),
    Capsule(#[allow(dead_code, reason = "dropped with the loan")] Py<PyCapsule>),
}

/// A contiguous stretch of memory that a Python object lends until this is dropped.
pub(crate) struct Loan {
    pointer: NonNull<c_void>,
    bytes: usize,
    element: Element,
    is_read_only: bool,
    _held: Held,
}

// SAFETY: what holds the memory may go from thread to thread, and so may an address. Slices of the memory
// borrow the loan, shared or alone, in whichever thread.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Loan {
    /// Elements as `dtype` names them, or as the object does. `what` begins the text of errors.
    fn of(object: &Bound<'_, PyAny>, dtype: Option<&str>, what: &str) -> Result<Self, Fault> {
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
        if !(loan.pointer.as_ptr() as usize).is_multiple_of(size) {
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

    fn len(&self) -> usize {
        self.bytes / self.element.bytes()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether any byte belongs to both.
    fn overlaps(&self, start: usize, bytes: usize) -> bool {
        let own = self.pointer.as_ptr() as usize;
        own < start + bytes && start < own + self.bytes
    }

    /// # Safety
    /// `T` has the size that the element has, or half or a quarter of it, and any bits are a `T`. Nobody
    /// writes to the memory while the slice is in use.
    unsafe fn slice<T>(&self) -> &[T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: the exporter keeps `bytes` bytes alive for as long as the loan; `of` checked alignment; the
        // caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().cast(), len) }
    }

    /// # Safety
    /// As [`slice`](Self::slice), and nobody reads the memory either.
    unsafe fn slice_mut<T>(&mut self) -> &mut [T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: as `slice`, and the memory is writable: `Output::of` checked it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().cast(), len) }
    }
}

/// A gradient that Python lends.
///
/// Whoever holds the object must not write to it while it is encoded. Python's types cannot say so; the
/// documentation does.
pub(crate) struct Gradient(Loan);

impl Gradient {
    pub(crate) fn of(object: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<Self> {
        let loan = match Loan::of(object, dtype, "grad") {
            Err(Fault::NotContiguous(_)) => Loan::of(&contiguous(object)?, dtype, "grad")?,
            loan => loan?,
        };
        match loan.element {
            Element::F32 | Element::F16 | Element::Bf16 => Ok(Self(loan)),
            Element::Byte => Err(PyTypeError::new_err("grad: bytes need a dtype='f32', 'f16' or 'bf16'")),
            Element::Bits16 => Err(PyTypeError::new_err(
                "grad: 16-bit integers need a dtype='bf16' (or 'f16') to be read as",
            )),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(crate) fn grad(&self) -> Grad<'_> {
        // SAFETY: the element says which of the three it is; any bits are one of them.
        unsafe {
            match self.0.element {
                Element::F16 => Grad::F16(self.0.slice::<f16>()),
                Element::Bf16 => Grad::Bf16(self.0.slice::<bf16>()),
                _ => Grad::F32(self.0.slice::<f32>()),
            }
        }
    }

    /// Whether `output` stands in the same memory.
    pub(crate) fn meets(&self, output: &Output) -> bool {
        self.0.overlaps(output.0.pointer.as_ptr() as usize, output.0.bytes)
    }
}

/// Memory that Python lends to be written to.
pub(crate) struct Output(Loan);

impl Output {
    /// f32 values, exactly `len` of them.
    pub(crate) fn values(object: &Bound<'_, PyAny>, len: usize, what: &str) -> PyResult<Self> {
        let output = Self::of(object, what)?;
        if output.0.element != Element::F32 {
            return Err(PyTypeError::new_err(format!(
                "{what}: expected float32, got {}",
                output.0.element.name()
            )));
        }
        if output.0.len() == len {
            Ok(output)
        } else {
            Err(value(format!("{what}: expected {len} elements, as the layout has, got {}", output.0.len())))
        }
    }

    /// f32 values, as many as there are.
    pub(crate) fn all_values(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let output = Self::of(object, what)?;
        if output.0.element == Element::F32 {
            Ok(output)
        } else {
            Err(PyTypeError::new_err(format!("{what}: expected float32, got {}", output.0.element.name())))
        }
    }

    /// Bytes, at least `len` of them.
    pub(crate) fn at_least(object: &Bound<'_, PyAny>, len: usize, what: &str) -> PyResult<Self> {
        let output = Self::of(object, what)?;
        if output.0.element != Element::Byte {
            return Err(PyTypeError::new_err(format!(
                "{what}: expected bytes (uint8), got {}",
                output.0.element.name()
            )));
        }
        if output.0.bytes < len {
            let text = format!(
                "{what}: expected {len} bytes or more, the worst case of this codec, got {}",
                output.0.bytes
            );
            return Err(value(text));
        }
        Ok(output)
    }

    fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let loan = Loan::of(object, None, what)?;
        if loan.is_read_only {
            return Err(value(format!("{what}: expected a writable buffer, got a read-only one")));
        }
        Ok(Self(loan))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn f32s(&mut self) -> &mut [f32] {
        // SAFETY: a float is any bits, and both constructors of values checked that these are floats.
        unsafe { self.0.slice_mut() }
    }

    pub(crate) fn u8s(&mut self) -> &mut [u8] {
        // SAFETY: bytes are any bits.
        unsafe { self.0.slice_mut() }
    }

    /// Whether any of these bytes stand in the same memory.
    pub(crate) fn meets(&self, bytes: &[u8]) -> bool {
        self.0.overlaps(bytes.as_ptr() as usize, bytes.len())
    }
}

/// Values of a saved state: f32 and contiguous.
pub(crate) fn f32s_of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<f32>> {
    let loan = Loan::of(object, None, what)?;
    if loan.element != Element::F32 {
        return Err(PyTypeError::new_err(format!("{what}: expected float32, got {}", loan.element.name())));
    }
    // SAFETY: the element is f32; the GIL is held while the values are copied.
    Ok(unsafe { loan.slice::<f32>() }.to_vec())
}

/// The bytes of any buffer, copied.
pub(crate) fn bytes_of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u8>> {
    let loan = Loan::of(object, None, what)?;
    if loan.element != Element::Byte {
        return Err(PyTypeError::new_err(format!("{what}: expected bytes, got {}", loan.element.name())));
    }
    // SAFETY: bytes are any bits; the GIL is held while they are copied.
    Ok(unsafe { loan.slice::<u8>() }.to_vec())
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
enum Fault {
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

/// A contiguous copy.
fn contiguous<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static CONTIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    match object.getattr_opt(intern!(py, "contiguous"))? {
        Some(method) => method.call0(),
        None => CONTIGUOUS.import(py, "numpy", "ascontiguousarray")?.call1((object,)),
    }
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

/// `numpy.empty(len, dtype=float32)`
pub(crate) fn empty_array(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    EMPTY.import(py, "numpy", "empty")?.call1((len, "f4"))
}

/// A numpy array over the memory of `view`, as long as the view lives.
pub(crate) fn array_over<'py>(view: Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = view.py();
    if view.len()? == 0 {
        return EMPTY_OF.import(py, "numpy", "empty")?.call1((0, dtype));
    }
    FROM_BUFFER.import(py, "numpy", "frombuffer")?.call1((view, dtype))
}

static EMPTY_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The array in another shape, over the same memory.
pub(crate) fn reshaped<'py>(array: Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    array.call_method1(intern!(py, "reshape"), (PyTuple::new(py, shape)?,))
}
