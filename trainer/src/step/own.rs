//! What a worker makes of its own batches before anything is exchanged, where that needs a state of its own.

use crate::job::{Job, JobError};
use crate::optim::{Moments, Optimizer, StateError};

/// The name of where a worker is among its state.
const PLACE: &str = "place";

/// State that differs from worker to worker.
pub(super) enum Own {
    /// Each gradient becomes an update.
    Updates(Moments),
    /// Some steps from the parameters that all have; how far they led is what is exchanged.
    Local {
        optimizer: Box<dyn Optimizer>,
        /// Where this worker is.
        params: Vec<f32>,
        /// With fragments in a delayed run: where it was in the one under way when that was sent.
        sent: Vec<f32>,
        /// Whether it is elsewhere than all between two steps: with fragments.
        is_apart: bool,
    },
}

impl Own {
    /// Of a worker that begins at these parameters; `None` if gradients are exchanged.
    pub(super) fn of(job: &Job, params: &[f32]) -> Result<Option<Self>, JobError> {
        if let Some(optimizer) = job.build_local_optimizer()? {
            let (params, sent, is_apart) = (params.to_vec(), Vec::new(), job.fragments.len() > 1);
            return Ok(Some(Self::Local { optimizer, params, sent, is_apart }));
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
            Self::Local { optimizer, params, is_apart, .. } => {
                let mut state = optimizer.state();
                state.extend(is_apart.then_some((PLACE, params.as_slice())));
                state
            }
        }
    }

    /// Continues from that state; after an error nothing has changed.
    pub(super) fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        match self {
            Self::Updates(moments) => moments.restore(steps, state),
            Self::Local { optimizer, is_apart: false, .. } => optimizer.restore(steps, state),
            Self::Local { optimizer, params, .. } => {
                let is_place = |slice: &&(&str, &[f32])| slice.0 == PLACE && slice.1.len() == params.len();
                let missing = StateError::Missing { name: PLACE, expected: params.len() };
                let place = state.iter().find(is_place).ok_or(missing)?.1;
                let others: Vec<_> = state.iter().filter(|(name, _)| *name != PLACE).copied().collect();
                optimizer.restore(steps, &others)?;
                params.copy_from_slice(place);
                Ok(())
            }
        }
    }
}
