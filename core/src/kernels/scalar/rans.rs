//! Tables and states of interleaved rANS. `entropy::rans` explains them, and has the plain coder.

use crate::kernels::scalar::symbols::MAX_ALPHABET;

/// log2 of the sum of all frequencies.
pub(crate) const SCALE_BITS: u32 = 12;

/// Sum of all frequencies, M: the number of slots that the symbols share.
pub(crate) const SLOTS: usize = 1 << SCALE_BITS;

/// log2 of the largest number of lanes.
pub(crate) const MAX_LANES_LOG2: u32 = 5;

pub(crate) const MAX_LANES: usize = 1 << MAX_LANES_LOG2;

/// The states of all lanes; with fewer lanes, only the first are used.
pub(crate) type Lanes = [u32; MAX_LANES];

/// Symbols of a round: one from each of the largest number of lanes.
pub(crate) const ROUND: usize = MAX_LANES;

/// Least value of a renormalised state: encoding begins and decoding ends with it.
pub(crate) const LOWER: u32 = 1 << 16;

/// What the encoder needs for a symbol, prepared for its hot loop: the low 32 bits of m, the reciprocal of f,
/// and, from the top, f − 1 in 12 bits, two zeros, k in 6 bits, c in 12 bits. Zeros for a symbol without
/// slots.
pub(crate) type Entry = [u32; 2];

/// An entry for every symbol.
pub(crate) type Entries = [Entry; MAX_ALPHABET];

/// The highest bit of k, which is set in every entry of a symbol with slots: 32 <= k <= 44.
pub(crate) const PRESENT: u32 = 1 << 17;
