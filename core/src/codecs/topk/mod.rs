//! Exact top-k: the k coordinates of largest magnitude.

mod peek;
mod reach;
mod select;
mod spelling;

use crate::codec::{EncodeUnit, UnitInput};
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::sparse::{SparseCoding, Sparsifier, coding_methods, density_methods};
use crate::wire::ids::CodecId;

pub(crate) use peek::{Peek, capacity};
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
        Self { density, coding: SparseCoding::new(index, values) }
    }
}

coding_methods!(TopK);
density_methods!(TopK);

impl Sparsifier for TopK {
    const ID: CodecId = CodecId::new(3);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        self.density.count(len)
    }

    fn capacity(&self, len: usize) -> usize {
        capacity(self.density.count(len), len)
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        let k = self.density.count(input.unit.len);
        input.pass(self.overflow_bound(), |pass| select::top_k(Isa::best(), pass, k, candidates, spare))
    }
}
