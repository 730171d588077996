//! What a worker's next step depends on, taken out and put back: its replica, and what it keeps back.

use gradwire::Memory;
use gradwire_transports::{Rank, Transport};

use super::Worker;
use crate::checkpoint::{Checkpoint, CheckpointError, Replica, Snapshot};
use crate::optim::StateError;

impl<T: Transport> Worker<'_, T> {
    /// Parameters and optimizer state.
    pub(crate) fn replica(&self) -> Replica {
        Replica::of(&self.params, self.optimizer.as_ref())
    }

    /// Goes on from the state of another replica of this layout. What this worker keeps back stays.
    pub(crate) fn restore(&mut self, replica: &Replica) -> Result<(), StateError> {
        let Replica { params, optimizer_steps, optimizer } = replica;
        let slices: Vec<_> =
            optimizer.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
        self.optimizer.restore(*optimizer_steps, &slices)?;
        self.params.copy_from_slice(params);
        self.model.set_params(params);
        Ok(())
    }

    /// What this worker keeps back, as a saved memory; empty where the codec keeps nothing.
    pub(crate) fn kept(&self) -> Vec<u8> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let mut bytes = vec![0; memory.saved_bytes().unwrap_or(0)];
        let written = memory.save(&self.job.layout.as_ref(), &mut bytes).unwrap_or(0);
        bytes.truncate(written);
        bytes
    }

    /// Keeps back what [`kept`](Self::kept) was. The error says why it is not of this codec and model.
    pub(crate) fn keep(&mut self, saved: &[u8]) -> Result<(), String> {
        match &mut self.memory {
            Some(memory) => memory.load(&self.job.layout.as_ref(), saved).map_err(|error| error.to_string()),
            None if !saved.is_empty() => Err("this codec keeps nothing back".to_owned()),
            None => Ok(()),
        }
    }

    /// Everything that the next step depends on, but for what follows from its number. One replica is enough.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let is_first = self.rank() == Rank(0);
        Snapshot { replica: is_first.then(|| self.replica()), memory: self.kept() }
    }

    /// Goes on where [`snapshot`](Self::snapshot) was taken.
    pub(crate) fn go_on_from(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let rank = self.rank().0 as usize;
        let refused =
            |what: String| CheckpointError::Foreign { path: format!("memory of rank {rank}").into(), what };
        self.keep(checkpoint.memories.get(rank).map_or(&[][..], Vec::as_slice)).map_err(refused)?;
        self.restore(&checkpoint.replica).map_err(|error| refused(error.to_string()))
    }

    /// Norm of what this worker keeps back.
    pub(crate) fn residual_norm(&self) -> f64 {
        self.memory.as_ref().map_or(0.0, Memory::norm)
    }
}

/// For workers that come and go.
#[cfg(feature = "zmq")]
impl<T: Transport> Worker<'_, T> {
    /// Weighs what this worker keeps back; 0 forgets it. Returns the norm that is lost by that.
    pub(crate) fn weigh_residual(&mut self, weight: f32) -> f64 {
        let Some(memory) = self.memory.as_mut().filter(|_| weight != 1.0) else { return 0.0 };
        let before = memory.norm();
        if weight == 0.0 {
            memory.clear();
        } else {
            memory.rescale(weight);
        }
        before - memory.norm()
    }

    /// Hash of the parameters.
    pub(crate) fn hash(&self) -> u64 {
        crate::hash::params_hash(&self.params)
    }
}
