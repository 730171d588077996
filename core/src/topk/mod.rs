//! Exact top-k: the k coordinates of largest magnitude.

mod reach;
mod select;

use crate::built::Full;
use crate::density::Density;
use crate::error::EncodeError;
use crate::gather::{EncodeUnit, UnitInput};
use crate::index::IndexChoice;
use crate::kernels::{Candidates, Isa};
use crate::packets::Content;
use crate::scratch::{Scratch, ScratchLen};
use crate::sparse::{self, SparseCoding};
use crate::values::ValueChoice;
use crate::wire::header::{CodecId, Kind};
use crate::wire::writer::Writer;

pub(crate) use reach::Quota;
pub(crate) use select::radix_cut;

/// Exact top-k: sends the k = clamp(round(density·n), 1, n) coordinates of largest magnitude of each unit, or all
/// that are not zero where these are fewer. Ties go to the lowest index; a zero is never sent.
///
/// Biased: needs error feedback. ‖C(x) − x‖² ≤ (1 − k/n)·‖x‖² with exact values.
///
/// # Source
/// Aji, Heafield: Sparse Communication for Distributed Gradient Descent (arXiv 1704.05021); Stich, Cordonnier, Jaggi:
/// Sparsified SGD with Memory (arXiv 1809.07599), definition 2.1. We select exactly, not from a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    density: Density,
    coding: SparseCoding,
}

impl TopK {
    /// Top-k at `density`, with index and value coders.
    #[must_use]
    pub fn new(density: Density, index: IndexChoice, values: ValueChoice) -> Self {
        Self { density, coding: SparseCoding { index, values } }
    }

    /// At another density.
    #[must_use]
    pub fn with_density(self, density: Density) -> Self {
        Self { density, ..self }
    }

    /// The density.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
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

    /// Leaves the `k` largest magnitudes in `candidates`; see [`select::top_k`].
    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        k: usize,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        input.pass(self.overflow_bound(), |pass| select::top_k(Isa::best(), pass, k, candidates, spare))
    }
}

impl EncodeUnit for TopK {
    fn codec_id(&self) -> CodecId {
        CodecId::TopK
    }

    fn kind(&self) -> Kind {
        Kind::Sparse
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        sparse::max_body_bytes(self.coding, self.density.count(len), len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        let k = self.density.count(len);
        sparse::scratch_len(self.coding, k, len, select::capacity(k, len))
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
        let k = self.density.count(input.unit.len);
        let capacity = select::capacity(k, input.unit.len);
        let (mut candidates, scratch) = sparse::split_scratch(scratch, capacity);
        self.select(&mut input, k, &mut candidates, scratch.words)?;
        Ok(sparse::decide(self.coding, candidates, scratch, capacity))
    }

    fn encode_body(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let k = self.density.count(input.unit.len);
        let (mut candidates, scratch) = sparse::split_scratch(scratch, select::capacity(k, input.unit.len));
        self.select(&mut input, k, &mut candidates, scratch.words)?;
        sparse::encode_selected(self.coding, input, candidates, scratch, writer);
        Ok(())
    }
}
