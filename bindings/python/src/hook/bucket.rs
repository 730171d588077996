//! What Python hands over of a bucket.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::lane::{Place, Tensor};
use crate::codec::Codec;
use crate::errors::value;

/// Tensors of a bucket that one lane sends: identifiers of units, ascending, each with its length and the
/// addresses of its gradient and its mean. The address of what a tensor lacks is 0. Python keeps the memory
/// in place, as contiguous float32 on the CPU, until the bucket is done.
#[pyclass(frozen, module = "gradwire._core", name = "_Share")]
pub(crate) struct Share {
    pub(super) lane: usize,
    pub(super) tensors: Vec<Tensor>,
}

#[pymethods]
impl Share {
    #[new]
    fn new(lane: usize, tensors: Vec<(u32, usize, usize, usize)>) -> PyResult<Self> {
        let is_aligned = |(_, _, gradient, mean): &(u32, usize, usize, usize)| (gradient | mean) % 4 == 0;
        if !tensors.iter().all(is_aligned) || !tensors.is_sorted_by(|one, next| one.0 < next.0) {
            return Err(value("tensors: expected ascending units and aligned addresses"));
        }
        let place = |address, len| (address != 0).then_some(Place { address, len });
        let tensor =
            |(id, len, gradient, mean)| Tensor { id, gradient: place(gradient, len), mean: place(mean, len) };
        Ok(Self { lane, tensors: tensors.into_iter().map(tensor).collect() })
    }
}

/// With the first bucket of a step: what the step is.
pub(super) struct Opening {
    /// The lanes that take part, and the codec of each in this step.
    pub(super) lanes: Vec<usize>,
    pub(super) codecs: Vec<Py<Codec>>,
    /// The scale of the gradients, and the learning rate that residuals follow.
    pub(super) scale: Option<f64>,
    pub(super) lr: Option<f64>,
}

/// The same, as Python says it.
type OpeningTuple = (Vec<usize>, Vec<Py<Codec>>, Option<f64>, Option<f64>);

/// A bucket of gradients, to be replaced by their means.
#[pyclass(module = "gradwire._core", name = "_Bucket")]
pub(crate) struct Bucket {
    #[pyo3(get)]
    pub(super) index: u32,
    pub(super) is_last: bool,
    pub(super) agreed: u32,
    pub(super) opening: Option<Opening>,
    pub(super) shares: Vec<Py<Share>>,
    /// Gradients that are elsewhere than a share says: the share, the place in it, and the address.
    pub(super) elsewhere: Vec<(usize, usize, usize)>,
    /// Elements of all of its tensors.
    pub(super) elements: u64,
    pub(super) used: Vec<u8>,
    /// Parameters to be hashed: the address and the bytes of each.
    pub(super) parameters: Vec<(usize, usize)>,
    /// An exception that kept the bucket from being described.
    pub(super) failure: Option<Py<PyAny>>,
    /// Called before gradients are read; returns the shares, and the parameters to be hashed.
    pub(super) fetch: Option<Py<PyAny>>,
    /// Called when the means are there, with whether they are void.
    pub(super) store: Option<Py<PyAny>>,
    /// Called when the bucket is done, with the bits of the tensors that any rank used.
    pub(super) done: Py<PyAny>,
    /// Makes a context in which a profiler sees a part of the work; `None` if no profiler runs.
    trace: Option<Py<PyAny>>,
    _keep: Py<PyAny>,
}

#[pymethods]
impl Bucket {
    #[new]
    #[pyo3(signature = (index, is_last, *, done, keep, agreed=0, opening=None, shares=Vec::new(), elsewhere=Vec::new(), elements=0, used=Vec::new(), parameters=Vec::new(), failure=None, fetch=None, store=None, trace=None))]
    #[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
    fn new(
        index: u32,
        is_last: bool,
        done: Py<PyAny>,
        keep: Py<PyAny>,
        agreed: u32,
        opening: Option<OpeningTuple>,
        shares: Vec<Py<Share>>,
        elsewhere: Vec<(usize, usize, usize)>,
        elements: u64,
        used: Vec<u8>,
        parameters: Vec<(usize, usize)>,
        failure: Option<Py<PyAny>>,
        fetch: Option<Py<PyAny>>,
        store: Option<Py<PyAny>>,
        trace: Option<Py<PyAny>>,
    ) -> Self {
        Self {
            index,
            is_last,
            agreed,
            opening: opening.map(|(lanes, codecs, scale, lr)| Opening { lanes, codecs, scale, lr }),
            shares,
            elsewhere,
            elements,
            used,
            parameters,
            failure,
            fetch,
            store,
            done,
            trace,
            _keep: keep,
        }
    }
}

/// A bucket on its way.
pub(super) struct Travelling {
    pub(super) bucket: Py<Bucket>,
    pub(super) index: u32,
    pub(super) is_last: bool,
    pub(super) elements: u64,
    /// By lane: its tensors, and the number of the part, once it is added.
    pub(super) shares: Vec<(usize, Vec<Tensor>, Option<usize>)>,
    /// Whether this rank's gradients cannot be sent.
    pub(super) is_broken: bool,
    pub(super) has_store: bool,
    is_traced: bool,
}

impl Travelling {
    /// Its content, as long as Python has no other call under way.
    pub(super) fn of(py: Python<'_>, bucket: Py<Bucket>) -> Self {
        let content = bucket.borrow(py);
        let (index, is_last, elements) = (content.index, content.is_last, content.elements);
        let (has_store, is_traced) = (content.store.is_some(), content.trace.is_some());
        drop(content);
        Self { bucket, index, is_last, elements, shares: Vec::new(), is_broken: false, has_store, is_traced }
    }

    /// Reads where its tensors are. Fetches them first, if that is needed.
    pub(super) fn locate(&mut self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        let mut content = self.bucket.borrow_mut(py);
        if let Some(fetch) = content.fetch.take() {
            // Python may look at the bucket meanwhile.
            drop(content);
            let fetched: (Vec<Py<Share>>, Vec<(usize, usize)>) = fetch.call0(py)?.extract(py)?;
            content = self.bucket.borrow_mut(py);
            (content.shares, content.parameters) = fetched;
        }
        let share = |share: &Py<Share>| (share.get().lane, share.get().tensors.clone(), None);
        self.shares = content.shares.iter().map(share).collect();
        for (share, at, address) in &content.elsewhere {
            let tensors = self.shares.get_mut(*share).map(|(_, tensors, _)| tensors);
            let gradient = tensors.and_then(|tensors| tensors.get_mut(*at)?.gradient.as_mut());
            gradient.ok_or_else(|| value("elsewhere: there is no such gradient"))?.address = *address;
        }
        Ok(std::mem::take(&mut content.parameters))
    }
}

/// A part of the work that a profiler sees until this is dropped.
pub(super) struct Traced(Py<PyAny>);

impl Drop for Traced {
    fn drop(&mut self) {
        // A profiler that fails does not end a step.
        Python::attach(|py| drop(self.0.call_method1(py, "__exit__", (py.None(), py.None(), py.None()))));
    }
}

impl Travelling {
    /// Shows a part of the work on the bucket to a profiler, if one runs.
    pub(super) fn trace(&self, name: &str) -> Option<Traced> {
        if !self.is_traced {
            return None;
        }
        Python::attach(|py| {
            let trace = self.bucket.borrow(py).trace.as_ref()?.clone_ref(py);
            let context = trace.call1(py, (name,)).ok()?;
            context.call_method0(py, "__enter__").ok()?;
            Some(Traced(context))
        })
    }

    /// Its means are there, or will never be finite.
    pub(super) fn store(&self, py: Python<'_>, is_bad: bool) -> PyResult<()> {
        let store = self.bucket.borrow(py).store.as_ref().map(|store| store.clone_ref(py));
        store.map_or(Ok(()), |store| store.call1(py, (is_bad,)).map(|_| ()))
    }

    /// Nothing more becomes of it.
    pub(super) fn done(&self, py: Python<'_>, used: &[u8]) -> PyResult<()> {
        let done = self.bucket.borrow(py).done.clone_ref(py);
        done.call1(py, (PyBytes::new(py, used),)).map(|_| ())
    }
}
