//! Arrays of numpy.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

/// `numpy.empty(len, dtype=float32)`
pub(crate) fn empty_array(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyAny>> {
    empty(py, len, "f4")
}

/// A numpy array over the memory of `view`, as long as the view lives.
pub(crate) fn array_over<'py>(view: Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = view.py();
    if view.len()? == 0 {
        return empty(py, 0, dtype);
    }
    FROM_BUFFER.import(py, "numpy", "frombuffer")?.call1((view, dtype))
}

/// The array in another shape, over the same memory.
pub(crate) fn reshaped<'py>(array: Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    array.call_method1(intern!(py, "reshape"), (PyTuple::new(py, shape)?,))
}

fn empty<'py>(py: Python<'py>, len: usize, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    EMPTY.import(py, "numpy", "empty")?.call1((len, dtype))
}
