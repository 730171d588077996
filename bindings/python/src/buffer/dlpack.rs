//! The part of DLPack that a reader of CPU tensors needs: version 0.x, which every exporter still speaks.

use std::ffi::{CStr, c_void};

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use super::element::Element;
use crate::errors::value;

const CPU: i32 = 1;
/// Pinned memory of the host, of CUDA and of ROCm.
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;

const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

const NAME: &CStr = c"dltensor";

/// `DLTensor` of dlpack.h, at the front of `DLManagedTensor`.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device_kind: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A tensor that a capsule lends, for as long as the capsule lives.
pub(super) struct Tensor {
    pub(super) data: *mut c_void,
    pub(super) len: usize,
    /// `None` for a type that no codec takes.
    pub(super) element: Option<Element>,
    pub(super) is_contiguous: bool,
    code: u8,
    bits: u8,
}

impl Tensor {
    pub(super) fn dtype_name(&self) -> String {
        let kind = match self.code {
            0 => "int",
            1 => "uint",
            FLOAT => "float",
            BFLOAT => "bfloat",
            5 => "complex",
            6 => "bool",
            _ => "elements of ",
        };
        format!("{kind}{}", self.bits)
    }
}

/// Whether the processor can read it where it is.
pub(super) fn is_host(kind: i32) -> bool {
    matches!(kind, CPU | CUDA_HOST | ROCM_HOST)
}

/// The tensor in the capsule of `__dlpack__`. The capsule is not consumed: dropping it returns the tensor.
pub(super) fn read(capsule: &Bound<'_, PyCapsule>) -> PyResult<Tensor> {
    let pointer = capsule.pointer_checked(Some(NAME))?.cast::<RawTensor>();
    // SAFETY: a capsule of this name holds a `DLManagedTensor`, which begins with these fields.
    let raw = unsafe { pointer.as_ref() };
    let dimensions = usize::try_from(raw.dimensions).map_err(|_| value("a tensor of negative dimensions"))?;
    // SAFETY: both have one entry a dimension; strides may be absent, which means row-major order.
    let (shape, strides) = unsafe { (entries(raw.shape, dimensions), entries(raw.strides, dimensions)) };
    let mut len = 1usize;
    for &size in shape.unwrap_or_default() {
        let size = usize::try_from(size).map_err(|_| value("a tensor of negative length"))?;
        len = len.checked_mul(size).ok_or_else(|| value("a tensor larger than memory"))?;
    }
    let element = match (raw.code, raw.bits, raw.lanes) {
        (FLOAT, 32, 1) => Some(Element::F32),
        (FLOAT, 16, 1) => Some(Element::F16),
        (BFLOAT, 16, 1) => Some(Element::Bf16),
        // Unsigned bytes.
        (1, 8, 1) => Some(Element::Byte),
        _ => None,
    };
    let is_contiguous =
        len == 0 || strides.is_none_or(|strides| is_row_major(shape.unwrap_or_default(), strides));
    let data = raw.data.cast::<u8>().wrapping_add(raw.byte_offset as usize).cast();
    Ok(Tensor { data, len, element, is_contiguous, code: raw.code, bits: raw.bits })
}

/// # Safety
/// `pointer` is null or stands at `len` entries that live for `'a`.
unsafe fn entries<'a>(pointer: *const i64, len: usize) -> Option<&'a [i64]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Whether elements follow each other; the stride of a dimension of one element means nothing.
fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected = expected.saturating_mul(size);
        fits
    })
}
