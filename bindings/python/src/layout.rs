//! Layouts: which tensors a flat gradient holds, in which order.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PySlice, PyTuple};

use crate::errors::value;
use crate::names;

/// The tensors of a flat gradient: their names and shapes, in order.
///
/// Made from a dict of name to shape, from a state dict (anything whose values have a ``shape``), from pairs
/// of name and shape, or from a single length. Both ends hold the same layout; the fingerprint in every frame
/// tells when they do not.
///
/// >>> from gradwire import Layout
/// >>> layout = Layout({"fc.weight": (10, 64), "fc.bias": (10,)})
/// >>> len(layout), layout.names
/// (650, ['fc.weight', 'fc.bias'])
/// >>> layout.slice("fc.bias")
/// slice(640, 650, None)
/// >>> Layout(650) == layout
/// False
#[pyclass(frozen, module = "gradwire", name = "Layout")]
pub(crate) struct Layout {
    pub(crate) layout: names::Layout,
}

#[pymethods]
impl Layout {
    #[new]
    #[pyo3(signature = (tensors, /))]
    fn new(tensors: &Bound<'_, PyAny>) -> PyResult<Self> {
        let packed = |table: Vec<(String, Vec<usize>)>| {
            let layout = names::Layout::packed(table).map_err(|error| value(format!("layout: {error}")))?;
            Ok(Self { layout })
        };
        if let Ok(layout) = tensors.cast::<Self>() {
            return Ok(Self { layout: layout.get().layout.clone() });
        }
        if tensors.is_instance_of::<PyInt>() && !tensors.is_instance_of::<PyBool>() {
            let len = tensors.extract().map_err(|_| value("layout: expected a length from 0 on"))?;
            return packed(vec![(String::new(), vec![len])]);
        }
        let py = tensors.py();
        let pairs = match tensors.getattr_opt(intern!(py, "items"))? {
            Some(items) => items.call0()?,
            None if tensors.is_instance_of::<PyList>() => tensors.clone(),
            None => {
                let text = format!(
                    "layout: expected a Layout, a length, a dict of name to shape, or a list of pairs, got {}",
                    tensors.get_type().name()?
                );
                return Err(PyTypeError::new_err(text));
            }
        };
        let mut table = Vec::new();
        for pair in pairs.try_iter()? {
            let (name, tensor): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let shape = shape_of(&tensor, &name)?;
            if table.iter().any(|(other, _)| *other == name) {
                return Err(value(format!("layout: the name '{name}' stands twice")));
            }
            table.push((name, shape));
        }
        packed(table)
    }

    /// The fingerprint over shapes and order, which every frame states; names are no part of it.
    ///
    /// >>> from gradwire import Layout
    /// >>> Layout({"a": (2, 3)}).fingerprint == Layout({"b": (2, 3)}).fingerprint
    /// True
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.layout.fingerprint()
    }

    /// Names of the tensors, in order; a single length has the name ``''``.
    #[getter]
    pub(crate) fn names(&self) -> Vec<&str> {
        self.layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect()
    }

    /// Shapes of the tensors, in order.
    ///
    /// >>> from gradwire import Layout
    /// >>> Layout({"w": (2, 3), "scale": ()}).shapes
    /// [(2, 3), ()]
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.layout.tensors().iter().map(|tensor| PyTuple::new(py, &tensor.shape)).collect()
    }

    /// Where a tensor stands in the flat gradient.
    ///
    /// >>> from gradwire import Layout
    /// >>> Layout({"w": (2, 3), "b": (3,)}).slice("b")
    /// slice(6, 9, None)
    fn slice<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PySlice>> {
        // Not `PySlice::new`, which has a step and prints it.
        let range = range_of(self.find(name)?);
        Ok(py.get_type::<PySlice>().call1((range.start, range.end))?.cast_into()?)
    }

    fn __len__(&self) -> usize {
        self.layout.len()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let Ok(other) = other.cast::<Self>() else { return false };
        self.layout.tensors() == other.get().layout.tensors()
    }

    fn __hash__(&self) -> u64 {
        self.layout.fingerprint()
    }

    fn __repr__(&self) -> String {
        let count = self.layout.tensors().len();
        let tensors = if count == 1 { "tensor" } else { "tensors" };
        format!("<gradwire.Layout of {} elements in {count} {tensors}>", self.layout.len())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let layout = &slf.get().layout;
        let pairs: Vec<(&str, Bound<'py, PyTuple>)> = layout
            .tensors()
            .iter()
            .map(|tensor| Ok((tensor.name.as_str(), PyTuple::new(py, &tensor.shape)?)))
            .collect::<PyResult<_>>()?;
        Ok((slf.get_type(), (pairs,)).into_pyobject(py)?.into_any())
    }
}

impl Layout {
    pub(crate) fn find(&self, name: &str) -> PyResult<&names::Tensor> {
        let found = self.layout.tensors().iter().find(|tensor| tensor.name == name);
        found
            .ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(format!("no tensor '{name}' in the layout")))
    }
}

/// The elements of a tensor in the flat gradient.
pub(crate) fn range_of(tensor: &names::Tensor) -> std::ops::Range<usize> {
    let len: usize = tensor.shape.iter().product();
    tensor.offset..tensor.offset + len
}

/// The layout that an argument `layout=` stands for.
pub(crate) fn layout_of(object: &Bound<'_, PyAny>) -> PyResult<Py<Layout>> {
    match object.cast::<Layout>() {
        Ok(layout) => Ok(layout.clone().unbind()),
        Err(_) => Py::new(object.py(), Layout::new(object)?),
    }
}

/// A layout of which only the length is known.
pub(crate) fn flat(py: Python<'_>, len: usize) -> PyResult<Py<Layout>> {
    let layout =
        names::Layout::packed([("", vec![len])]).map_err(|error| value(format!("layout: {error}")))?;
    Py::new(py, Layout { layout })
}

fn shape_of(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<usize>> {
    let shape = match tensor.getattr_opt(intern!(tensor.py(), "shape"))? {
        Some(shape) => shape,
        None => tensor.clone(),
    };
    if let Ok(len) = shape.extract::<usize>() {
        return Ok(vec![len]);
    }
    // Not a list of integers of numpy's: those have a `__len__` and are read element by element.
    let sizes: PyResult<Vec<usize>> =
        shape.try_iter().and_then(|sizes| sizes.map(|size| size?.extract()).collect());
    sizes.map_err(|_| {
        PyTypeError::new_err(format!(
            "layout: expected a shape for '{name}' (a tuple of lengths, or an array)"
        ))
    })
}
