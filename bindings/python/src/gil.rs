//! Work without the GIL.

use pyo3::prelude::*;

/// Work on fewer bytes keeps the GIL, because letting go of it would take longer.
const DETACH_ABOVE_BYTES: usize = 64 << 10;

/// Runs `work` without the GIL if it is about many bytes.
pub(crate) fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes > DETACH_ABOVE_BYTES { py.detach(work) } else { work() }
}
