//! Gradients as frames and as packets.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};

use super::job::Job;
use crate::buffer::Output;
use crate::errors::{self, value};
use crate::fresh::{Fresh, bytes_object};
use crate::gil::detached;
use crate::memory::Memory;
use crate::names::{self, Gather, PacketEncoder, PacketSize, Scratch};

/// From this many bytes on, a frame whose length is known in advance, but for some bytes, is encoded where
/// Python keeps it. Below, a copy costs nothing.
const FRESH_ABOVE_BYTES: usize = 64 << 10;

/// Working memory of one call, kept for the next.
#[derive(Default)]
struct Work {
    words: Vec<u32>,
    bytes: Vec<u8>,
    frame: Vec<u8>,
}

/// Working memory that no call is using; there is as much as there were calls at once.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<Work>>);

impl Idle {
    /// The gradient as one frame: in `out`, if it is given, and then a view of it, or as `bytes`.
    pub(super) fn frame<'py>(
        &self,
        py: Python<'py>,
        codec: &names::Codec,
        job: &Job,
        memory: Option<&mut Memory>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let needed = codec.scratch_len(&job.units);
        let too_large = || errors::encode(names::EncodeError::TooLarge);
        let most = codec.max_frame_bytes(&job.units).ok_or_else(too_large)?;
        let mut output = out.map(|out| Output::at_least(out, most, "out")).transpose()?;
        if output.as_ref().is_some_and(|output| job.gradient.meets(output)) {
            return Err(value("out: it stands in the memory of the gradient"));
        }
        let mut work = self.take();
        grow(&mut work.words, needed.words);
        grow(&mut work.bytes, needed.bytes);
        let mut fresh = None;
        match &output {
            Some(_) => {}
            None if most >= FRESH_ABOVE_BYTES && names::has_one_length(codec) => {
                fresh = Some(Fresh::new(py, most)?);
            }
            None => grow(&mut work.frame, most),
        }
        let layout = job.layout.get().layout.as_ref();
        let (step, lent) = (job.step(&layout), memory.map(Memory::lend));
        let (scratch_words, scratch_bytes) = (&mut work.words, &mut work.bytes);
        let target = match (&mut output, &mut fresh) {
            (Some(output), _) => output.u8s(),
            (None, Some(fresh)) => fresh.bytes(),
            (None, None) => &mut work.frame,
        };
        let encoded = detached(py, job.gradient.bytes(), move || {
            let mut scratch = Scratch { words: scratch_words, bytes: scratch_bytes };
            codec.encode(&step, lent, &mut scratch, target)
        });
        let result = match (encoded, out, fresh) {
            (Err(error), ..) => Err(errors::encode(error)),
            (Ok(len), Some(out), _) => view_of(out, len),
            (Ok(len), None, Some(fresh)) => Ok(fresh.done(len).into_any()),
            (Ok(len), None, None) => bytes_object(py, &work.frame[..len]).map(Bound::into_any),
        };
        self.keep(work);
        result
    }

    fn take(&self) -> Work {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn keep(&self, work: Work) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }
}

/// The gradient as frames of at most `size`.
pub(super) fn packets<'py>(
    py: Python<'py>,
    codec: &names::Codec,
    job: &Job,
    memory: Option<&mut Memory>,
    size: PacketSize,
) -> PyResult<Bound<'py, PyList>> {
    let layout = job.layout.get().layout.as_ref();
    let (step, lent) = (job.step(&layout), memory.map(Memory::lend));
    let mut encoder = PacketEncoder::new();
    let made = &mut encoder;
    detached(py, job.gradient.bytes(), || made.encode(codec, &step, lent, size)).map_err(errors::encode)?;
    let packets = (0..encoder.count()).filter_map(|at| encoder.packet(at));
    PyList::new(py, packets.map(|packet| PyBytes::new(py, packet)).collect::<Vec<_>>())
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

/// The first `len` bytes of `out`, which holds bytes.
fn view_of<'py>(out: &Bound<'py, PyAny>, len: usize) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(out)?;
    let bytes = view.call_method1("cast", ("B",))?;
    bytes.get_item(PySlice::new(out.py(), 0, len as isize, 1))
}
