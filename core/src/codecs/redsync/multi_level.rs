//! The entries at several densities, from one selection.

use super::{Redsync, magnitudes};
use crate::codec::{Chosen, MultiLevel, UnitInput};
use crate::corrected::Pass;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::kernels::{Candidates, Isa};
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl MultiLevel for Redsync {
    fn enough(&self, density: Density, len: usize) -> usize {
        self.with_density(density).quota(len).one_too_many(len)
    }

    fn spare_len(&self, density: Density, len: usize) -> usize {
        density.count(len)
    }

    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let (redsync, isa) = (self.with_density(of.density), Isa::best());
        let quota = redsync.quota(of.p.len());
        // The selection has checked all values.
        let mut pass = Pass::new(Grad::F32(of.p), None, 0, f32::INFINITY);
        let Ok(magnitudes) = magnitudes(isa, &mut pass) else { return };
        quota.choose(isa, candidates, spare, |reach| redsync.halve_until_enough(quota, &magnitudes, reach));
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
