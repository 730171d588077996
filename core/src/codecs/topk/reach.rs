//! Selects all coordinates that reach a magnitude or, if these are too many, the largest of them.

use super::select::{compact, cut};
use crate::corrected::{BLOCK, Pass};
use crate::error::EncodeError;
use crate::kernels::scalar::MAGNITUDE;
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};
#[cfg(feature = "alloc")]
use core::convert::Infallible;

/// How many coordinates an estimated threshold should leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// The number wanted.
    pub(crate) k: usize,
    /// If there are more than this, only the `k` largest are left.
    pub(crate) most: usize,
}

/// Finds how many elements reach these magnitude bits; `None` if there are too many.
#[cfg(feature = "alloc")]
type Reach<'r> = dyn FnMut(u32) -> Result<Option<usize>, Infallible> + 'r;

impl Quota {
    /// `k` of `len`, and up to twice as many.
    pub(crate) fn up_to_double(k: usize, len: usize) -> Self {
        Self { k, most: k.saturating_mul(2).min(len) }
    }

    /// Elements that each part of the candidates must hold for a selection out of `len`. If it becomes full,
    /// more than `most` were found.
    pub(crate) fn capacity(self, len: usize) -> usize {
        let room = self.most.saturating_add((self.most / 2).max(2 * BLOCK));
        room.min(len).saturating_add(CANDIDATE_SLACK)
    }

    /// Leaves every element whose magnitude bits are at least `least`, which is not 0, and returns their
    /// number. If there are more than `most`, leaves the `k` largest, ties to the lowest index, and returns
    /// `None`. `spare` is working memory; `k` elements are enough.
    ///
    /// # Errors
    /// The errors of [`Pass::add_and_select`].
    pub(crate) fn select(
        self,
        isa: Isa,
        pass: &mut Pass<'_>,
        mut least: u32,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Option<usize>, EncodeError> {
        candidates.len = 0;
        let mut too_many = false;
        for block in pass.aligned_blocks(candidates.indices.len().saturating_sub(self.most)) {
            if candidates.indices.len() - candidates.len < block.1 + CANDIDATE_SLACK {
                least = self.reduce(isa, candidates, spare);
                too_many = true;
            }
            pass.add_and_select(isa, block, least, candidates)?;
        }
        Ok(self.settle(isa, too_many, candidates, spare))
    }

    /// The last part of [`select`](Self::select). The candidates are all elements that reach the magnitude
    /// or, with `too_many`, at least the k largest.
    pub(crate) fn settle(
        self,
        isa: Isa,
        too_many: bool,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Option<usize> {
        let too_many = too_many || candidates.len > self.most;
        if too_many && candidates.len > self.k {
            self.reduce(isa, candidates, spare);
        }
        (!too_many).then_some(candidates.len)
    }

    /// One more than are ever sent. If as many of the largest values all reach a magnitude, too many do;
    /// otherwise none that reaches it is missing among them.
    #[cfg(feature = "alloc")]
    pub(crate) fn one_too_many(self, len: usize) -> usize {
        self.most.saturating_add(1).min(len)
    }

    /// What [`select`](Self::select) leaves for the last magnitude that `search` tries, out of at least
    /// [`one_too_many`](Self::one_too_many) of the largest elements. `search` gets a function that returns
    /// what `select` would. `spare` is working memory; `k` elements are enough.
    #[cfg(feature = "alloc")]
    pub(crate) fn choose(
        self,
        isa: Isa,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
        search: impl FnOnce(&mut Reach<'_>) -> Result<(), Infallible>,
    ) {
        let (mut least, mut reached) = (0, 0);
        let values = &candidates.values[..candidates.len];
        let Ok(()) = search(&mut |next| {
            least = next;
            reached = values.iter().filter(|&&bits| bits & MAGNITUDE >= next).count();
            Ok((reached <= self.most).then_some(reached))
        });
        if reached > self.most {
            self.reduce(isa, candidates, spare);
        } else {
            crate::kernels::compact(isa, candidates, least);
        }
    }

    /// Leaves the `k` largest candidates. Returns the smallest magnitude with which a later element can still
    /// be one of them. A later element equal to the smallest loses the tie.
    pub(crate) fn reduce(self, isa: Isa, candidates: &mut Candidates<'_>, spare: &mut [u32]) -> u32 {
        let cut = cut(isa, &candidates.values[..candidates.len], self.k, spare);
        compact(isa, candidates, cut, self.k);
        cut.magnitude.saturating_add(1)
    }
}

/// Bits of the smallest magnitude above the threshold, which is not negative.
pub(crate) fn least_above(threshold: f64) -> u32 {
    // The cast rounds to nearest, so the result may be at the threshold or on either side of it.
    let nearest = threshold as f32;
    let bits = nearest.to_bits() & MAGNITUDE;
    bits + u32::from(f64::from(nearest) <= threshold)
}
