//! What may be looked at of an engine. It keeps no thread, so whoever holds it does not keep the engine.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::kept::Kept;
use super::shared::{Last, Shared, State};

/// Step, scale, learning rate, whether a step is under way, and what became of the last one.
pub(super) type Where = (u64, Option<f64>, Option<f64>, bool, &'static str);

/// Counts, norms and the last step of an engine.
#[pyclass(frozen, module = "gradwire._core", name = "_View")]
pub(crate) struct View {
    pub(super) shared: Arc<Shared>,
    pub(super) process: u32,
}

#[pymethods]
impl View {
    /// Where the last complete step ended.
    fn progress(&self, py: Python<'_>) -> Where {
        where_of(&self.shared.lock_beside(py))
    }

    /// The L2 norm of what these lanes kept, or of a sample of it.
    #[pyo3(signature = (lanes, *, is_sampled=false))]
    fn norm(&self, py: Python<'_>, lanes: Vec<usize>, is_sampled: bool) -> f64 {
        py.detach(|| {
            // In a forked process the thread that has locked it is not there.
            let is_forked = self.process != std::process::id();
            let kept = if is_forked { self.shared.try_kept() } else { Some(self.shared.kept()) };
            let Some(kept) = kept else { return f64::NAN };
            let norm = |kept: &Kept| if is_sampled { kept.sampled_norm() } else { kept.kept().norm() };
            lanes.iter().filter_map(|at| kept[*at].as_ref()).map(norm).fold(0.0, f64::hypot)
        })
    }

    /// What was counted, by name.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = self.shared.lock_beside(py).totals;
        let found = PyDict::new(py);
        let counts = [
            ("done", totals.done),
            ("skipped", totals.skipped),
            ("checks", totals.checks),
            ("sent", totals.sent),
            ("received", totals.received),
            ("messages", totals.messages),
            ("frame", totals.frame_bytes),
            ("dense", totals.dense_bytes),
            ("held", totals.held),
        ];
        counts.into_iter().try_for_each(|(name, count)| found.set_item(name, count))?;
        let times = [("encode", totals.encode), ("exchange", totals.exchange), ("decode", totals.decode)];
        times.into_iter().try_for_each(|(name, time)| found.set_item(name, time.as_secs_f64()))?;
        Ok(found)
    }
}

pub(super) fn where_of(state: &State) -> Where {
    let last = match state.at.last {
        Last::Nothing => "none",
        Last::Holds => "holds",
        Last::Void => "nothing",
    };
    (state.at.step, state.at.scale, state.at.lr, state.under_way.is_any, last)
}
