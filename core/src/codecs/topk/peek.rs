//! Selection without any change: finds the coordinates that would be sent, and leaves residual and momentum
//! as they are.

pub(crate) use super::select::capacity;
use super::select::{compact, cut, sampled_bound};
use crate::corrected::{BLOCK, Corrected, RUN};
use crate::error::EncodeError;
use crate::kernels::scalar::sums::Squares;
use crate::kernels::scalar::total_of;
use crate::kernels::{self, CANDIDATE_SLACK, Candidates, Isa};

/// The largest magnitudes of one unit, cut several times, each time to fewer.
pub(crate) struct Peek<'c> {
    isa: Isa,
    candidates: Candidates<'c>,
    spare: &'c mut [u32],
}

impl<'c> Peek<'c> {
    /// With room for [`capacity`] candidates in each part. `spare` has one word for each coordinate that may
    /// be wanted.
    pub(crate) fn new(indices: &'c mut [u32], values: &'c mut [u32], spare: &'c mut [u32]) -> Self {
        Self { isa: Isa::best(), candidates: Candidates { indices, values, len: 0 }, spare }
    }

    /// Leaves the `k` largest magnitudes, or all that are not zero if there are fewer, and returns the sum of
    /// all squares. The choice is that of [`top_k`](super::select::top_k).
    ///
    /// # Errors
    /// The errors of [`Corrected::fold`].
    pub(crate) fn select(&mut self, source: &Corrected<'_>, k: usize) -> Result<f64, EncodeError> {
        let values_at = |first| {
            let mut values = [0; RUN];
            // The pass that reads all values also refuses invalid ones.
            let _ = source.fold(Isa::Baseline, first, &mut values);
            values
        };
        let least = sampled_bound(source.len(), k, self.candidates.values, values_at);
        let squares = self.collect(source, k, least)?;
        if self.candidates.len < k && least > 1 {
            self.collect(source, k, 1)?;
        }
        self.reduce(k);
        Ok(squares)
    }

    /// Leaves at least the `k` largest of the elements that reach `least`. Returns the sum of the squares of
    /// all elements.
    fn collect(&mut self, source: &Corrected<'_>, k: usize, mut least: u32) -> Result<f64, EncodeError> {
        let (mut sums, mut room): (Squares, _) = ([0.0; 8], [0; BLOCK]);
        self.candidates.len = 0;
        for first in (0..source.len()).step_by(BLOCK) {
            let len = BLOCK.min(source.len() - first);
            if self.candidates.indices.len() - self.candidates.len < len + CANDIDATE_SLACK {
                least = least.max(self.reduce(k));
            }
            let (p, _) = source.bits(self.isa, first, &mut room[..len])?;
            kernels::add_squares(self.isa, p, &mut sums);
            kernels::keep_from(
                self.isa,
                kernels::floats_of(p),
                None,
                first as u32,
                least,
                &mut self.candidates,
            );
        }
        Ok(total_of(sums))
    }

    /// Leaves the `k` largest of the remaining elements. Returns the smallest magnitude with which a later
    /// element can still be one of them. That is one more than the smallest of them, because a later element
    /// of equal magnitude loses the tie.
    pub(crate) fn reduce(&mut self, k: usize) -> u32 {
        let Self { isa, candidates, spare } = self;
        if candidates.len <= k {
            return 1;
        }
        let cut = cut(*isa, &candidates.values[..candidates.len], k, spare);
        compact(*isa, candidates, cut, k);
        cut.magnitude.saturating_add(1)
    }

    /// The sum of the squares of the remaining elements.
    pub(crate) fn squares(&self) -> f64 {
        let mut sums: Squares = [0.0; 8];
        kernels::add_squares(self.isa, &self.candidates.values[..self.candidates.len], &mut sums);
        total_of(sums)
    }
}
