//! Fixed threshold: all coordinates at or above a given magnitude.

use crate::built::Full;
use crate::error::EncodeError;
use crate::gather::{EncodeUnit, UnitInput};
use crate::index::IndexChoice;
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};
use crate::packets::Content;
use crate::scratch::{Scratch, ScratchLen};
use crate::sparse::{self, SparseCoding};
use crate::values::ValueChoice;
use crate::wire::header::{CodecId, Kind};
use crate::wire::writer::Writer;

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
        is_valid.then_some(Self { value: value.abs(), coding: SparseCoding { index, values } })
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

    /// Leaves every element that reaches the threshold in `candidates`, which have room for all.
    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
    ) -> Result<(), EncodeError> {
        let (isa, least) = (Isa::best(), self.value.to_bits().max(1));
        input.pass(self.overflow_bound(), |pass| {
            pass.blocks().try_for_each(|block| pass.keep_from(isa, block, least, candidates))
        })
    }
}

impl EncodeUnit for Threshold {
    fn codec_id(&self) -> CodecId {
        CodecId::Threshold
    }

    fn kind(&self) -> Kind {
        Kind::Sparse
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        sparse::max_body_bytes(self.coding, len, len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        sparse::scratch_len(self.coding, len, len, len.saturating_add(CANDIDATE_SLACK))
    }

    fn needs_full(&self) -> bool {
        self.coding.needs_full()
    }

    fn overflow_bound(&self) -> f32 {
        self.coding.values.overflow_bound()
    }

    fn adds_early(&self) -> bool {
        true
    }

    fn is_cut(&self) -> bool {
        self.coding.index.is_cut()
    }

    fn least_body_bytes(&self, len: usize) -> usize {
        sparse::least_body_bytes(self.coding, len)
    }

    fn decide(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Content, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let capacity = input.unit.len + CANDIDATE_SLACK;
        let (mut candidates, scratch) = sparse::split_scratch(scratch, capacity);
        self.select(&mut input, &mut candidates)?;
        Ok(sparse::decide(self.coding, candidates, scratch, capacity))
    }

    fn encode_body(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let (mut candidates, scratch) = sparse::split_scratch(scratch, input.unit.len + CANDIDATE_SLACK);
        self.select(&mut input, &mut candidates)?;
        sparse::encode_selected(self.coding, input, candidates, scratch, writer);
        Ok(())
    }
}
