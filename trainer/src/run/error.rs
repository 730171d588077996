//! Why a run ends early.

use gradwire_transports::Rank;

#[cfg(feature = "mpi")]
use crate::agreement::Averaging;
#[cfg(feature = "mpi")]
use crate::job::Job;
use crate::job::JobError;
use crate::process::threads::NoThread;
use crate::step::StepError;

/// This many refused steps in a row end the run: it will not recover by itself.
pub(super) const MAX_REFUSED_IN_A_ROW: u64 = 10;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker could not begin.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A worker failed.
    #[error("worker {} at step {step}: {error}", rank.0)]
    Worker {
        /// Which worker.
        rank: Rank,
        /// At which step.
        step: u64,
        /// Why.
        error: StepError,
    },
    /// A worker has no thread to run in.
    #[error(transparent)]
    NoThread(#[from] NoThread),
    /// A worker panicked.
    #[error("worker {} panicked: {message}", rank.0)]
    Panic {
        /// Which worker.
        rank: Rank,
        /// What it said.
        message: String,
    },
    /// Replicas that must be the same are not.
    #[error("replicas differ after step {step}: {}", differing(groups))]
    ReplicasDiffer {
        /// After which step.
        step: u64,
        /// Parameter hashes, and the ranks that have them.
        groups: Vec<(u64, Vec<Rank>)>,
    },
    /// The mean was refused again and again.
    #[error("step {step}: the {MAX_REFUSED_IN_A_ROW}th mean in a row was refused: {why}")]
    Refused {
        /// The last of the steps.
        step: u64,
        /// What was wrong with its mean.
        why: String,
    },
    /// The user ended it. What was done is in a checkpoint.
    #[error("interrupted after {steps} steps")]
    Interrupted {
        /// Steps done.
        steps: u64,
    },
    /// What another worker tells of a step cannot be read.
    #[error("worker {} at step {step}: its record cannot be read; do all ranks run the same program?", rank.0)]
    Record {
        /// Which worker.
        rank: Rank,
        /// Of which step.
        step: u64,
    },
    /// The observer could not write.
    #[error("{0}")]
    Observer(String),
}

impl RunError {
    /// The step at which a gradient or a mean was not finite, repeatedly or for good; `None` for every other
    /// failure.
    pub fn divergence(&self) -> Option<u64> {
        match self {
            Self::Worker { step, error: StepError::Diverged { .. }, .. } | Self::Refused { step, .. } => {
                Some(*step)
            }
            Self::Worker { step, error: StepError::Exchange(error), .. } if error.is_void() => Some(*step),
            _ => None,
        }
    }

    /// Whether every worker has ended the run, each for this reason or because it heard of it. Then they can
    /// do another one together.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_of_all(&self, job: &Job) -> bool {
        // A rank that cannot encode tells all others; one that gossips tells its neighbours.
        let is_told = !matches!(job.way, Averaging::Gossip(_));
        match self {
            Self::Worker { .. } => is_told && self.divergence().is_some(),
            Self::Interrupted { .. }
            | Self::Refused { .. }
            | Self::ReplicasDiffer { .. }
            | Self::Observer(_) => true,
            Self::Job(_) | Self::NoThread(_) | Self::Panic { .. } | Self::Record { .. } => false,
        }
    }
}

fn differing(groups: &[(u64, Vec<Rank>)]) -> String {
    let name = |(hash, ranks): &(u64, Vec<Rank>)| {
        let ranks: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
        format!("{hash:016x} at rank {}", ranks.join(", "))
    };
    groups.iter().map(name).collect::<Vec<_>>().join("; ")
}
