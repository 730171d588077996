//! Keys of the random draws of one step.

use crate::rng::{Permutation, Purpose, Stream};

/// Who draws: one rank for itself, or all ranks the same.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Draws of one rank, unrelated to those of any other. Ranks below 2³⁰ − 1.
    Rank(u32),
    /// Draws that every rank repeats in the same way, as codecs for all-reduce need.
    Shared,
}

impl Source {
    /// The number that draws are keyed with: the rank, or one that no rank has.
    pub(crate) fn word(self) -> u32 {
        match self {
            Self::Rank(rank) => rank,
            Self::Shared => u32::MAX >> 2,
        }
    }
}

/// Identifies every random draw of one step on one rank, together with the unit. The same key, unit and
/// gradient give the same bytes on every machine; resuming a run needs no hidden counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepKey {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the run; written into every frame.
    pub step: u64,
    /// Who draws.
    pub source: Source,
}

impl StepKey {
    /// The draws for stochastic rounding in `unit`.
    pub(crate) fn rounding(&self, unit: u32) -> Stream {
        Stream::new(self.seed, self.step, unit, self.source.word(), Purpose::Rounding)
    }

    /// The draws that choose coordinates in `unit`. They are always shared, so that every rank chooses the
    /// same.
    pub(crate) fn shared_selection(&self, unit: u32) -> Stream {
        Stream::new(self.seed, self.step, unit, Source::Shared.word(), Purpose::Selection)
    }

    /// The draws of an edge between two neighbours, for `unit`; the same at both ends. Their seed is a shared
    /// draw, at the position that the two ranks name.
    pub(crate) fn edge(&self, low: u32, high: u32, unit: u32) -> Stream {
        let seed = self.shared_selection(unit).u64_at(u64::from(low) << 32 | u64::from(high));
        Stream::new(seed, self.step, unit, Source::Shared.word(), Purpose::Selection)
    }

    /// An order of the `len` coordinates of `unit`, the same at every rank in all steps of a sweep.
    pub(crate) fn shared_order(&self, unit: u32, sweep: u64, len: usize) -> Permutation {
        Permutation::new(&Self { step: sweep, ..*self }.shared_selection(unit), len)
    }

    /// The draws that choose coordinates in `unit` for the key's own source.
    pub(crate) fn own_selection(&self, unit: u32) -> Stream {
        Stream::new(self.seed, self.step, unit, self.source.word(), Purpose::Selection)
    }

    /// Draws for the caller's own use (initial weights, shuffles, masks), separate from all draws of codecs.
    /// `unit` separates several uses in one step.
    #[must_use]
    pub fn stream(&self, unit: u32) -> Stream {
        Stream::new(self.seed, self.step, unit, self.source.word(), Purpose::Caller)
    }

    /// The draws of a [codec of another crate](crate::experiments) in `unit`: separate from those of this
    /// crate's codecs and from those of the caller.
    #[must_use]
    pub fn experiment(&self, unit: u32) -> Stream {
        Stream::new(self.seed, self.step, unit, self.source.word(), Purpose::Experiment)
    }
}
