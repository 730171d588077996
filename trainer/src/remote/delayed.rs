//! The server's checkpoints, each held back until the workers have theirs of the same step.
//!
//! A worker records its residual before it sends anything of the next step. So when the frames of that step
//! are here, both ends can continue from the checkpoint, whichever was killed, and to the same bits.

use crate::checkpoint::Checkpoint;
use crate::record::Metrics;
use crate::run::Observer;

/// Passes on what it is told, but checkpoints a step late.
pub(super) struct Delayed<'a> {
    observer: &'a mut dyn Observer,
    checkpoint: Option<Checkpoint>,
}

impl<'a> Delayed<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer) -> Self {
        Self { observer, checkpoint: None }
    }

    /// Passes on the checkpoint that is held, if there is one: no step follows it in this process.
    pub(super) fn write(&mut self) -> Result<(), String> {
        self.checkpoint.take().map_or(Ok(()), |checkpoint| self.observer.checkpoint(&checkpoint))
    }
}

impl Observer for Delayed<'_> {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.observer.step(metrics)?;
        // A void step may lack the frame that would have said that its sender is ready.
        if metrics.contributors > 0 { self.write() } else { Ok(()) }
    }

    fn refused(&mut self, step: u64, why: &str) {
        self.observer.refused(step, why);
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.checkpoint = Some(checkpoint.clone());
        Ok(())
    }
}
