//! What `gradwire.torch` does with all tensors of a bucket in one call. For small tensors, a call for each
//! would cost as much as the work itself.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Gradient, Output, detached};
use crate::codec::{Codec, UnitTuple, key_of, units_of};
use crate::errors::{self, value};
use crate::frame::Frame;
use crate::fresh::bytes_object;
use crate::memory::Memory;
use crate::names::{self, FrameUnit, Grad, MemoryChoice, Unit};

/// Copies each of the tensors to its target, which has as many elements; whether any element of it is not
/// zero.
#[pyfunction]
pub(crate) fn _load(
    py: Python<'_>,
    targets: Vec<Bound<'_, PyAny>>,
    tensors: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<bool>> {
    let sources = tensors.iter().map(|tensor| Gradient::of(tensor, None)).collect::<PyResult<Vec<_>>>()?;
    let mut outputs = Vec::with_capacity(targets.len());
    for (at, target) in targets.iter().enumerate() {
        let len = sources.get(at).map_or(0, Gradient::len);
        outputs.push(Output::values(target, len, "targets")?);
    }
    if outputs.len() != sources.len() {
        return Err(value(format!("targets: expected {}, one for each tensor", sources.len())));
    }
    check_apart(outputs.iter())?;
    if sources.iter().any(|source| outputs.iter().any(|output| source.meets(output))) {
        return Err(value("tensors: one stands in the memory of a target"));
    }
    let values = sources.iter().map(f32s_of).collect::<PyResult<Vec<_>>>()?;
    let copies: Vec<_> = values.into_iter().zip(outputs.iter_mut().map(Output::f32s)).collect();
    let bytes = copies.iter().map(|(from, _)| 4 * from.len()).sum();
    Ok(detached(py, bytes, || {
        let copy = |(from, to): (&[f32], &mut [f32])| {
            to.copy_from_slice(from);
            !Grad::F32(from).is_zero()
        };
        copies.into_iter().map(copy).collect()
    }))
}

/// Refuses outputs that share memory.
fn check_apart<'a>(outputs: impl Iterator<Item = &'a Output>) -> PyResult<()> {
    let mut places: Vec<_> = outputs.map(Output::place).filter(|place| !place.is_empty()).collect();
    places.sort_unstable_by_key(|place| place.start);
    if places.windows(2).all(|pair| pair[0].end <= pair[1].start) {
        Ok(())
    } else {
        Err(value("two of the buffers to be written to stand in the same memory"))
    }
}

fn f32s_of(gradient: &Gradient) -> PyResult<&[f32]> {
    match gradient.grad() {
        Grad::F32(values) => Ok(values),
        _ => Err(value("tensors: expected float32")),
    }
}

/// Tensors of a bucket, a unit each: their gradients, and afterwards their means. They are looked at once,
/// and lent for as long as this lives.
#[pyclass(module = "gradwire._core", name = "_Tensors")]
pub(crate) struct Tensors {
    outputs: Vec<Output>,
    units: Vec<Unit>,
}

#[pymethods]
impl Tensors {
    #[new]
    fn new(tensors: Vec<Bound<'_, PyAny>>, units: Vec<UnitTuple>) -> PyResult<Self> {
        let lent = tensors.iter().map(|tensor| Output::all_values(tensor, "tensors"));
        let outputs = lent.collect::<PyResult<Vec<_>>>()?;
        let units = units_of(units, isize::MAX as usize)?;
        let fit = |(output, unit): (&Output, &Unit)| output.len() == unit.len;
        if outputs.len() != units.len() || !outputs.iter().zip(&units).all(fit) {
            return Err(value("tensors: expected one for each unit, of its length"));
        }
        check_apart(outputs.iter())?;
        Ok(Self { outputs, units })
    }
}

impl Tensors {
    fn bytes(&self) -> usize {
        self.outputs.iter().map(|output| 4 * output.len()).sum()
    }

    fn check_for(&self, layout: &names::LayoutRef<'_>, memory: &names::Memory<'_>) -> PyResult<()> {
        if self.units.last().is_some_and(|unit| unit.start + unit.len > layout.len()) {
            return Err(value(format!("units: expected ranges of {} elements", layout.len())));
        }
        if self.outputs.iter().any(|output| output.meets_values(memory.residual())) {
            return Err(value("tensors: one stands in the memory that is written to"));
        }
        Ok(())
    }
}

/// The gradients of the tensors with these numbers, from elsewhere.
fn sources_of(
    tensors: &Tensors,
    sources: &[(usize, Bound<'_, PyAny>)],
    memory: &names::Memory<'_>,
) -> PyResult<Vec<(usize, Gradient)>> {
    let source = |(at, source): &(usize, Bound<'_, PyAny>)| {
        let source = Gradient::of(source, None)?;
        let fits = tensors.units.get(*at).is_some_and(|unit| unit.len == source.len());
        f32s_of(&source)?;
        match fits && !source.meets_values(memory.residual()) {
            true => Ok((*at, source)),
            false => Err(value("sources: expected one as long as its tensor, outside of the memory")),
        }
    };
    sources.iter().map(source).collect()
}

fn in_use<E>(_: E) -> PyErr {
    PyRuntimeError::new_err("tensors: another thread is using them")
}

/// Encodes tensors into a memory of their own: `before` holds what the step began with, and stays as it is.
/// `sources` holds the gradients that are elsewhere, with the numbers of their tensors. Returns the frame,
/// empty without units, and which of the tensors are not all zero: those that are were taken over from
/// `before`, and are no units of the frame. After an exception `memory` holds nothing that is of use.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "as encode, whose arguments Python names")]
#[pyo3(signature = (codec, before, memory, tensors, *, step, seed, rank, sources=Vec::new()))]
pub(crate) fn _encode_beside<'py>(
    py: Python<'py>,
    codec: &Bound<'py, Codec>,
    before: &Bound<'py, Memory>,
    memory: &Bound<'py, Memory>,
    tensors: &Bound<'py, Tensors>,
    step: u64,
    seed: u64,
    rank: u32,
    sources: Vec<(usize, Bound<'py, PyAny>)>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<bool>)> {
    let codec = codec.get();
    if codec.spec.memory != MemoryChoice::ErrorFeedback {
        return Err(value(format!("{}: expected a codec with error feedback and no momentum", codec.spec)));
    }
    let before = Memory::borrow_beside(before)?;
    let mut memory = Memory::borrow_alone(memory)?;
    let layout = memory.layout.clone_ref(py);
    before.check_layout(layout.get())?;
    codec.check_memory(Some(&memory), layout.get())?;
    let layout = layout.get().layout.as_ref();
    let tensors = tensors.try_borrow().map_err(in_use)?;
    let key = key_of(seed, step, rank)?;
    let Some(before) = before.get() else { return Err(value("before: it is being changed")) };
    let lent = memory.lend();
    tensors.check_for(&layout, lent)?;
    let sources = sources_of(&tensors, &sources, lent)?;
    let mut gradients: Vec<_> = tensors.outputs.iter().map(Output::grad).collect();
    sources.iter().for_each(|(at, source)| gradients[*at] = source.grad());
    let units = &tensors.units;
    let (frame, present) = detached(py, tensors.bytes(), || {
        let present: Vec<_> = gradients.iter().map(|grad| !grad.is_zero()).collect();
        let (mut sent, mut grads) = (Vec::new(), Vec::new());
        for ((unit, grad), is_some) in units.iter().zip(gradients).zip(&present) {
            if *is_some {
                sent.push(*unit);
                grads.push(grad);
            } else {
                lent.carry_over(before, unit);
            }
        }
        let frame = if sent.is_empty() {
            Ok(Vec::new())
        } else {
            codec.encode_beside(key, &layout, &sent, &grads, before, lent)
        };
        (frame, present)
    });
    Ok((bytes_object(py, &frame.map_err(errors::encode)?)?, present))
}

/// Takes units over from the memory that a step began with: those that it did not encode.
#[pyfunction]
pub(crate) fn _carry_over(
    py: Python<'_>,
    codec: &Bound<'_, Codec>,
    before: &Bound<'_, Memory>,
    memory: &Bound<'_, Memory>,
    units: Vec<UnitTuple>,
) -> PyResult<()> {
    let before = Memory::borrow_beside(before)?;
    let mut memory = Memory::borrow_alone(memory)?;
    let layout = memory.layout.clone_ref(py);
    before.check_layout(layout.get())?;
    let units = codec.get().units_for(&layout.get().layout.as_ref(), Some(units))?;
    let Some(before) = before.get() else { return Err(value("before: it is being changed")) };
    let lent = memory.lend();
    let bytes = units.iter().map(|unit| 4 * unit.len).sum();
    detached(py, bytes, || units.iter().for_each(|unit| lent.carry_over(before, unit)));
    Ok(())
}

/// Replaces tensors by the mean of frames, which are added in their order; whether all of it is finite.
///
/// A frame without a unit counts as zeros. A frame with a unit that does not match a tensor is refused before
/// anything is written.
#[pyfunction]
pub(crate) fn _mean(
    py: Python<'_>,
    frames: Vec<Py<Frame>>,
    contributors: usize,
    tensors: &Bound<'_, Tensors>,
) -> PyResult<bool> {
    if contributors == 0 {
        return Err(value("contributors=0: expected 1 or more"));
    }
    let mut tensors = tensors.try_borrow_mut().map_err(in_use)?;
    let bytes = tensors.bytes();
    let Tensors { outputs, units } = &mut *tensors;
    // A bucket is a part of the model, whose means are all written before they are read.
    let of = frames.iter().map(|frame| frame.get().layout_len()).fold(bytes / 4, usize::max);
    let frames: Vec<_> = frames.iter().map(|frame| frame.get().parsed()).collect();
    if !frames.iter().all(|frame| covers(frame, units)) {
        return Err(value("frames: one has a unit that matches no tensor"));
    }
    let starts = units.iter().map(|unit| unit.start);
    let targets = starts.zip(outputs.iter_mut().map(Output::f32s)).collect::<Vec<_>>();
    Ok(detached(py, bytes, || {
        let mut units: Vec<_> = frames.iter().map(|frame| frame.units().peekable()).collect();
        targets.into_iter().fold(true, |is_finite, (start, target)| {
            let here = units.iter_mut().filter_map(|units| units.next_if(|unit| unit.range().start == start));
            mean_of(&here.collect::<Vec<_>>(), contributors, target, of) && is_finite
        })
    }))
}

/// The mean of a unit of several frames; whether all of it is finite. `of` as for [`names::clear`].
fn mean_of(units: &[FrameUnit<'_>], contributors: usize, mean: &mut [f32], of: usize) -> bool {
    names::clear(mean, of);
    units.iter().for_each(|unit| unit.add_scaled_to(1.0, mean));
    let held: usize = units.iter().map(FrameUnit::held).sum();
    if held < mean.len() / SPARSE {
        divide_held(units, contributors, mean)
    } else {
        names::divide(mean, contributors).is_none()
    }
}

/// If the frames hold fewer than one coordinate in this many, finding those is faster than dividing all.
const SPARSE: usize = 16;

/// Divides each coordinate that any unit holds, once. The others are zero, and zero divided is zero.
fn divide_held(units: &[FrameUnit<'_>], contributors: usize, mean: &mut [f32]) -> bool {
    let mut is_divided = vec![0u64; mean.len().div_ceil(64)];
    let mut is_finite = true;
    for unit in units {
        unit.for_each(|at, _| {
            let (word, bit) = (&mut is_divided[at / 64], 1 << (at % 64));
            if *word & bit == 0 {
                *word |= bit;
                mean[at] /= contributors as f32;
                is_finite &= mean[at].is_finite();
            }
        });
    }
    is_finite
}

/// Whether each unit of the frame is one of the units, which ascend.
fn covers(frame: &names::Frame<'_>, units: &[Unit]) -> bool {
    let mut ranges = units.iter().map(Unit::range);
    frame.units().all(|unit| ranges.any(|range| range == unit.range()))
}
