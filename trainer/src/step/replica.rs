//! What makes one replica equal to another: parameters and the optimizer's state, in one safetensors file.

use std::collections::HashMap;

use gradwire_transports::Transport;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};

use super::Worker;
use crate::hash::params_hash;
use crate::optim::StateError;

const PARAMS: &str = "params";
const OPTIMIZER: &str = "optimizer.";
const STEPS: &str = "optimizer_steps";

/// A state that is not one of this model and optimizer. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The bytes are no safetensors file, or one without what belongs in it.
    #[error("the state cannot be read: {0}")]
    Malformed(String),
    /// The optimizer's part does not fit.
    #[error(transparent)]
    Optimizer(#[from] StateError),
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl<T: Transport> Worker<'_, T> {
    /// Parameters and optimizer state, in bytes for [`restore`](Self::restore).
    pub(crate) fn state(&self) -> Vec<u8> {
        let parts = self
            .optimizer
            .state()
            .into_iter()
            .map(|(name, values)| (format!("{OPTIMIZER}{name}"), bytes(values)));
        let parts: Vec<(String, Vec<u8>)> = parts.chain([(PARAMS.to_owned(), bytes(&self.params))]).collect();
        // Every part is as long as the parameters, so no view is refused, and neither is the file.
        let views = parts.iter().filter_map(|(name, bytes)| {
            Some((name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).ok()?))
        });
        let steps = HashMap::from([(STEPS.to_owned(), self.optimizer.steps().to_string())]);
        serialize(views, Some(steps)).unwrap_or_default()
    }

    /// Goes on from the state of another replica. What this worker keeps back stays.
    pub(crate) fn restore(&mut self, state: &[u8]) -> Result<(), ReplicaError> {
        let malformed = |what: String| ReplicaError::Malformed(what);
        let (_, header) = SafeTensors::read_metadata(state).map_err(|error| malformed(error.to_string()))?;
        let steps = header.metadata().as_ref().and_then(|metadata| metadata.get(STEPS)?.parse().ok());
        let steps = steps.ok_or_else(|| malformed(format!("no {STEPS}")))?;
        let tensors = SafeTensors::deserialize(state).map_err(|error| malformed(error.to_string()))?;
        let mut params = None;
        let mut parts = Vec::new();
        for (name, tensor) in tensors.iter() {
            if tensor.dtype() != Dtype::F32 {
                return Err(malformed(format!("{name} does not hold f32")));
            }
            let values: Vec<f32> =
                tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            match name.strip_prefix(OPTIMIZER) {
                Some(part) => parts.push((part, values)),
                None if name == PARAMS => params = Some(values),
                None => return Err(malformed(format!("{name} is not known"))),
            }
        }
        let params = params.filter(|params| params.len() == self.params.len());
        let params = params.ok_or_else(|| malformed(format!("no {} parameters", self.params.len())))?;
        let parts: Vec<(&str, &[f32])> =
            parts.iter().map(|(name, values)| (*name, values.as_slice())).collect();
        self.optimizer.restore(steps, &parts)?;
        self.params = params;
        self.model.set_params(&self.params);
        Ok(())
    }

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

    /// Norm of what this worker keeps back.
    pub(crate) fn residual_norm(&self) -> f64 {
        self.memory.as_ref().map_or(0.0, gradwire::Memory::norm)
    }

    /// Hash of the parameters.
    pub(crate) fn hash(&self) -> u64 {
        params_hash(&self.params)
    }
}
