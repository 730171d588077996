//! Observers, which are told of the steps of a run.

use crate::checkpoint::Checkpoint;
use crate::record::Metrics;

/// Hears of every step, in order, on the thread that called [`run`](super::run).
pub trait Observer {
    /// A step is complete.
    ///
    /// # Errors
    ///
    /// What went wrong, in one line; the run then ends.
    fn step(&mut self, metrics: &Metrics) -> Result<(), String>;

    /// A step was refused, and skipped by all workers.
    fn refused(&mut self, step: u64, why: &str);

    /// A checkpoint is due; [`step`](Self::step) was told of all its steps.
    ///
    /// # Errors
    ///
    /// What went wrong, in one line; the run then ends.
    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        let _ = checkpoint;
        Ok(())
    }
}
