//! Memories: what a method keeps from step to step.

use std::ptr::NonNull;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::array::{array_over, reshaped};
use crate::buffer::{bytes_of, f32s_of};
use crate::codec::{Codec, UnitTuple};
use crate::errors::{self, value};
use crate::frame::with_frame;
use crate::gil::detached;
use crate::layout::{Layout, layout_of, range_of};
use crate::names::{self, Spec, UnitState};
use crate::view::View;

/// Elements that stay where they are from the first to the last, so that arrays of numpy may stand on them.
struct Fixed<T> {
    pointer: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements as a `Box<[T]>` does.
unsafe impl<T: Send> Send for Fixed<T> {}
// SAFETY: as above; a shared `Fixed` hands out nothing but its address.
unsafe impl<T: Sync> Sync for Fixed<T> {}

impl<T: Clone> Fixed<T> {
    fn new(zero: T, len: usize) -> Self {
        let elements = Box::leak(vec![zero; len].into_boxed_slice());
        Self { pointer: NonNull::from(elements).cast(), len }
    }

    /// # Safety
    /// No other slice of these elements is alive, nor made while this one is; and it ends before the `Fixed`
    /// does.
    unsafe fn lend<'a>(&self) -> &'a mut [T] {
        // SAFETY: the elements were leaked by `new`, and are freed when this is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        let elements = std::ptr::slice_from_raw_parts_mut(self.pointer.as_ptr(), self.len);
        // SAFETY: `new` leaked a box of these elements.
        drop(unsafe { Box::from_raw(elements) });
    }
}

/// The elements of a memory.
struct Parts {
    residual: Fixed<f32>,
    momentum: Option<Fixed<f32>>,
    states: Fixed<UnitState>,
    factors: Fixed<f32>,
}

impl Parts {
    /// A memory over the elements, which must be finite. Its largest magnitude counts as unknown.
    ///
    /// # Safety
    /// The last memory over them is gone, and this one goes before they do.
    unsafe fn memory(&self) -> names::Memory<'static> {
        // SAFETY: the caller's promise; the four parts are distinct.
        unsafe {
            let memory = names::Memory::new(self.residual.lend())
                .with_states(self.states.lend())
                .with_factors(self.factors.lend());
            match &self.momentum {
                Some(momentum) => memory.with_momentum(momentum.lend()),
                None => memory,
            }
        }
    }
}

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

    pub(crate) fn check_layout(&self, layout: &Layout) -> PyResult<()> {
        let own = &self.layout.get().layout;
        if own.fingerprint() == layout.layout.fingerprint() {
            return Ok(());
        }
        let told = |layout: &names::Layout| {
            let (len, tensors, print) = (layout.len(), layout.tensors().len(), layout.fingerprint());
            format!("{len} elements in {tensors} tensors (fingerprint {print:016x})")
        };
        Err(value(format!("layout: expected the memory's, {}, got {}", told(own), told(&layout.layout))))
    }

    fn new_for(spec: &Spec, layout: Py<Layout>, states: Option<usize>) -> PyResult<Self> {
        let sizes = names::Memory::for_spec(spec, &layout.get().layout.as_ref());
        let sizes = sizes.ok_or_else(|| value(format!("{spec}: it keeps nothing and has no memory")))?;
        let states = states.filter(|_| !sizes.states().is_empty()).unwrap_or(sizes.states().len());
        let parts = Parts {
            residual: Fixed::new(0.0, sizes.residual().len()),
            momentum: sizes.momentum().map(|momentum| Fixed::new(0.0, momentum.len())),
            states: Fixed::new(UnitState::default(), states),
            factors: Fixed::new(0.0, sizes.factors().len()),
        };
        let mut memory = Self { memory: None, parts, layout, spelling: spec.to_string() };
        // It then knows that the residual is zero.
        memory.lend().clear();
        Ok(memory)
    }

    /// Lets `write` change the elements themselves. What is written must be finite.
    fn rewrite<T>(&mut self, write: impl FnOnce(&mut Elements<'_>) -> T) -> T {
        self.memory = None;
        // SAFETY: the memory over these elements is gone, and the slices end with this block.
        let mut elements = unsafe {
            Elements {
                residual: self.parts.residual.lend(),
                momentum: self.parts.momentum.as_ref().map(|momentum| momentum.lend()),
                states: self.parts.states.lend(),
                factors: self.parts.factors.lend(),
            }
        };
        let result = write(&mut elements);
        self.lend();
        result
    }
}

/// The elements of a memory, to be written to.
struct Elements<'a> {
    residual: &'a mut [f32],
    momentum: Option<&'a mut [f32]>,
    states: &'a mut [UnitState],
    factors: &'a mut [f32],
}

/// What a saved state holds, after every check.
struct Loaded {
    residual: Vec<f32>,
    momentum: Option<Vec<f32>>,
    states: Vec<UnitState>,
    factors: Vec<f32>,
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (codec, layout, *, units=None))]
    fn new(codec: &Codec, layout: &Bound<'_, PyAny>, units: Option<Vec<UnitTuple>>) -> PyResult<Self> {
        let layout = layout_of(layout)?;
        let units = codec.units_for(&layout.get().layout.as_ref(), units)?;
        let states = units.last().map(|unit| unit.id as usize + 1);
        Self::new_for(&codec.spec, layout, states)
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
        let py = slf.py();
        let state = PyDict::new(py);
        state.set_item("version", 1)?;
        state.set_item("codec", &Self::borrow_beside(slf)?.spelling)?;
        state.set_item("residual", by_tensor(slf, &Self::residual(slf)?)?)?;
        let momentum = Self::momentum(slf)?.map(|momentum| by_tensor(slf, &momentum)).transpose()?;
        state.set_item("momentum", momentum)?;
        state.set_item("factors", Self::factors(slf)?.call_method0("copy")?)?;
        let memory = Self::borrow_beside(slf)?;
        let states = memory.get().map_or(&[][..], |memory| memory.states());
        let words: Vec<[u32; 4]> = states.iter().map(|state| state.words()).collect();
        state.set_item("states", words)?;
        Ok(state)
    }

    /// Restores what :meth:`state_dict` returned. Tensors are found by name, so that they may stand in
    /// another order, as long as all of them and no others are there; what adaptive codecs and ``powersgd``
    /// keep beside tensors needs the same order. An exception leaves the memory as it was.
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
        let loaded = read_state(slf, state)?;
        let mut memory = Self::borrow_alone(slf)?;
        memory.rewrite(|elements| {
            elements.residual.copy_from_slice(&loaded.residual);
            if let (Some(momentum), Some(loaded)) = (&mut elements.momentum, &loaded.momentum) {
                momentum.copy_from_slice(loaded);
            }
            elements.states.copy_from_slice(&loaded.states);
            elements.factors.copy_from_slice(&loaded.factors);
        });
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
            return Ok(Memory::layout(slf)?
                .get()
                .layout
                .tensors()
                .iter()
                .map(|tensor| tensor.name.clone())
                .collect());
        }
        let source = Self::borrow_beside(other)?;
        let mut memory = Self::borrow_alone(slf)?;
        let (own, theirs) = (memory.layout.clone_ref(py), source.layout.clone_ref(py));
        let Some(lent) = source.get() else { return Ok(Vec::new()) };
        let is_same = own.get().layout.tensors() == theirs.get().layout.tensors();
        let taken = memory.rewrite(|elements| {
            let mut taken = Vec::new();
            for tensor in own.get().layout.tensors() {
                let Ok(from) = theirs.get().find(&tensor.name) else { continue };
                if from.shape != tensor.shape {
                    continue;
                }
                let (to, from) = (range_of(tensor), range_of(from));
                elements.residual[to.clone()].copy_from_slice(&lent.residual()[from.clone()]);
                if let (Some(momentum), Some(theirs)) = (&mut elements.momentum, lent.momentum()) {
                    momentum[to].copy_from_slice(&theirs[from]);
                }
                taken.push(tensor.name.clone());
            }
            if is_same && elements.states.len() == lent.states().len() {
                elements.states.copy_from_slice(lent.states());
            }
            if is_same && elements.factors.len() == lent.factors().len() {
                elements.factors.copy_from_slice(lent.factors());
            }
            taken
        });
        Ok(taken)
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
            Py::new(py, Self::new_for(&spec, memory.layout.clone_ref(py), Some(memory.parts.states.len))?)?
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

/// Copies of the tensors of a flat array, by name and in their shapes.
fn by_tensor<'py>(slf: &Bound<'py, Memory>, flat: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let layout = Memory::layout(slf)?;
    let tensors = PyDict::new(slf.py());
    for tensor in layout.get().layout.tensors() {
        let slice = layout.bind(slf.py()).call_method1("slice", (&tensor.name,))?;
        let copy = flat.get_item(slice)?.call_method0("copy")?;
        tensors.set_item(&tensor.name, reshaped(copy, &tensor.shape)?)?;
    }
    Ok(tensors)
}

fn read_state(slf: &Bound<'_, Memory>, state: &Bound<'_, PyAny>) -> PyResult<Loaded> {
    let state = state
        .cast::<PyDict>()
        .map_err(|_| PyTypeError::new_err("state: expected what state_dict returned"))?;
    let part = |name: &str| state.get_item(name)?.ok_or_else(|| value(format!("state: '{name}' is missing")));
    let version: u32 = part("version")?.extract()?;
    if version != 1 {
        return Err(value(format!("state: version {version}: expected 1")));
    }
    let layout = Memory::layout(slf)?;
    let memory = Memory::borrow_beside(slf)?;
    let residual = flat_of(&part("residual")?, &layout, "residual")?;
    let momentum = part("momentum")?;
    let momentum = match (&memory.parts.momentum, momentum.is_none()) {
        (None, true) => None,
        (Some(_), false) => Some(flat_of(&momentum, &layout, "momentum")?),
        (None, false) => return Err(value("state: momentum: expected None, as this codec has none")),
        (Some(_), true) => {
            return Err(value("state: momentum: expected one, as this codec has it, got None"));
        }
    };
    let words: Vec<[u32; 4]> = part("states")?.extract()?;
    let factors = f32s_of(&part("factors")?, "state: factors")?;
    let expected = (memory.parts.states.len, memory.parts.factors.len);
    if (words.len(), factors.len()) != expected {
        return Err(value(format!(
            "state: expected {} states and {} factors, got {} and {}",
            expected.0,
            expected.1,
            words.len(),
            factors.len()
        )));
    }
    check_finite(&factors, "factors")?;
    if expected != (0, 0) {
        let names: Vec<String> = part("residual")?.cast::<PyDict>()?.keys().extract()?;
        let own: Vec<&str> =
            layout.get().layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        if names != own {
            return Err(value(format!("state: expected the tensors in the order {own:?}, got {names:?}")));
        }
    }
    let states = words.into_iter().map(UnitState::from_words).collect();
    Ok(Loaded { residual, momentum, states, factors })
}

/// A dict of tensors as one flat array.
fn flat_of(tensors: &Bound<'_, PyAny>, layout: &Py<Layout>, what: &str) -> PyResult<Vec<f32>> {
    let tensors = tensors
        .cast::<PyDict>()
        .map_err(|_| PyTypeError::new_err(format!("state: {what}: expected a dict of name to array")))?;
    let layout = &layout.get().layout;
    let mut flat = vec![0.0; layout.len()];
    for tensor in layout.tensors() {
        let name = &tensor.name;
        let array = tensors
            .get_item(name)?
            .ok_or_else(|| value(format!("state: {what}: the tensor '{name}' is missing")))?;
        let values = f32s_of(&array, &format!("state: {what}: {name}"))?;
        let shape: Vec<usize> = array.getattr("shape")?.cast_into::<PyTuple>()?.extract()?;
        if shape != tensor.shape {
            return Err(value(format!(
                "state: {what}: {name}: expected shape {:?}, got {shape:?}",
                tensor.shape
            )));
        }
        check_finite(&values, &format!("{what}: {name}"))?;
        flat[range_of(tensor)].copy_from_slice(&values);
    }
    if tensors.len() != layout.tensors().len() {
        let own: Vec<&str> = layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let others = PyList::empty(tensors.py());
        for name in tensors.keys() {
            if !own.contains(&&*name.extract::<String>()?) {
                others.append(name)?;
            }
        }
        return Err(value(format!("state: {what}: unexpected tensors {others}")));
    }
    Ok(flat)
}

fn check_finite(values: &[f32], what: &str) -> PyResult<()> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(value(format!("state: {what}: expected finite values, got {} at {at}", values[at]))),
    }
}
