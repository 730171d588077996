//! Defaults of the commands.

/// Lines of progress, in a pipe.
pub(crate) const LINES: u64 = 20;

/// Steps between two checkpoints of `train`.
pub(crate) const CHECKPOINT_EVERY: u64 = 100;
