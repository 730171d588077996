//! Frames as received: parsed once, then added up.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::array::empty_array;
use crate::buffer::{self, Output};
use crate::errors::{self, value};
use crate::gil::detached;
use crate::layout::{self, Layout, layout_of};
use crate::names::{self, Decoder, Header, LayoutRef};

/// Bounds on what a frame from a stranger may cost its reader. They come from the caller, never from the
/// wire.
///
/// A bound that is not given is the most that an honest frame for the layout can need.
///
/// >>> from gradwire import Codec, Limits, decode
/// >>> import numpy as np
/// >>> frame = Codec("none").encode(np.array([1e9, 1], np.float32))
/// >>> decode(frame, 2, limits=Limits(2, max_magnitude=1e6))
/// Traceback (most recent call last):
///     ...
/// gradwire.DecodeError: limit exceeded: Magnitude
#[pyclass(frozen, module = "gradwire", name = "Limits")]
pub(crate) struct Limits {
    limits: names::Limits,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (layout, *, max_elements=None, max_body_bytes=None, max_entries=None, max_units=None,
        max_scratch_words=None, max_magnitude=None))]
    fn new(
        layout: &Bound<'_, PyAny>,
        max_elements: Option<usize>,
        max_body_bytes: Option<usize>,
        max_entries: Option<usize>,
        max_units: Option<usize>,
        max_scratch_words: Option<usize>,
        max_magnitude: Option<f32>,
    ) -> PyResult<Self> {
        let layout = layout_of(layout)?;
        let own = names::Limits::for_layout(&layout.get().layout.as_ref());
        let limits = names::Limits {
            max_elements: max_elements.unwrap_or(own.max_elements),
            max_body_bytes: max_body_bytes.unwrap_or(own.max_body_bytes),
            max_entries: max_entries.unwrap_or(own.max_entries),
            max_units: max_units.unwrap_or(own.max_units),
            max_scratch_words: max_scratch_words.unwrap_or(own.max_scratch_words),
            max_magnitude: max_magnitude.unwrap_or(own.max_magnitude),
        };
        Ok(Self { limits })
    }

    /// Coordinates that all units of a frame may cover together.
    #[getter]
    fn max_elements(&self) -> usize {
        self.limits.max_elements
    }

    /// Bytes behind the header.
    #[getter]
    fn max_body_bytes(&self) -> usize {
        self.limits.max_body_bytes
    }

    /// Entries of sparse and seeded units.
    #[getter]
    fn max_entries(&self) -> usize {
        self.limits.max_entries
    }

    /// Units of one frame.
    #[getter]
    fn max_units(&self) -> usize {
        self.limits.max_units
    }

    /// Words of 32 bits that parsing may use.
    #[getter]
    fn max_scratch_words(&self) -> usize {
        self.limits.max_scratch_words
    }

    /// Largest magnitude of a decoded value.
    #[getter]
    fn max_magnitude(&self) -> f32 {
        self.limits.max_magnitude
    }

    fn __repr__(&self) -> String {
        let limits = &self.limits;
        format!(
            "<gradwire.Limits: {} elements, {} body bytes, {} entries, {} units, {} scratch words, magnitude {:e}>",
            limits.max_elements,
            limits.max_body_bytes,
            limits.max_entries,
            limits.max_units,
            limits.max_scratch_words,
            limits.max_magnitude
        )
    }
}

/// Bytes of a frame that nobody changes while they are used.
enum Bytes {
    /// Python's `bytes` never change.
    Shared(Py<PyBytes>),
    /// A copy of what another buffer held.
    Own(Vec<u8>),
}

impl Bytes {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::Shared(bytes.clone().unbind())),
            Err(_) => Ok(Self::Own(buffer::bytes_of(object, "frame")?)),
        }
    }

    fn get<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        match self {
            Self::Shared(bytes) => bytes.as_bytes(py),
            Self::Own(bytes) => bytes,
        }
    }
}

/// A frame that passed every check. Nothing that is done with it can fail because of its content.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, Frame
/// >>> grad = np.array([1, -2, 3, -4], np.float32)
/// >>> frame = Frame(Codec("topk:memory=none,density=0.5").encode(grad, step=7), 4)
/// >>> frame.codec, frame.step, frame.held, frame.elements
/// ('topk', 7, 2, 4)
/// >>> total = np.ones(4, np.float32)
/// >>> frame.add_to(total, weight=0.5)
/// >>> total
/// array([ 1. ,  1. ,  2.5, -1. ], dtype=float32)
#[pyclass(frozen, module = "gradwire", name = "Frame")]
pub(crate) struct Frame {
    /// Borrows from the two fields below, which never change and keep their elements where they are.
    frame: names::Frame<'static>,
    bytes: Bytes,
    _decoder: Box<Decoder>,
    layout: Py<Layout>,
}

impl Frame {}

#[pymethods]
impl Frame {
    #[new]
    #[pyo3(signature = (frame, layout, *, limits=None))]
    fn new(
        py: Python<'_>,
        frame: &Bound<'_, PyAny>,
        layout: &Bound<'_, PyAny>,
        limits: Option<&Limits>,
    ) -> PyResult<Self> {
        let (bytes, layout) = (Bytes::of(frame)?, layout_of(layout)?);
        let borrowed = layout.get().layout.as_ref();
        let limits = limits.map_or_else(|| names::Limits::for_layout(&borrowed), |limits| limits.limits);
        let mut decoder = Box::new(Decoder::new());
        let parsed = {
            let (input, words) = (bytes.get(py), &mut decoder);
            let parsed = detached(py, input.len(), || words.parse(input, &borrowed, &limits));
            let parsed = parsed.map_err(errors::decode)?;
            // SAFETY: the frame borrows the bytes, which are Python's own or a vector's, and the words in the
            // decoder's vector. Both stay where they are when their owners move into the object, which nobody
            // can change (it is frozen), and live as long as the frame does.
            unsafe { std::mem::transmute::<names::Frame<'_>, names::Frame<'static>>(parsed) }
        };
        Ok(Self { frame: parsed, bytes, _decoder: decoder, layout })
    }

    /// The name of the codec that made it.
    #[getter]
    fn codec(&self) -> &'static str {
        names::codec_name(self.frame.header().codec)
    }

    /// Version of the format.
    #[getter]
    fn version(&self) -> u8 {
        self.frame.header().version
    }

    /// The step that it belongs to.
    #[getter]
    fn step(&self) -> u64 {
        self.frame.step()
    }

    /// The fingerprint of the sender's layout, which is the reader's too.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.frame.header().fingerprint
    }

    /// CRC-32C of the frame.
    #[getter]
    fn checksum(&self) -> u32 {
        self.frame.header().checksum
    }

    /// Bytes of the frame, header included.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.frame.header().frame_bytes()
    }

    /// The layout that it was parsed for.
    #[getter]
    fn layout(&self, py: Python<'_>) -> Py<Layout> {
        self.layout.clone_ref(py)
    }

    /// Coordinates that its units cover.
    #[getter]
    fn elements(&self) -> usize {
        self.frame.units().map(|unit| unit.range().len()).sum()
    }

    /// Coordinates that it sends.
    #[getter]
    fn held(&self) -> usize {
        self.frame.units().map(|unit| unit.held()).sum()
    }

    /// Bytes of the same coordinates as float32, over those of the frame.
    #[getter]
    fn ratio(&self) -> f64 {
        4.0 * self.elements() as f64 / self.nbytes() as f64
    }

    /// What each unit is made of, as :func:`inspect` tells it.
    #[getter]
    fn units<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        units_of(py, &self.frame)
    }

    /// Adds ``weight`` times every value to ``acc``, a writable float32 buffer of the layout's length.
    #[pyo3(signature = (acc, weight=1.0))]
    fn add_to(&self, py: Python<'_>, acc: &Bound<'_, PyAny>, weight: f32) -> PyResult<()> {
        let mut acc = Output::values(acc, self.layout.get().layout.len(), "acc")?;
        if acc.meets(self.bytes.get(py)) {
            return Err(value("acc: it stands in the memory of the frame"));
        }
        let (frame, sum) = (&self.frame, acc.f32s());
        detached(py, 4 * sum.len(), || frame.add_scaled_to(weight, sum));
        Ok(())
    }

    /// The values that the frame sends, and zeros elsewhere; in ``out`` if that is given.
    ///
    /// >>> import numpy as np
    /// >>> from gradwire import Codec, Frame
    /// >>> Frame(Codec("bf16").encode(np.array([1.0, 0.1], np.float32)), 2).to_numpy()
    /// array([1.        , 0.10009766], dtype=float32)
    #[pyo3(signature = (out=None))]
    fn to_numpy<'py>(&self, py: Python<'py>, out: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        filled(py, self.layout.get().layout.len(), out, |target| {
            let frame = &self.frame;
            detached(py, 4 * target.len(), || {
                target.fill(0.0);
                frame.add_scaled_to(1.0, target);
            });
            Ok(())
        })
    }

    /// The bytes of the frame.
    #[pyo3(name = "to_bytes")]
    fn as_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes.bind(py).clone(),
            Bytes::Own(bytes) => PyBytes::new(py, bytes),
        }
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.nbytes()).unwrap_or(usize::MAX)
    }

    fn __repr__(&self) -> String {
        format!(
            "<gradwire.Frame of {} at step {}: {} of {} coordinates in {} bytes>",
            self.codec(),
            self.step(),
            self.held(),
            self.elements(),
            self.nbytes()
        )
    }
}

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
        with_frame(py, frame, Some(layout), limits, 4 * len, |frame| {
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
    with_frame(py, frame, Some(layout), limits, bytes, |frame| frame.add_scaled_to(weight, sum))
}

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
    let frame =
        detached(py, bytes.len(), || decoder.parse(bytes, &layout, &limits)).map_err(errors::decode)?;
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
    fields.set_item("units", units_of(py, &frame)?)?;
    Ok(fields)
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

/// Parses `object` for the layout, unless it is a frame already. Then does `work` with it, on `bytes` bytes.
pub(crate) fn with_frame<T: Send>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    layout: Option<Py<Layout>>,
    limits: Option<&Limits>,
    bytes: usize,
    work: impl FnOnce(&names::Frame<'_>) -> T + Send,
) -> PyResult<T> {
    if let Ok(parsed) = object.cast::<Frame>() {
        let parsed = parsed.get();
        let expected = layout.as_ref().map(|layout| layout.get().layout.fingerprint());
        let frame = parsed.fingerprint();
        return match expected {
            Some(layout) if layout != frame => {
                Err(errors::decode(names::DecodeError::LayoutMismatch { frame, layout }))
            }
            _ => Ok(detached(py, bytes, || work(&parsed.frame))),
        };
    }
    let layout = layout.ok_or_else(|| PyTypeError::new_err("layout: expected one for a frame of bytes"))?;
    let layout = layout.get().layout.as_ref();
    let limits = limits.map_or_else(|| names::Limits::for_layout(&layout), |limits| limits.limits);
    let held = Bytes::of(object)?;
    let input = held.get(py);
    detached(py, bytes.max(input.len()), || {
        let mut decoder = Decoder::new();
        decoder.parse(input, &layout, &limits).map(|frame| work(&frame))
    })
    .map_err(errors::decode)
}

/// `out`, or a new array, after `fill` has written to it.
fn filled<'py>(
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

fn units_of<'py>(py: Python<'py>, frame: &names::Frame<'_>) -> PyResult<Vec<Bound<'py, PyDict>>> {
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
