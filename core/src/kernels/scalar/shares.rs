//! The shares of sixteen symbols. `entropy::shares` explains what they are for.

/// Symbols of a model.
pub(crate) const SYMBOLS: usize = 16;

/// For each symbol, how likely a smaller one is, out of 2¹⁶. Ascending, and first 0.
pub(crate) type Shares = [u16; SYMBOLS];
