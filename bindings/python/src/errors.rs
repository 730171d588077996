//! Errors of the codec crate as exceptions of Python.

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::names;

create_exception!(
    gradwire,
    EncodeError,
    PyValueError,
    "A gradient that could not be encoded. The memory is as it was, bit for bit."
);
create_exception!(
    gradwire,
    DecodeError,
    PyValueError,
    "Bytes that are no frame which the caller can accept. Nothing was changed."
);

pub(crate) fn encode(error: names::EncodeError) -> PyErr {
    EncodeError::new_err(error.to_string())
}

pub(crate) fn decode(error: names::DecodeError) -> PyErr {
    DecodeError::new_err(error.to_string())
}

/// A `ValueError` with this text.
pub(crate) fn value(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}
