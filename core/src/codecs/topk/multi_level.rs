//! The entries at several densities, from one read of the gradient.

use super::TopK;
use super::peek::largest_beside;
use super::select::{compact, cut};
use crate::codec::{Beside, Chosen, MultiLevel, UnitInput, Whole};
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl MultiLevel for TopK {
    fn held_len(&self, most: Density, len: usize) -> usize {
        self.with_density(most).capacity(len)
    }

    fn spare_len(&self, density: Density, len: usize) -> usize {
        self.with_density(density).most_entries(len)
    }

    fn hold(
        &self,
        most: Density,
        source: &Corrected<'_>,
        beside: &mut Beside<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Whole, EncodeError> {
        match self.with_density(most).chunks() {
            Some(chunks) => chunks.hold(Isa::best(), source, beside, candidates, spare),
            None => largest_beside(source, most.count(source.len()), beside, candidates, spare),
        }
    }

    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let (isa, len) = (Isa::best(), of.p.len());
        if let Some(chunks) = self.with_density(of.density).chunks() {
            return chunks.choose(isa, len, candidates, spare);
        }
        let k = of.density.count(len);
        if candidates.len > k {
            let cut = cut(isa, &candidates.values[..candidates.len], k, spare);
            compact(isa, candidates, cut, k);
        }
    }

    fn encode_chosen(
        &self,
        input: UnitInput<'_, '_>,
        entries: Candidates<'_>,
        scratch: Scratch<'_>,
        writer: &mut Writer<'_>,
    ) {
        encode_selected(self.coding(), input, entries, scratch, writer);
    }
}
