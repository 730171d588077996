//! Selection beside the memory: p goes elsewhere, and residual and momentum stay as they are.

use super::select::{compact, cut, sampled_bound};
use crate::codec::{Beside, Whole, read_beside};
use crate::corrected::{BLOCK, Corrected, RUN};
use crate::error::EncodeError;
use crate::kernels::{self, CANDIDATE_SLACK, Candidates, Isa, Sums};

/// Leaves the `k` largest magnitudes of p in `candidates`, of [`capacity`](super::capacity), or all that are
/// not zero if there are fewer. The choice is that of [`top_k`](super::select::top_k). Reads the source once.
/// `spare` is working memory; `k` elements are enough.
///
/// # Errors
/// The errors of [`Corrected::fold`].
pub(crate) fn largest_beside(
    source: &Corrected<'_>,
    k: usize,
    beside: &mut Beside<'_>,
    candidates: &mut Candidates<'_>,
    spare: &mut [u32],
) -> Result<Whole, EncodeError> {
    let isa = Isa::best();
    let values_at = |first| {
        let mut values = [0; RUN];
        // The pass that reads all values also refuses invalid ones.
        let _ = source.fold(Isa::Baseline, first, &mut values);
        values
    };
    let least = sampled_bound(source.len(), k, candidates.values, values_at);
    let mut collect = Collect { isa, k, least, candidates, spare };
    collect.candidates.len = 0;
    let whole = read_beside(source, beside, |first, p| collect.add(first, p))?;
    if collect.candidates.len < k && least > 1 {
        (collect.least, collect.candidates.len) = (1, 0);
        for (at, p) in beside.p.chunks(BLOCK).enumerate() {
            collect.add(at * BLOCK, p);
        }
    }
    collect.reduce();
    Ok(whole)
}

/// The candidates so far.
struct Collect<'c, 'v> {
    isa: Isa,
    k: usize,
    /// Smallest magnitude bits with which an element can be one of the `k` largest.
    least: u32,
    candidates: &'c mut Candidates<'v>,
    spare: &'c mut [u32],
}

impl Collect<'_, '_> {
    /// Appends the elements of a block of p that reach the bound.
    fn add(&mut self, first: usize, p: &[f32]) {
        if self.candidates.indices.len() - self.candidates.len < p.len() + CANDIDATE_SLACK {
            self.reduce();
        }
        kernels::keep_from(self.isa, p, Sums::None, first as u32, self.least, self.candidates);
    }

    /// Leaves the `k` largest candidates and raises the bound just above the smallest of them: a later
    /// element of equal magnitude loses the tie.
    fn reduce(&mut self) {
        if self.candidates.len > self.k {
            let cut = cut(self.isa, &self.candidates.values[..self.candidates.len], self.k, self.spare);
            compact(self.isa, self.candidates, cut, self.k);
            self.least = self.least.max(cut.magnitude.saturating_add(1));
        }
    }
}
