//! The entries at several densities, from one read of the gradient. Each density has a threshold of its own,
//! which is fitted to p.

use super::Sidco;
use crate::codec::{Chosen, MultiLevel, UnitInput};
use crate::corrected::Pass;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::kernels::Candidates;
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl MultiLevel for Sidco {
    fn spare_len(&self, density: Density, len: usize) -> usize {
        self.with_density(density).most_entries(len)
    }

    fn choice_len(&self, density: Density, len: usize) -> usize {
        self.with_density(density).capacity(len)
    }

    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let Some(stages) = self.stages else { return };
        let mut pass = Pass::new(Grad::F32(of.p), None, 0, f32::INFINITY);
        let sidco = self.with_density(of.density);
        let chosen = sidco.select_from(&mut pass, stages.get(), candidates, spare);
        debug_assert!(chosen.is_ok(), "the read has checked all values");
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
