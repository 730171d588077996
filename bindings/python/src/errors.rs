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
    let own_codec = matches!(error, names::EncodeError::Experiment { .. });
    raise(error.to_string(), own_codec, EncodeError::new_err)
}

pub(crate) fn decode(error: names::DecodeError) -> PyErr {
    let own_codec = matches!(error, names::DecodeError::Experiment { .. });
    raise(error.to_string(), own_codec, DecodeError::new_err)
}

/// An error with this text. If a codec in Python is to blame, its exception is the `__cause__`, and in the
/// text as well: the text is all of it that other ranks get.
fn raise(text: String, own_codec: bool, new: fn(String) -> PyErr) -> PyErr {
    let Some(cause) = own_codec.then(own::take_raised).flatten() else { return new(text) };
    let raised = new(format!("{text}: {cause}"));
    Python::attach(|py| raised.set_cause(py, Some(cause)));
    raised
}

/// A `ValueError` with this text.
pub(crate) fn value(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}
