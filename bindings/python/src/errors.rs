//! Errors of the codec crate as exceptions of Python.

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::names;
use crate::own;

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

create_exception!(
    gradwire,
    ExchangeError,
    PyRuntimeError,
    "A step that did not become a mean at all ranks: another rank failed, is gone, or differs."
);

/// A gradient of this rank that cannot be encoded is an :class:`EncodeError`.
pub(crate) fn exchange(error: names::ExchangeError) -> PyErr {
    match error {
        names::ExchangeError::Encode(error) => encode(error),
        error => ExchangeError::new_err(error.to_string()),
    }
}

pub(crate) fn encode(error: names::EncodeError) -> PyErr {
    let raised = EncodeError::new_err(error.to_string());
    if matches!(error, names::EncodeError::Experiment { .. }) { caused(raised) } else { raised }
}

pub(crate) fn decode(error: names::DecodeError) -> PyErr {
    let raised = DecodeError::new_err(error.to_string());
    if matches!(error, names::DecodeError::Experiment { .. }) { caused(raised) } else { raised }
}

/// With the exception that a codec in Python raised, if it is to blame, as `__cause__`.
fn caused(raised: PyErr) -> PyErr {
    if let Some(cause) = own::take_raised() {
        Python::attach(|py| raised.set_cause(py, Some(cause)));
    }
    raised
}

/// A `ValueError` with this text.
pub(crate) fn value(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}
