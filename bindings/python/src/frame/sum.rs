//! Values of frames, decoded and added up.

use pyo3::prelude::*;

use super::limits::Limits;
use super::{Frame, with_frame};
use crate::array::empty_array;
use crate::buffer::Output;
use crate::errors::value;
use crate::gil::detached;
use crate::layout::{self, layout_of};
use crate::names;

/// The values that a frame sends, as float32, and zeros elsewhere; in ``out`` if that is given.
///
/// ``frame`` is ``bytes``, any buffer of bytes, or a :class:`Frame`. ``layout`` is what the sender encoded
/// for. An exception leaves ``out`` as it was.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, decode
/// >>> frame = Codec("none").encode(np.array([1, 2], np.float32))
/// >>> decode(frame, 2)
/// array([1., 2.], dtype=float32)
/// >>> decode(frame, 3)
/// Traceback (most recent call last):
///     ...
/// gradwire.DecodeError: layout mismatch: frame has fingerprint b11af93a052393ed, reader has 7dbc103d44c8db2b
#[pyfunction]
#[pyo3(signature = (frame, layout, *, limits=None, out=None))]
pub(crate) fn decode<'py>(
    py: Python<'py>,
    frame: &Bound<'py, PyAny>,
    layout: &Bound<'py, PyAny>,
    limits: Option<&Limits>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let layout = layout_of(layout)?;
    let len = layout.get().layout.len();
    filled(py, len, out, |target| {
        with_frame(py, frame, layout.get(), limits, 4 * len, |frame| {
            target.fill(0.0);
            frame.add_scaled_to(1.0, target);
        })
    })
}

/// Adds ``weight`` times every value of a frame to ``acc``: the accumulator of a mean, a writable float32
/// buffer.
///
/// Without a ``layout`` it is one tensor of as many elements as ``acc``. An exception leaves ``acc`` as it
/// was.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, add
/// >>> total = np.zeros(2, np.float32)
/// >>> for worker in (1, 2):
/// ...     add(Codec("none").encode(np.array([worker, -1], np.float32)), total)
/// >>> total
/// array([ 3., -2.], dtype=float32)
#[pyfunction]
#[pyo3(signature = (frame, acc, weight=1.0, *, layout=None, limits=None))]
pub(crate) fn add(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    acc: &Bound<'_, PyAny>,
    weight: f32,
    layout: Option<&Bound<'_, PyAny>>,
    limits: Option<&Limits>,
) -> PyResult<()> {
    let mut output = Output::all_values(acc, "acc")?;
    let layout = match (layout, frame.cast::<Frame>()) {
        (Some(layout), _) => layout_of(layout)?,
        (None, Ok(frame)) => frame.get().layout.clone_ref(py),
        (None, Err(_)) => layout::flat(py, output.len())?,
    };
    if layout.get().layout.len() != output.len() {
        return Err(value(format!(
            "acc: expected {} elements, as the layout has, got {}",
            layout.get().layout.len(),
            output.len()
        )));
    }
    let bytes = 4 * output.len();
    let sum = output.f32s();
    with_frame(py, frame, layout.get(), limits, bytes, |frame| frame.add_scaled_to(weight, sum))
}

/// Divides a sum of frames by its contributors, in place; returns the first coordinate that is not finite
/// then, or ``None``. A mean that is not finite must not reach the parameters.
///
/// >>> import numpy as np
/// >>> from gradwire import divide
/// >>> total = np.array([2, -6], np.float32)
/// >>> divide(total, 4), total
/// (None, array([ 0.5, -1.5], dtype=float32))
#[pyfunction]
pub(crate) fn divide(py: Python<'_>, acc: &Bound<'_, PyAny>, contributors: usize) -> PyResult<Option<usize>> {
    if contributors == 0 {
        return Err(value("contributors=0: expected 1 or more"));
    }
    let mut acc = Output::all_values(acc, "acc")?;
    let sum = acc.f32s();
    Ok(detached(py, 4 * sum.len(), || names::divide(sum, contributors)))
}

/// `out`, or a new array, after `fill` has written to it.
pub(super) fn filled<'py>(
    py: Python<'py>,
    len: usize,
    out: Option<&Bound<'py, PyAny>>,
    fill: impl FnOnce(&mut [f32]) -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = match out {
        Some(out) => out.clone(),
        None => empty_array(py, len)?,
    };
    fill(Output::values(&array, len, "out")?.f32s())?;
    Ok(array)
}
