//! What a command does where nothing else is asked for.

/// Lines of progress, in a pipe.
pub(crate) const LINES: u64 = 20;

/// Steps between two checkpoints of `train`.
pub(crate) const CHECKPOINT_EVERY: u64 = 100;
