//! Buffers of the CPU that Python lends: through the buffer protocol or through DLPack, without a copy.

mod dlpack;
mod element;
mod loan;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use self::element::Element;
use self::loan::{Fault, Loan};
use crate::errors::value;
use crate::names::{Grad, bf16, f16};

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
        self.0.overlaps(output.0.start(), output.0.bytes())
    }
}

/// Memory that Python lends to be written to.
pub(crate) struct Output(Loan);

impl Output {
    /// f32 values, exactly `len` of them.
    pub(crate) fn values(object: &Bound<'_, PyAny>, len: usize, what: &str) -> PyResult<Self> {
        let output = Self::all_values(object, what)?;
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
        if output.0.bytes() < len {
            let text = format!(
                "{what}: expected {len} bytes or more, the worst case of this codec, got {}",
                output.0.bytes()
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
        // SAFETY: a float is any bits, and both constructors of values checked that these are floats; `of`
        // checked that they may be written to.
        unsafe { self.0.slice_mut() }
    }

    pub(crate) fn u8s(&mut self) -> &mut [u8] {
        // SAFETY: bytes are any bits; `of` checked that they may be written to.
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

/// A contiguous copy.
fn contiguous<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static CONTIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    match object.getattr_opt(intern!(py, "contiguous"))? {
        Some(method) => method.call0(),
        None => CONTIGUOUS.import(py, "numpy", "ascontiguousarray")?.call1((object,)),
    }
}
