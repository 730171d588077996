//! What a recorded run says of its model.

use std::num::NonZeroUsize;
use std::path::Path;

use crate::codec_cli::median;
use crate::command::Failure;
use crate::record::LoggedRun;

/// Parameters of the model: as given, or as the run recorded them.
pub(super) fn params(given: Option<NonZeroUsize>, path: &Path, run: &LoggedRun) -> Result<usize, Failure> {
    given
        .map(NonZeroUsize::get)
        .or(run.params)
        .ok_or_else(|| Failure::of_file(path, "does not say how many parameters there are; give --params"))
}

/// Milliseconds that a step computes: the median, which the first steps hardly change.
pub(super) fn compute_ms(path: &Path, run: &LoggedRun) -> Result<f64, Failure> {
    let recorded: Vec<f64> =
        run.metrics.iter().filter_map(|line| line.compute_ns).map(|ns| ns as f64 / 1e6).collect();
    Some(median(recorded)).filter(|&ms| ms > 0.0).ok_or_else(|| no_compute_time(path))
}

/// What is said of a run without such times.
pub(super) fn no_compute_time(path: &Path) -> Failure {
    Failure::of_file(path, "did not record how long a step computes; give --compute-ms")
}
