//! Fixed threshold: all coordinates at or above a given magnitude.

mod spelling;

use crate::codec::{EncodeUnit, UnitInput};
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::error::EncodeError;
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};
use crate::sparse::{SparseCoding, Sparsifier, coding_methods};
use crate::wire::ids::CodecId;

/// Sends every coordinate whose magnitude is at least `value`; a zero is never sent. Frames vary in length
/// and may hold no entry at all.
///
/// Biased: needs error feedback.
///
/// # Source
/// Dutta et al.: On the Discrepancy between the Theoretical Analysis and Practical Implementations of
/// Compressed Communication for Distributed Deep Learning (arXiv 1911.08250). Some implementations lower the
/// threshold to the largest value of the unit, with its sign; ours never does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    value: f32,
    coding: SparseCoding,
}

impl Threshold {
    /// A threshold that is finite and not negative, with index and value coders; else `None`.
    #[must_use]
    pub fn new(value: f32, index: IndexChoice, values: ValueChoice) -> Option<Self> {
        let is_valid = value.is_finite() && value >= 0.0;
        is_valid.then_some(Self { value: value.abs(), coding: SparseCoding::new(index, values) })
    }

    /// The threshold.
    #[must_use]
    pub fn value(&self) -> f32 {
        self.value
    }
}

coding_methods!(Threshold);

impl Sparsifier for Threshold {
    const ID: CodecId = CodecId::new(4);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        len
    }

    fn capacity(&self, len: usize) -> usize {
        len.saturating_add(CANDIDATE_SLACK)
    }

    fn refuses_in_pass(&self) -> bool {
        true
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        _spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        let (isa, least) = (Isa::best(), self.value.to_bits().max(1));
        input.pass(self.overflow_bound(), |pass| {
            let room = candidates.indices.len();
            pass.aligned_blocks(room).try_for_each(|block| pass.add_and_select(isa, block, least, candidates))
        })
    }
}
