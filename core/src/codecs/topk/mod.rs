//! Exact top-k: the k coordinates of largest magnitude.

mod chunks;
#[cfg(feature = "alloc")]
mod multi_level;
#[cfg(feature = "alloc")]
mod peek;
mod reach;
mod select;
mod spelling;

use crate::built::Full;
#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{EncodeUnit, UnitInput};
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::sparse::{SparseCoding, Sparsifier, coding_methods, density_methods};
use crate::wire::ids::CodecId;
use chunks::Chunks;
use core::num::NonZeroU32;

#[cfg(feature = "alloc")]
pub(crate) use peek::largest_beside;
pub(crate) use reach::{Quota, least_above};
pub(crate) use select::{capacity, largest, radix_cut};

/// Exact top-k: sends the k = clamp(round(density·n), 1, n) coordinates of largest magnitude of each unit, or
/// all that are not zero if there are fewer. Ties go to the lowest index; a zero is never sent.
///
/// With [chunks](Self::with_chunk), it does the same for every chunk of the unit: k =
/// clamp(round(density·chunk), 1, chunk) for each. The last chunk may be shorter; its k follows from its own
/// length. So every part of the unit sends something in each step, and the work of one chunk does not depend
/// on another.
///
/// Biased: needs error feedback. ‖C(x) − x‖² ≤ (1 − k/n)·‖x‖² with exact values.
///
/// # Source
/// Aji, Heafield: Sparse Communication for Distributed Gradient Descent (arXiv 1704.05021); Stich,
/// Cordonnier, Jaggi: Sparsified SGD with Memory (arXiv 1809.07599), definition 2.1. We select exactly, not
/// from a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    density: Density,
    chunk: Option<NonZeroU32>,
    coding: SparseCoding,
}

impl TopK {
    /// Top-k at `density`, with index and value coders.
    #[must_use]
    pub fn new(density: Density, index: IndexChoice, values: ValueChoice) -> Self {
        Self { density, chunk: None, coding: SparseCoding::new(index, values) }
    }

    /// Sends the same share of every `chunk` neighbouring coordinates, counted from the start of the unit.
    /// `None` unless `chunk` is a power of two from 64 to 65536. Encoding needs the feature `full`.
    ///
    /// # Examples
    /// ```
    /// use gradwire::Density;
    /// use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
    /// let codec = TopK::new(Density::new(0.01).unwrap(), IndexChoice::Auto, ValueChoice::F32);
    /// assert_eq!(codec.with_chunk(4096).and_then(|codec| codec.chunk()), Some(4096));
    /// assert_eq!(codec.with_chunk(1000), None);
    /// ```
    #[must_use]
    pub fn with_chunk(self, chunk: u32) -> Option<Self> {
        let is_known = chunk.is_power_of_two() && (64..=65_536).contains(&chunk);
        is_known.then_some(Self { chunk: NonZeroU32::new(chunk), ..self })
    }

    /// Coordinates of a chunk, if the unit is cut into chunks.
    #[must_use]
    pub fn chunk(&self) -> Option<u32> {
        self.chunk.map(NonZeroU32::get)
    }

    /// The chunks, in a full build. Any other build has refused them before.
    fn chunks(&self) -> Option<Chunks> {
        let len = Full::build().and(self.chunk)?.get() as usize;
        Some(Chunks { density: self.density, len })
    }
}

coding_methods!(TopK);
density_methods!(TopK);

impl Sparsifier for TopK {
    const ID: CodecId = CodecId::new(3);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn needs_full(&self) -> bool {
        self.chunk.is_some()
    }

    fn most_entries(&self, len: usize) -> usize {
        self.chunks().map_or_else(|| self.density.count(len), |chunks| chunks.most_entries(len))
    }

    fn capacity(&self, len: usize) -> usize {
        self.chunks().map_or_else(|| capacity(self.density.count(len), len), |chunks| chunks.capacity(len))
    }

    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        Some(self)
    }

    fn refuses_in_pass(&self) -> bool {
        true
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        if let Some(chunks) = self.chunks() {
            let bound = self.overflow_bound();
            return input.pass(bound, |pass| chunks.select(Isa::best(), pass, candidates, spare));
        }
        let k = self.density.count(input.unit.len);
        input.pass(self.overflow_bound(), |pass| select::top_k(Isa::best(), pass, k, candidates, spare))
    }
}
