//! The fields of a frame.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Bytes, Frame};
use crate::errors;
use crate::gil::detached;
use crate::layout::layout_of;
use crate::names::{self, Decoder, Header, LayoutRef};

/// Every field of a frame, and of its units; needs no layout, unless positions are coded by tensors and rows.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, inspect
/// >>> fields = inspect(Codec("f16").encode(np.zeros(100, np.float32), step=3))
/// >>> fields["codec"], fields["step"], fields["nbytes"], round(fields["ratio"], 2)
/// ('f16', 3, 230, 1.74)
/// >>> fields["units"]
/// [{'id': 0, 'start': 0, 'len': 100, 'kind': 'dense', 'held': 100, 'nbytes': 201, 'values': ('f16', 200)}]
#[pyfunction]
#[pyo3(signature = (frame, layout=None, *, max_elements=268435456))]
pub(crate) fn inspect<'py>(
    py: Python<'py>,
    frame: &Bound<'py, PyAny>,
    layout: Option<&Bound<'py, PyAny>>,
    max_elements: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let bytes = match frame.cast::<Frame>() {
        Ok(frame) => Bytes::of(frame.get().as_bytes(py).as_any())?,
        Err(_) => Bytes::of(frame)?,
    };
    let bytes = bytes.get(py);
    let given = layout.map(layout_of).transpose()?;
    let limits = names::Limits {
        max_body_bytes: bytes.len(),
        ..names::Limits::for_layout(&LayoutRef::flat(max_elements))
    };
    let layout = match &given {
        Some(layout) => layout.get().layout.as_ref(),
        None => {
            let len = names::frame_extent(bytes, &limits).map_err(errors::decode)?;
            if len > max_elements {
                return Err(errors::decode(names::DecodeError::LimitExceeded(names::Limit::Elements)));
            }
            LayoutRef::opaque(len, Header::parse(bytes).map_err(errors::decode)?.fingerprint)
        }
    };
    let mut decoder = Decoder::new();
    let frame = detached(py, bytes.len(), || decoder.parse(bytes, &layout, &limits));
    fields_of(py, &frame.map_err(errors::decode)?)
}

fn fields_of<'py>(py: Python<'py>, frame: &names::Frame<'_>) -> PyResult<Bound<'py, PyDict>> {
    let header = frame.header();
    let (mut elements, mut held) = (0, 0);
    for unit in frame.units() {
        elements += unit.range().len();
        held += unit.held();
    }
    let fields = PyDict::new(py);
    fields.set_item("version", header.version)?;
    fields.set_item("codec", names::codec_name(header.codec))?;
    fields.set_item(
        "divisor",
        if header.divisor == names::Divisor::Senders { "senders" } else { "contributors" },
    )?;
    fields.set_item("step", frame.step())?;
    fields.set_item("fingerprint", header.fingerprint)?;
    fields.set_item("checksum", header.checksum)?;
    fields.set_item("nbytes", header.frame_bytes())?;
    fields.set_item("elements", elements)?;
    fields.set_item("held", held)?;
    fields.set_item("ratio", 4.0 * elements as f64 / header.frame_bytes() as f64)?;
    fields.set_item("units", units_of(py, frame)?)?;
    Ok(fields)
}

pub(super) fn units_of<'py>(py: Python<'py>, frame: &names::Frame<'_>) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let unit_of = |info: names::UnitInfo| {
        let unit = PyDict::new(py);
        unit.set_item("id", info.unit.id)?;
        unit.set_item("start", info.unit.start)?;
        unit.set_item("len", info.unit.len)?;
        unit.set_item("kind", info.kind)?;
        unit.set_item("held", info.held)?;
        unit.set_item("nbytes", info.body_bytes)?;
        for (name, section) in [("index", info.index), ("values", info.values)] {
            if let Some(section) = section {
                unit.set_item(name, section)?;
            }
        }
        Ok(unit)
    };
    frame.units().map(|unit| unit_of(unit.info())).collect()
}
