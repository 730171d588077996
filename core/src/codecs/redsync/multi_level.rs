//! The entries at several densities, from one read of the gradient.

use super::{Redsync, magnitudes};
use crate::codec::{Beside, Chosen, MultiLevel, UnitInput, Whole};
use crate::codecs::topk::{capacity, largest_beside};
use crate::corrected::{Corrected, Pass};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::kernels::{Candidates, Isa};
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl Redsync {
    /// How many of the largest values of a unit hold all entries.
    fn enough(&self, len: usize) -> usize {
        self.quota(len).one_too_many(len)
    }
}

impl MultiLevel for Redsync {
    fn held_len(&self, most: Density, len: usize) -> usize {
        capacity(self.with_density(most).enough(len), len)
    }

    fn spare_len(&self, density: Density, len: usize) -> usize {
        self.with_density(density).enough(len)
    }

    fn hold(
        &self,
        most: Density,
        source: &Corrected<'_>,
        beside: &mut Beside<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Whole, EncodeError> {
        let k = self.with_density(most).enough(source.len());
        largest_beside(source, k, beside, candidates, spare)
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
