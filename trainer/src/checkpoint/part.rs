//! What one rank needs of a checkpoint that another one has read.

use gradwire::Layout;
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointError, Snapshot, Totals};
use crate::config::RunConfig;

/// The state in which one rank continues.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Steps done.
    steps: u64,
    state: Snapshot,
}

impl Checkpoint {
    /// The part of that rank.
    pub(crate) fn part(&self, rank: usize) -> Part {
        let of = |all: &[Vec<f32>]| all.get(rank).cloned().unwrap_or_default();
        let state = Snapshot {
            replica: self.replicas.get(rank).or(self.replicas.first()).cloned(),
            memory: self.memories.get(rank).cloned().unwrap_or_default(),
            gradient: of(&self.gradients),
            carried: of(&self.carried),
            downlink: Vec::new(),
            norms: self.norms.clone(),
            best: self.best.clone(),
            controller: self.controller.clone(),
        };
        Part { steps: self.steps, state }
    }
}

impl Part {
    /// A checkpoint in which only that rank has a state.
    ///
    /// # Errors
    ///
    /// `Foreign` for the state of another model.
    pub(crate) fn into_checkpoint(
        self,
        rank: usize,
        config: &RunConfig,
        layout: &Layout,
    ) -> Result<Checkpoint, CheckpointError> {
        let Self { steps, state } = self;
        let foreign = |what: &str| {
            CheckpointError::foreign(format!("state of rank {rank}"), format!("{what} of another model"))
        };
        let fits = |values: &[f32]| values.len() == layout.len();
        let replica = state.replica.ok_or_else(|| foreign("no replica, so that it may be"))?;
        let is_delayed = config.is_delayed();
        if !fits(&replica.params) || !state.best.iter().all(|best| fits(&best.params)) {
            return Err(foreign("parameters"));
        }
        if is_delayed && !fits(&state.gradient) {
            return Err(foreign("a gradient"));
        }
        let gradients = if is_delayed { alone(rank, state.gradient) } else { Vec::new() };
        Ok(Checkpoint {
            config: config.clone(),
            steps,
            worker: None,
            replicas: vec![replica],
            memories: alone(rank, state.memory),
            gradients,
            carried: alone(rank, state.carried),
            downlink: state.downlink,
            norms: state.norms,
            best: state.best,
            controller: state.controller,
            totals: Totals::default(),
        })
    }
}

/// A list by rank in which only that rank has something.
fn alone<T: Clone>(rank: usize, own: Vec<T>) -> Vec<Vec<T>> {
    let mut all = vec![Vec::new(); rank];
    all.push(own);
    all
}
