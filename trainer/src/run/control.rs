//! Where a run begins, and what may end it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::checkpoint::Checkpoint;
use crate::record::Metrics;

/// Where a run begins and what may end it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control<'a> {
    /// Continue from here, with the metrics of the steps done.
    pub start: Option<(&'a Checkpoint, &'a [Metrics])>,
    /// When it becomes true, the step in progress is finished, a checkpoint is made, and the run ends.
    pub interrupt: Option<&'a AtomicBool>,
}

impl<'a> Control<'a> {
    pub(crate) fn start(&self) -> Option<&'a Checkpoint> {
        self.start.map(|(checkpoint, _)| checkpoint)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
    }
}
