//! Selects the same number of coordinates from every chunk.

use super::select::{compact, cut};
use crate::corrected::Pass;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};

/// A unit cut into chunks of equal length, each with its own number of entries. The last chunk may be
/// shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    pub(super) density: Density,
    /// Coordinates of a chunk.
    pub(super) len: usize,
}

impl Chunks {
    /// The most entries of a unit of `len` elements.
    pub(super) fn most_entries(self, len: usize) -> usize {
        len / self.len * self.density.count(self.len) + self.density.count(len % self.len)
    }

    /// Elements that each part of the candidates must hold for a unit of `len`: all entries, and one chunk.
    pub(super) fn capacity(self, len: usize) -> usize {
        let room = self.most_entries(len).saturating_add(self.len.min(len));
        room.saturating_add(CANDIDATE_SLACK)
    }

    /// Leaves the largest magnitudes of each chunk: as many as the density gives for its length, or all that
    /// are not zero if there are fewer. `spare` is working memory.
    ///
    /// # Errors
    /// The errors of [`Pass::add_and_select`].
    pub(super) fn select(
        self,
        isa: Isa,
        pass: &mut Pass<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        candidates.len = 0;
        for first in (0..pass.len()).step_by(self.len) {
            let len = self.len.min(pass.len() - first);
            let (k, before) = (self.density.count(len), candidates.len);
            let (indices, values) = (&mut candidates.indices[before..], &mut candidates.values[before..]);
            let mut own = Candidates { indices, values, len: 0 };
            pass.add_and_select(isa, (first, len), 1, &mut own)?;
            if own.len > k {
                let cut = cut(isa, &own.values[..own.len], k, spare);
                compact(isa, &mut own, cut, k);
            }
            candidates.len = before + own.len;
        }
        Ok(())
    }
}
