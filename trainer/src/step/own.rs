//! What a worker makes of its own batches before anything is exchanged, where that needs a state of its own.

use crate::job::{Job, JobError};
use crate::optim::{Moments, Optimizer, StateError};

/// State that differs from worker to worker.
pub(super) enum Own {
    /// Each gradient becomes an update.
    Updates(Moments),
    /// Some steps from the parameters that all have; how far they led is what is exchanged.
    Local {
        optimizer: Box<dyn Optimizer>,
        /// Parameters of the step under way.
        params: Vec<f32>,
    },
}

impl Own {
    /// At the beginning of a run; `None` if gradients are exchanged.
    pub(super) fn of(job: &Job) -> Result<Option<Self>, JobError> {
        if let Some(optimizer) = job.build_local_optimizer()? {
            return Ok(Some(Self::Local { optimizer, params: vec![0.0; job.layout.len()] }));
        }
        Ok(job.own_moments()?.map(Self::Updates))
    }

    /// Gradients so far.
    pub(super) fn steps(&self) -> u64 {
        match self {
            Self::Updates(moments) => moments.steps(),
            Self::Local { optimizer, .. } => optimizer.steps(),
        }
    }

    /// What must be kept from step to step, by name.
    pub(super) fn state(&self) -> Vec<(&'static str, &[f32])> {
        match self {
            Self::Updates(moments) => moments.state(),
            Self::Local { optimizer, .. } => optimizer.state(),
        }
    }

    /// Continues from that state; after an error nothing has changed.
    pub(super) fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        match self {
            Self::Updates(moments) => moments.restore(steps, state),
            Self::Local { optimizer, .. } => optimizer.restore(steps, state),
        }
    }
}
