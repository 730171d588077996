//! The state of a run on disk, from which it continues as if nothing had happened.
//!
//! ```text
//! checkpoints/step-00000120/
//!     model.safetensors     params/NAME, and NAME of each slice of the optimizer, in the tensors' shapes; steps of the optimizer
//!     model-1.safetensors   the same of rank 1, where replicas differ
//!     rank-0.safetensors    memory: what rank 0 keeps back, as FORMAT.md's saved memory, or with the optimizer
//!                           adamw-updates a safetensors file of that memory and of the moments of rank 0; gradient: in
//!                           a delayed run, what it has not sent yet; carried: what its model carries beside its
//!                           parameters
//!     downlink.safetensors  memory: what a server keeps back of its means, if its downlink has error feedback
//!     norms.safetensors     norms: of the last frames, which a server's cap goes by, if it has one; norms.1 and
//!                           so on: those of further fragments
//!     best.safetensors      params/NAME: those with the smallest validation loss, in a run that may end early; that loss, and
//!                           after how many steps
//!     controller.safetensors  memory: the state of what sets the densities, in a run with adapt=gravac, accordion or loss
//!     manifest.json         steps done, configuration, sums for the summary; length and CRC-32 of the other files
//! ```
//! The checkpoint of a worker over the network has only `rank-N.safetensors` and the manifest. The server has
//! everything else, and the manifest says to which replicas it belongs.
//!
//! Batches, learning rates and random draws follow from the step, so nothing of them is saved.
//!
//! A checkpoint is written into a folder of another name, flushed to the disk file by file, and renamed at
//! the end. So a folder `step-…` is always complete, and the one before it is removed only afterwards.

mod best;
mod error;
mod manifest;
mod memory;
mod norms;
mod part;
mod replica;
mod store;

pub use best::Best;
pub use error::CheckpointError;
pub(crate) use error::way_out;
pub use manifest::{Away, Single, Totals, VERSIONS};
pub(crate) use part::Part;
pub use replica::{Replica, ReplicaError};
#[cfg(feature = "mpi")]
pub(crate) use store::after;
pub use store::{Found, Store, latest};

use serde::{Deserialize, Serialize};

use crate::config::RunConfig;

/// A run between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The configuration of the run.
    pub config: RunConfig,
    /// How many steps are done: the number of the next one.
    pub steps: u64,
    /// The worker, if the checkpoint is that of one worker of a server's run; it then holds a memory and no
    /// replica.
    pub worker: Option<Single>,
    /// The state of every replica; if replicas differ, that of each rank.
    pub replicas: Vec<Replica>,
    /// What each rank alone has, by rank: its memory as a saved memory, with its moments if it has any of its
    /// own; empty if it has neither. A run over the network has only that of the server.
    pub memories: Vec<Vec<u8>>,
    /// The gradient that each rank has not sent yet, by rank; empty except in a delayed run.
    pub gradients: Vec<Vec<f32>>,
    /// The state that the model of each rank carries from step to step beside its parameters, by rank.
    pub carried: Vec<Vec<f32>>,
    /// The residual that a server keeps of its means, as a saved memory, or with fragments as a safetensors
    /// file of that of each; empty if it keeps none.
    pub downlink: Vec<u8>,
    /// Norms of the last frames, from which a server derives its cap, oldest first, of each fragment; empty
    /// without a cap.
    pub norms: Vec<Vec<f64>>,
    /// The best parameters so far, of a run that may end early.
    pub best: Option<Best>,
    /// The state of the controller that sets the densities; empty if there is none, or it has no state.
    pub controller: Vec<u8>,
    /// Sums over the steps done.
    pub totals: Totals,
}

/// What one rank reports of its state after a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Only from rank 0, unless replicas differ.
    pub(crate) replica: Option<Replica>,
    pub(crate) memory: Vec<u8>,
    pub(crate) gradient: Vec<f32>,
    pub(crate) carried: Vec<f32>,
    pub(crate) downlink: Vec<u8>,
    pub(crate) norms: Vec<Vec<f64>>,
    /// From rank 0 alone.
    pub(crate) best: Option<Best>,
    /// From rank 0 alone; all have the same.
    pub(crate) controller: Vec<u8>,
}
