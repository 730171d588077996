//! The result of a run, and each worker's part of it.

use gradwire_transports::Counters;

use crate::model::eval::Evaluation;
use crate::record::{Metrics, Summary};

/// The result of a run, in memory.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run in one object.
    pub summary: Summary,
    /// Every step, or none where the run kept none: the folder has them.
    pub metrics: Vec<Metrics>,
    /// What each worker's meter counted, in rank order.
    pub counters: Vec<Counters>,
}

/// A worker's report at the end.
pub(crate) struct Final {
    pub(crate) counters: Counters,
    pub(crate) evaluation: Option<Evaluation>,
    /// After how many steps the validation loss was smallest, in a run that may end early.
    pub(crate) best_steps: Option<u64>,
}
