//! What a worker's next step depends on, taken out and put back: its replica and its memory.

#[cfg(feature = "zmq")]
use std::time::Duration;

use gradwire::Memory;
use gradwire_transports::{Rank, Transport};

use super::Worker;
use super::adapt::Steering;
#[cfg(feature = "zmq")]
use super::history::{Had, History, Recalled};
use super::kept::{load, load_downlink, load_edges, saved, saved_downlink, saved_edges};
#[cfg(feature = "zmq")]
use super::own::Own;
use crate::agreement::Agreement;
use crate::checkpoint::{Checkpoint, CheckpointError, Replica, Snapshot};
use crate::model::hash::params_hash;
use crate::optim::StateError;

impl<T: Transport> Worker<'_, T> {
    /// Parameters and optimizer state.
    pub(crate) fn replica(&self) -> Replica {
        Replica::of(&self.params, self.optimizer.as_ref())
    }

    /// Continues from the state of another replica of this layout. This worker's memory stays. Returns the
    /// parameters that it had.
    pub(crate) fn restore(&mut self, replica: &Replica) -> Result<Vec<f32>, StateError> {
        let Replica { params, optimizer_steps, optimizer } = replica;
        let slices: Vec<_> =
            optimizer.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
        self.optimizer.restore(*optimizer_steps, &slices)?;
        self.model.set_params(params);
        Ok(std::mem::replace(&mut self.params, params.clone()))
    }

    /// What this worker alone has: its memory, and the state of its own optimizer, or what its edges keep;
    /// empty if none of it.
    pub(crate) fn kept(&self) -> Vec<u8> {
        match &self.turns[0].agreement {
            Agreement::Gossip(mixer) => saved_edges(mixer),
            Agreement::Mean(_) => saved(&self.turns, self.own.as_ref()),
        }
    }

    /// Restores what [`kept`](Self::kept) returned. The error says why it does not fit this codec and model.
    pub(crate) fn keep(&mut self, kept: &[u8]) -> Result<(), String> {
        let rank = self.rank();
        match &mut self.turns[0].agreement {
            Agreement::Gossip(mixer) => load_edges(mixer, rank, kept),
            Agreement::Mean(_) => load(&mut self.turns, self.own.as_mut(), kept),
        }
    }

    /// In a delayed run, what this worker has not sent yet.
    pub(crate) fn unsent(&self) -> Vec<f32> {
        if self.job.config.is_delayed() { self.grad.clone() } else { Vec::new() }
    }

    /// Restores what [`unsent`](Self::unsent) returned.
    pub(crate) fn restore_unsent(&mut self, unsent: &[f32]) {
        if self.job.config.is_delayed() {
            self.grad.copy_from_slice(unsent);
        }
    }

    /// Everything on which the next step depends, except what follows from its number. One replica is enough
    /// if they are equal.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let is_first = self.rank() == Rank(0);
        let tells = is_first || self.job.config.replicas() > 1;
        let downlink = if is_first { saved_downlink(&mut self.turns) } else { Vec::new() };
        let gradient = self.unsent();
        let mut norms: Vec<_> = self.turns.iter().map(|turn| turn.agreement.norms()).collect();
        if norms.iter().all(Vec::is_empty) {
            norms.clear();
        }
        let best = self.best.clone().filter(|_| is_first);
        let controller = self.steering.as_ref().filter(|_| is_first).map_or_else(Vec::new, Steering::state);
        let (replica, memory, carried) = (tells.then(|| self.replica()), self.kept(), self.model.carried());
        Snapshot { replica, memory, gradient, carried, downlink, norms, best, controller }
    }

    /// Continues from the point at which [`snapshot`](Self::snapshot) was taken.
    pub(crate) fn go_on_from(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let rank = self.rank().0 as usize;
        let refused =
            |what: String| CheckpointError::Foreign { path: format!("memory of rank {rank}").into(), what };
        if let Some(steering) = &mut self.steering {
            steering.restore(&checkpoint.controller).map_err(refused)?;
        }
        self.reshape_memory(checkpoint.steps).map_err(|error| refused(error.to_string()))?;
        self.keep(checkpoint.memories.get(rank).map_or(&[][..], Vec::as_slice)).map_err(refused)?;
        if let Some(gradient) = checkpoint.gradients.get(rank) {
            self.restore_unsent(gradient);
        }
        self.model.carry(checkpoint.carried.get(rank).map_or(&[][..], Vec::as_slice)).map_err(refused)?;
        // The others have none to load it into.
        if rank == 0 {
            load_downlink(&mut self.turns, &checkpoint.downlink).map_err(refused)?;
        }
        for (turn, norms) in self.turns.iter_mut().zip(&checkpoint.norms) {
            turn.agreement.restore_norms(norms);
        }
        self.best.clone_from(&checkpoint.best);
        let replica = checkpoint.replicas.get(rank).or(checkpoint.replicas.first());
        let replica = replica.ok_or_else(|| refused("no replica".to_owned()))?;
        self.restore(replica).map(drop).map_err(|error| refused(error.to_string()))
    }

    /// Hash of the parameters.
    pub(crate) fn hash(&self) -> u64 {
        params_hash(&self.params)
    }

    /// Norm of this worker's residual.
    pub(crate) fn residual_norm(&self) -> f64 {
        self.memories().map(Memory::norm).fold(0.0, f64::hypot)
    }

    fn memories(&self) -> impl Iterator<Item = &Memory<'static>> {
        self.turns.iter().filter_map(|turn| turn.memory.as_ref())
    }
}

/// Sums over all coordinates.
#[cfg(feature = "zmq")]
pub(crate) struct Sums {
    pub(crate) kept: f64,
    pub(crate) gradient: f64,
    pub(crate) mean: f64,
}

/// For workers that come and go.
#[cfg(feature = "zmq")]
impl<T: Transport> Worker<'_, T> {
    /// Multiplies this worker's residual by a weight, what it has not sent yet, and how far it is from all
    /// since it had the parameters `before`; without these, it goes where all are. 0 forgets all this, and
    /// what its own optimizer has seen. Returns the norm of the residual that is lost.
    pub(crate) fn weigh_residual(&mut self, weight: f32, before: Option<&[f32]>) -> f64 {
        if weight == 0.0
            && let Ok(fresh) = Own::of(self.job, &self.params)
        {
            self.own = fresh;
        }
        self.follow(weight, before);
        if self.job.config.is_delayed() {
            self.grad.iter_mut().for_each(|way| *way *= weight);
        }
        if weight == 1.0 {
            return 0.0;
        }
        let before = self.residual_norm();
        for memory in self.turns.iter_mut().filter_map(|turn| turn.memory.as_mut()) {
            if weight == 0.0 {
                memory.clear();
            } else {
                memory.rescale(weight);
            }
        }
        before - self.residual_norm()
    }

    /// Frames without which the server's steps are void from here on.
    pub(crate) fn set_quorum(&mut self, quorum: usize) {
        self.turns.iter_mut().for_each(|turn| turn.agreement.set_quorum(quorum));
    }

    /// How long the server waits for frames from here on.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.turns.iter_mut().for_each(|turn| turn.agreement.set_patience(patience));
    }

    /// Whether a step sends what the one before it made.
    pub(crate) fn is_delayed(&self) -> bool {
        self.job.config.is_delayed()
    }

    /// The sums of a step that is done, and the present residual.
    pub(crate) fn sums(&self, step: u64) -> Sums {
        let sum = |values: &[f32]| values.iter().map(|&value| f64::from(value)).sum();
        let kept = self.memories().map(|memory| sum(memory.residual())).sum();
        let exchanged = self.turns[self.job.turn(step)].fragment.range.clone();
        Sums { kept, gradient: sum(&self.grad), mean: sum(&self.mean[exchanged]) }
    }

    /// From now on, remembers what this worker has before the steps to which a server may go back.
    pub(crate) fn keep_history(&mut self) {
        self.history = Some(History::default());
    }

    /// Records what it has before a step; if that comes from a file, with the parameters that it names.
    pub(crate) fn remember(&mut self, next_step: u64, params_hash: Option<String>) {
        self.note(next_step, false, params_hash);
    }

    /// Records what it has after a step, if the server makes a checkpoint there; `is_under_way` before the
    /// answer to what it sent.
    pub(crate) fn remember_if_due(&mut self, step: u64, is_under_way: bool) {
        if self.job.is_checkpoint_due(step) {
            self.note(step + 1, is_under_way, None);
        }
    }

    fn note(&mut self, next_step: u64, is_under_way: bool, params_hash: Option<String>) {
        // Only workers that join a server have one.
        let Some(mut history) = self.history.take() else { return };
        let sent = || match &self.own {
            Some(Own::Local { sent, .. }) => sent.clone(),
            _ => Vec::new(),
        };
        let had = Had { kept: self.kept(), unsent: self.unsent(), under_way: is_under_way.then(sent) };
        history.note(next_step, had, params_hash);
        self.history = Some(history);
    }

    /// Goes back to what it had before a step, with the present parameters, if that is known.
    pub(crate) fn recall(&mut self, next_step: u64) -> Recalled {
        let hash = format!("{:016x}", self.hash());
        let Some(history) = &mut self.history else { return Recalled::Unknown };
        match history.go_back(next_step, &hash).map(|had| self.have(had, next_step)) {
            Ok(Ok(())) => Recalled::Known,
            // It was saved by this worker, so it fits.
            Ok(Err(_)) => Recalled::Unknown,
            Err(unknown) => unknown,
        }
    }

    /// Has this again. The answer that was not there is in the present parameters.
    fn have(&mut self, had: Had, next_step: u64) -> Result<(), String> {
        self.keep(&had.kept)?;
        self.restore_unsent(&had.unsent);
        if let (Some(was), Some(step)) = (had.under_way, next_step.checked_sub(1)) {
            if let Some(Own::Local { sent, .. }) = &mut self.own {
                *sent = was;
            }
            self.settle(step);
        }
        Ok(())
    }
}
