//! Memories: what a method keeps from step to step.

mod parts;
mod state;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use self::parts::{Elements, Fixed, Parts};
use self::state::Loaded;
use crate::array::{array_over, reshaped};
use crate::buffer::bytes_of;
use crate::codec::{Codec, UnitTuple, units_for};
use crate::errors::{self, value};
use crate::frame::with_frame;
use crate::gil::detached;
use crate::layout::{Layout, layout_of};
use crate::names::{self, Spec};
use crate::view::View;

/// What a codec keeps from step to step for one gradient at one worker: above all the residual.
///
/// A lossy codec sends a part of residual + gradient and keeps the rest here exactly: sent + kept is the
/// float sum of residual and gradient, bit for bit. Make a memory once, with the codec and the layout; pass
/// it to every encode; save it with the checkpoint.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, Memory
/// >>> codec = Codec("topk:density=0.5")
/// >>> memory = Memory(codec, {"w": (2, 2)})
/// >>> frame = codec.encode(np.array([1, 2, 3, 4], np.float32), memory=memory)
/// >>> memory.residual
/// array([1., 2., 0., 0.], dtype=float32)
/// >>> memory.give_back(frame)  # it did not arrive
/// >>> memory.residual
/// array([1., 2., 3., 4.], dtype=float32)
#[pyclass(module = "gradwire", name = "Memory")]
pub(crate) struct Memory {
    /// Dropped before the parts that it borrows: fields are dropped in this order.
    memory: Option<names::Memory<'static>>,
    parts: Parts,
    pub(crate) layout: Py<Layout>,
    spelling: String,
}

impl Memory {
    /// The memory, as long as no other thread uses it.
    pub(crate) fn borrow_alone<'py>(slf: &Bound<'py, Self>) -> PyResult<PyRefMut<'py, Self>> {
        slf.try_borrow_mut().map_err(|_| {
            PyRuntimeError::new_err("memory: another thread is using it; each gradient needs its own")
        })
    }

    pub(crate) fn borrow_beside<'py>(slf: &Bound<'py, Self>) -> PyResult<PyRef<'py, Self>> {
        slf.try_borrow().map_err(|_| {
            PyRuntimeError::new_err("memory: another thread is using it; each gradient needs its own")
        })
    }

    pub(crate) fn lend(&mut self) -> &mut names::Memory<'static> {
        let parts = &self.parts;
        // SAFETY: there is no memory, else nothing would be inserted; it is dropped before the parts.
        self.memory.get_or_insert_with(|| unsafe { parts.memory() })
    }

    pub(crate) fn get(&self) -> Option<&names::Memory<'static>> {
        self.memory.as_ref()
    }

    fn new_for(spec: &Spec, layout: Py<Layout>, units: Option<usize>) -> PyResult<Self> {
        let parts = Parts::for_spec(spec, &layout.get().layout, units)?;
        let mut memory = Self { memory: None, parts, layout, spelling: spec.to_string() };
        // It then knows that the residual is zero.
        memory.lend().clear();
        Ok(memory)
    }

    /// Lets `write` change the elements themselves. What is written must be finite.
    fn rewrite<T>(&mut self, write: impl FnOnce(&mut Elements<'_>) -> T) -> T {
        self.memory = None;
        // SAFETY: the memory over these elements is gone, and the slices end with this line.
        let result = write(&mut unsafe { self.parts.elements() });
        self.lend();
        result
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (codec, layout, *, units=None))]
    fn new(codec: &Codec, layout: &Bound<'_, PyAny>, units: Option<Vec<UnitTuple>>) -> PyResult<Self> {
        let layout = layout_of(layout)?;
        let units = units_for(&codec.spec, &layout.get().layout.as_ref(), units)?;
        let count = units.last().map(|unit| unit.id as usize + 1);
        Self::new_for(&codec.spec, layout, count)
    }

    /// The residual, one element a coordinate: a read-only view, not a copy. It changes with the memory.
    #[getter]
    fn residual<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        view(slf, |memory| Some(&memory.parts.residual))
            .and_then(|view| view.ok_or_else(|| value("no residual")))
    }

    /// The momentum, as :attr:`residual`, of codecs that own it; else ``None``.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> Memory(Codec("dgc"), 2).momentum
    /// array([0., 0.], dtype=float32)
    #[getter]
    fn momentum<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        view(slf, |memory| memory.parts.momentum.as_ref())
    }

    /// The factors with which the next step begins, as :attr:`residual`; empty but for ``powersgd``.
    #[getter]
    fn factors<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        view(slf, |memory| Some(&memory.parts.factors))
            .and_then(|view| view.ok_or_else(|| value("no factors")))
    }

    /// The layout that the memory was made for.
    #[getter]
    fn layout(slf: &Bound<'_, Self>) -> PyResult<Py<Layout>> {
        Ok(Self::borrow_beside(slf)?.layout.clone_ref(slf.py()))
    }

    /// The residual of one tensor, in its shape: a view of it.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> Memory(Codec("topk"), {"w": (2, 2), "b": (2,)}).tensor("w")
    /// array([[0., 0.],
    ///        [0., 0.]], dtype=float32)
    fn tensor<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let layout = Self::layout(slf)?;
        let slice = layout.bind(slf.py()).call_method1("slice", (name,))?;
        let tensor = layout.get().find(name)?;
        reshaped(Self::residual(slf)?.get_item(slice)?, &tensor.shape)
    }

    /// The L2 norm of the residual.
    fn norm(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let memory = Self::borrow_beside(slf)?;
        let (bytes, lent) = (4 * memory.parts.residual.len, memory.get());
        Ok(detached(slf.py(), bytes, || lent.map_or(0.0, names::Memory::norm)))
    }

    /// Forgets everything, as before the first step.
    fn clear(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::borrow_alone(slf)?.lend().clear();
        Ok(())
    }

    /// Multiplies the residual by ``ratio``, the old learning rate over the new one. It then weighs as much
    /// in the parameters as when it was kept.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> Memory(Codec("topk"), 2).rescale(float("inf"))
    /// Traceback (most recent call last):
    ///     ...
    /// ValueError: ratio=inf: expected a finite number that leaves the residual finite
    fn rescale(slf: &Bound<'_, Self>, ratio: f32) -> PyResult<()> {
        let mut memory = Self::borrow_alone(slf)?;
        let lent = memory.lend();
        let stays_finite =
            ratio.is_finite() && lent.residual().iter().all(|value| (value * ratio).is_finite());
        if !stays_finite {
            return Err(value(format!(
                "ratio={ratio}: expected a finite number that leaves the residual finite"
            )));
        }
        lent.rescale(ratio);
        Ok(())
    }

    /// Multiplies the residual by ``factor``, from 0 to 1, so that what waits for long weighs less. What
    /// decays is lost. The hook does it where the codec's spelling has ``decay=``; a loop of your own calls
    /// this once a step.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> Memory(Codec("topk"), 2).decay(1.5)
    /// Traceback (most recent call last):
    ///     ...
    /// ValueError: factor=1.5: expected a number from 0 to 1
    fn decay(slf: &Bound<'_, Self>, factor: f32) -> PyResult<()> {
        let mut memory = Self::borrow_alone(slf)?;
        let decayed = memory.lend().decay(factor);
        decayed.map_err(|_| value(format!("factor={factor}: expected a number from 0 to 1")))
    }

    /// Returns a frame or packet that did not enter the mean (lost, late, refused) to the residual. Right
    /// after the encode that made it, the residual is then residual + gradient of that step, bit for bit.
    fn give_back(slf: &Bound<'_, Self>, frame: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut memory = Self::borrow_alone(slf)?;
        let layout = memory.layout.clone_ref(slf.py());
        let lent = memory.lend();
        let bytes = 4 * lent.len();
        with_frame(slf.py(), frame, layout.get(), None, bytes, |frame| lent.give_back(frame))
    }

    /// The memory as bytes, with its version, the layout's fingerprint and a checksum.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> memory = Memory(Codec("topk"), 100)
    /// >>> saved = memory.save()
    /// >>> memory.load(saved)
    /// >>> memory.load(saved[:-1])
    /// Traceback (most recent call last):
    ///     ...
    /// gradwire.DecodeError: truncated: 4 bytes are needed, 3 are left
    fn save<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        let memory = Self::borrow_beside(slf)?;
        let lent = memory.get().ok_or_else(|| PyRuntimeError::new_err("memory: it is being changed"))?;
        let layout = memory.layout.get().layout.as_ref();
        let too_large = || value("memory: too large to be saved");
        let len = lent.saved_bytes().ok_or_else(too_large)?;
        PyBytes::new_with(slf.py(), len, |out| {
            detached(slf.py(), len, || lent.save(&layout, out)).map(|_| ()).map_err(|_| too_large())
        })
    }

    /// Restores what :meth:`save` wrote, bit for bit. An exception leaves the memory as it was.
    fn load(slf: &Bound<'_, Self>, saved: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(saved, "saved")?;
        let mut memory = Self::borrow_alone(slf)?;
        let layout = memory.layout.clone_ref(slf.py());
        let lent = memory.lend();
        detached(slf.py(), bytes.len(), || lent.load(&layout.get().layout.as_ref(), &bytes))
            .map_err(errors::decode)
    }

    /// The memory as a dict of arrays and names that any checkpoint holds: copies, by tensor.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> state = Memory(Codec("topk:density=0.01"), {"w": (2, 2), "b": (2,)}).state_dict()
    /// >>> state["codec"], list(state["residual"]), state["momentum"]
    /// ('topk:density=0.01', ['w', 'b'], None)
    fn state_dict<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        state::dict_of(slf)
    }

    /// Restores what :meth:`state_dict` returned. Tensors are found by name, so that they may stand in
    /// another order, as long as all of them and no others are there; what codecs keep beside tensors
    /// (states, factors, arrays) needs the same order. An exception leaves the memory as it was.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> old = Memory(Codec("topk"), {"w": (2, 2), "b": (2,)})
    /// >>> new = Memory(Codec("topk"), {"b": (2,), "w": (2, 2)})
    /// >>> new.load_state_dict(old.state_dict())
    /// >>> Memory(Codec("topk"), {"w": (2, 2)}).load_state_dict(old.state_dict())
    /// Traceback (most recent call last):
    ///     ...
    /// ValueError: state: residual: unexpected tensors ['b']
    fn load_state_dict(slf: &Bound<'_, Self>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let loaded = Loaded::of(slf, state)?;
        Self::borrow_alone(slf)?.rewrite(|elements| loaded.write_to(elements));
        Ok(())
    }

    /// Copies residual and momentum of every tensor that ``other`` has under the same name and with the same
    /// shape, and returns these names. Between equal layouts it copies everything.
    ///
    /// Use it if buckets change: the residual of a tensor moves to the memory of its new bucket.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> old = Memory(Codec("topk"), {"w": (2, 2), "b": (2,)})
    /// >>> Memory(Codec("topk"), {"b": (2,), "v": (3,)}).copy_from(old)
    /// ['b']
    fn copy_from(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let py = slf.py();
        if slf.is(other) {
            let layout = Self::layout(slf)?;
            return Ok(layout.get().names().into_iter().map(str::to_owned).collect());
        }
        let source = Self::borrow_beside(other)?;
        let mut memory = Self::borrow_alone(slf)?;
        let (own, theirs) = (memory.layout.clone_ref(py), source.layout.clone_ref(py));
        let Some(lent) = source.get() else { return Ok(Vec::new()) };
        let arrays = memory.parts.arrays.clone();
        Ok(memory.rewrite(|elements| elements.take(&own.get().layout, &arrays, lent, theirs.get())))
    }

    /// Another memory with the same content.
    ///
    /// >>> from gradwire import Codec, Memory
    /// >>> memory = Memory(Codec("topk"), 3)
    /// >>> memory.copy().residual is memory.residual
    /// False
    fn copy(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        let py = slf.py();
        let copy = {
            let memory = Self::borrow_beside(slf)?;
            let spec = Spec::parse(&memory.spelling).map_err(|error| value(error.to_string()))?;
            Py::new(py, Self::new_for(&spec, memory.layout.clone_ref(py), memory.parts.units)?)?
        };
        Self::copy_from(copy.bind(py), slf)?;
        Ok(copy)
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        Ok(Self::borrow_beside(slf)?.parts.residual.len)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let memory = Self::borrow_beside(slf)?;
        Ok(format!("<gradwire.Memory of {} elements for {}>", memory.parts.residual.len, memory.spelling))
    }
}

/// A read-only array over a part of the memory.
fn view<'py>(
    slf: &Bound<'py, Memory>,
    part: impl FnOnce(&Memory) -> Option<&Fixed<f32>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let memory = Memory::borrow_beside(slf)?;
    let Some(part) = part(&memory) else { return Ok(None) };
    let view = View::read_only(slf.as_any().clone().unbind(), part.pointer.cast(), part.len);
    array_over(Bound::new(slf.py(), view)?.into_any(), "f4").map(Some)
}
