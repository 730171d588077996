//! Fixed threshold: all coordinates at or above a given magnitude.

use crate::codecs::qsgd::Rounding;
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::error::EncodeError;
use crate::frame::header::CodecId;
use crate::gather::{EncodeUnit, UnitInput};
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};
use crate::sparse::{SparseCoding, Sparsifier};

/// Sends every coordinate whose magnitude is at least `value`; a zero is never sent. Frames vary in length and may
/// hold no entry at all.
///
/// Biased: needs error feedback.
///
/// # Source
/// Dutta et al.: On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
/// Communication for Distributed Deep Learning (arXiv 1911.08250). The threshold is never lowered to the largest
/// value of the unit, as some implementations do, with its sign.
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

    /// Values rounded to the codebook of `q8`, `q4` or `q2` so: to the [nearest](Rounding::Nearest) where nothing is said, or
    /// stochastically, which is unbiased and takes no memory. Other values are always rounded to the nearest.
    #[must_use]
    pub fn with_rounding(self, rounding: Rounding) -> Self {
        Self { coding: SparseCoding { rounding, ..self.coding }, ..self }
    }

    /// The threshold.
    #[must_use]
    pub fn value(&self) -> f32 {
        self.value
    }

    /// The index coder.
    #[must_use]
    pub fn index(&self) -> IndexChoice {
        self.coding.index
    }

    /// The value coder.
    #[must_use]
    pub fn values(&self) -> ValueChoice {
        self.coding.values
    }

    /// How values are rounded to a codebook.
    #[must_use]
    pub fn rounding(&self) -> Rounding {
        self.coding.rounding
    }
}

impl Sparsifier for Threshold {
    const ID: CodecId = CodecId::Threshold;

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        len
    }

    fn capacity(&self, len: usize) -> usize {
        len.saturating_add(CANDIDATE_SLACK)
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
            pass.aligned_blocks(room).try_for_each(|block| pass.keep_from(isa, block, least, candidates))
        })
    }
}
