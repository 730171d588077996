//! A memory as a dict of arrays and names, and back.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple};

use super::parts::Elements;
use super::{Memory, view};
use crate::array::reshaped;
use crate::buffer::f32s_of;
use crate::errors::value;
use crate::layout::{Layout, range_of};
use crate::names::{ArrayLen, UnitState};

/// Copies of everything that the memory holds.
pub(super) fn dict_of<'py>(slf: &Bound<'py, Memory>) -> PyResult<Bound<'py, PyDict>> {
    let py = slf.py();
    let state = PyDict::new(py);
    state.set_item("version", 1)?;
    state.set_item("codec", &Memory::borrow_beside(slf)?.spelling)?;
    state.set_item("residual", by_tensor(slf, &Memory::residual(slf)?)?)?;
    let momentum = Memory::momentum(slf)?.map(|momentum| by_tensor(slf, &momentum)).transpose()?;
    state.set_item("momentum", momentum)?;
    state.set_item("factors", Memory::factors(slf)?.call_method0("copy")?)?;
    let memory = Memory::borrow_beside(slf)?;
    let states = memory.get().map_or(&[][..], |memory| memory.states());
    let words: Vec<[u32; 4]> = states.iter().map(|state| state.words()).collect();
    state.set_item("states", words)?;
    let arrays = memory.parts.arrays.clone();
    drop(memory);
    state.set_item("arrays", by_name(slf, &arrays)?)?;
    Ok(state)
}

/// Copies of the arrays, by name.
fn by_name<'py>(slf: &Bound<'py, Memory>, arrays: &[ArrayLen]) -> PyResult<Bound<'py, PyDict>> {
    let (found, mut start) = (PyDict::new(slf.py()), 0);
    let all = view(slf, |memory| Some(&memory.parts.values))?;
    for (array, all) in arrays.iter().zip(std::iter::repeat(all).flatten()) {
        let end = start + array.len;
        let slice = PySlice::new(slf.py(), start as isize, end as isize, 1);
        found.set_item(array.name, all.get_item(slice)?.call_method0("copy")?)?;
        start = end;
    }
    Ok(found)
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

/// What a saved state holds, after every check.
pub(super) struct Loaded {
    residual: Vec<f32>,
    momentum: Option<Vec<f32>>,
    states: Vec<UnitState>,
    factors: Vec<f32>,
    /// Those of all arrays.
    values: Vec<f32>,
}

impl Loaded {
    pub(super) fn of(slf: &Bound<'_, Memory>, state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let state = state
            .cast::<PyDict>()
            .map_err(|_| PyTypeError::new_err("state: expected what state_dict returned"))?;
        let part =
            |name: &str| state.get_item(name)?.ok_or_else(|| value(format!("state: '{name}' is missing")));
        let version: u32 = part("version")?.extract()?;
        if version != 1 {
            return Err(value(format!("state: version {version}: expected 1")));
        }
        let layout = Memory::layout(slf)?;
        let memory = Memory::borrow_beside(slf)?;
        let residual = flat_of(&part("residual")?, layout.get(), "residual")?;
        let momentum = part("momentum")?;
        let momentum = match (&memory.parts.momentum, momentum.is_none()) {
            (None, true) => None,
            (Some(_), false) => Some(flat_of(&momentum, layout.get(), "momentum")?),
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
        let values = arrays_of(state, &memory.parts.arrays)?;
        if expected != (0, 0) || !values.is_empty() {
            let names: Vec<String> = part("residual")?.cast::<PyDict>()?.keys().extract()?;
            let own = layout.get().names();
            if names != own {
                return Err(value(format!(
                    "state: expected the tensors in the order {own:?}, got {names:?}"
                )));
            }
        }
        let states = words.into_iter().map(UnitState::from_words).collect();
        Ok(Self { residual, momentum, states, factors, values })
    }

    pub(super) fn write_to(&self, elements: &mut Elements<'_>) {
        elements.residual.copy_from_slice(&self.residual);
        if let (Some(momentum), Some(loaded)) = (&mut elements.momentum, &self.momentum) {
            momentum.copy_from_slice(loaded);
        }
        elements.states.copy_from_slice(&self.states);
        elements.factors.copy_from_slice(&self.factors);
        elements.values.copy_from_slice(&self.values);
    }
}

/// The values of all arrays, of which a state from before there were any has none.
fn arrays_of(state: &Bound<'_, PyDict>, expected: &[ArrayLen]) -> PyResult<Vec<f32>> {
    let arrays = match state.get_item("arrays")? {
        None => PyDict::new(state.py()),
        Some(arrays) => arrays
            .cast_into()
            .map_err(|_| PyTypeError::new_err("state: arrays: expected a dict of name to array"))?,
    };
    let (names, mut all): (Vec<&str>, _) = (expected.iter().map(|array| array.name).collect(), Vec::new());
    let given: Vec<String> = arrays.keys().extract()?;
    if given.len() != names.len() || !given.iter().all(|name| names.contains(&&**name)) {
        return Err(value(format!("state: arrays: expected {names:?}, got {given:?}")));
    }
    for array in expected {
        let given = arrays.get_item(array.name)?.ok_or_else(|| value("state: arrays: one is missing"))?;
        let values = f32s_of(&given, &format!("state: arrays: {}", array.name))?;
        if values.len() != array.len {
            let (name, len, got) = (array.name, array.len, values.len());
            return Err(value(format!("state: arrays: {name}: expected {len} elements, got {got}")));
        }
        check_finite(&values, &format!("arrays: {}", array.name))?;
        all.extend_from_slice(&values);
    }
    Ok(all)
}

/// A dict of tensors as one flat array.
fn flat_of(tensors: &Bound<'_, PyAny>, layout: &Layout, what: &str) -> PyResult<Vec<f32>> {
    let tensors = tensors
        .cast::<PyDict>()
        .map_err(|_| PyTypeError::new_err(format!("state: {what}: expected a dict of name to array")))?;
    let mut flat = vec![0.0; layout.layout.len()];
    for tensor in layout.layout.tensors() {
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
    if tensors.len() != layout.layout.tensors().len() {
        let own = layout.names();
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
