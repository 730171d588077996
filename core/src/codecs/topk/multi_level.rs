//! The entries at several densities, from one selection.

use super::TopK;
use super::select::{compact, cut};
use crate::codec::{Chosen, MultiLevel, UnitInput};
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl MultiLevel for TopK {
    fn enough(&self, density: Density, len: usize) -> usize {
        density.count(len)
    }

    fn spare_len(&self, density: Density, len: usize) -> usize {
        density.count(len)
    }

    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let k = of.density.count(of.p.len());
        if candidates.len > k {
            let cut = cut(Isa::best(), &candidates.values[..candidates.len], k, spare);
            compact(Isa::best(), candidates, cut, k);
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
