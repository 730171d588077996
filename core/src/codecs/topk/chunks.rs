//! Selects the same number of coordinates from every chunk.

use super::select::{compact, cut};
#[cfg(feature = "alloc")]
use crate::codec::{Beside, Whole, read_beside};
#[cfg(feature = "alloc")]
use crate::corrected::Corrected;
use crate::corrected::Pass;
use crate::error::EncodeError;
use crate::gradient::density::Density;
#[cfg(feature = "alloc")]
use crate::kernels::{self, Sums};
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
            let (len, begin) = (self.len.min(pass.len() - first), candidates.len);
            pass.add_and_select(isa, (first, len), 1, candidates)?;
            leave(isa, candidates, begin, self.density.count(len), spare);
        }
        Ok(())
    }

    /// The same, beside the memory. Reads the source once.
    ///
    /// # Errors
    /// The errors of [`Corrected::fold`].
    #[cfg(feature = "alloc")]
    pub(super) fn hold(
        self,
        isa: Isa,
        source: &Corrected<'_>,
        beside: &mut Beside<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Whole, EncodeError> {
        candidates.len = 0;
        let mut begin = 0;
        read_beside(source, beside, |first, p| {
            // A run holds several chunks, or a chunk several runs: the lengths of both are powers of two.
            for (at, p) in (first..).step_by(self.len).zip(p.chunks(self.len)) {
                kernels::keep_from(isa, p, Sums::None, at as u32, 1, candidates);
                let end = at + p.len();
                if end.is_multiple_of(self.len) || end == source.len() {
                    let len = end - (end - 1) / self.len * self.len;
                    leave(isa, candidates, begin, self.density.count(len), spare);
                    begin = candidates.len;
                }
            }
        })
    }

    /// Leaves what [`select`](Self::select) leaves of a unit of `len` elements, out of what it leaves at this
    /// density or a higher one: what is largest in a chunk is among more of its largest.
    #[cfg(feature = "alloc")]
    pub(super) fn choose(self, isa: Isa, len: usize, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let (mut begin, mut at, held) = (0, 0, candidates.len);
        while at < held {
            let first = candidates.indices[at] as usize / self.len * self.len;
            let chunk = first..len.min(first + self.len);
            let rest = &candidates.indices[at..held];
            let end = at + rest.iter().take_while(|&&index| chunk.contains(&(index as usize))).count();
            candidates.indices.copy_within(at..end, begin);
            candidates.values.copy_within(at..end, begin);
            candidates.len = begin + (end - at);
            leave(isa, candidates, begin, self.density.count(chunk.len()), spare);
            (begin, at) = (candidates.len, end);
        }
    }
}

/// Leaves the `k` largest of the candidates from number `begin` on, and all before them.
fn leave(isa: Isa, candidates: &mut Candidates<'_>, begin: usize, k: usize, spare: &mut [u32]) {
    let len = candidates.len - begin;
    if len > k {
        let (indices, values) = (&mut candidates.indices[begin..], &mut candidates.values[begin..]);
        let mut own = Candidates { indices, values, len };
        let cut = cut(isa, &own.values[..len], k, spare);
        compact(isa, &mut own, cut, k);
        candidates.len = begin + own.len;
    }
}
