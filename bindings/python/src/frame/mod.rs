//! Frames as received: parsed once, then added up.

mod fields;
mod limits;
mod sum;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

pub(crate) use self::fields::inspect;
use self::fields::units_of;
pub(crate) use self::limits::Limits;
use self::limits::limits_for;
use self::sum::filled;
pub(crate) use self::sum::{add, decode, divide};
use crate::buffer::{self, Output};
use crate::errors::{self, value};
use crate::gil::detached;
use crate::layout::{Layout, layout_of};
use crate::names::{self, Decoder};

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
        let limits = limits_for(limits, &borrowed);
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

/// Parses `object` for the layout, unless it is a frame already. Then does `work` with it, on `bytes` bytes.
pub(crate) fn with_frame<T: Send>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    layout: &Layout,
    limits: Option<&Limits>,
    bytes: usize,
    work: impl FnOnce(&names::Frame<'_>) -> T + Send,
) -> PyResult<T> {
    let layout = layout.layout.as_ref();
    if let Ok(parsed) = object.cast::<Frame>() {
        let parsed = parsed.get();
        let (frame, layout) = (parsed.fingerprint(), layout.fingerprint());
        if frame != layout {
            return Err(errors::decode(names::DecodeError::LayoutMismatch { frame, layout }));
        }
        return Ok(detached(py, bytes, || work(&parsed.frame)));
    }
    let limits = limits_for(limits, &layout);
    let held = Bytes::of(object)?;
    let input = held.get(py);
    detached(py, bytes.max(input.len()), || {
        let mut decoder = Decoder::new();
        decoder.parse(input, &layout, &limits).map(|frame| work(&frame))
    })
    .map_err(errors::decode)
}
