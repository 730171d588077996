//! The entries at several densities, from one read of the gradient.

use super::Dgc;
use super::select::{lower_until_enough, sampled_threshold, samples};
use crate::codec::{Beside, Chosen, MultiLevel, UnitInput, Whole};
use crate::codecs::topk::{capacity, largest_beside};
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{self, Candidates, Isa};
use crate::scratch::Scratch;
use crate::sparse::{Sparsifier, encode_selected};
use crate::wire::writer::Writer;

impl Dgc {
    /// How many of the largest values of a unit hold all entries.
    fn enough(&self, len: usize) -> usize {
        self.quota(len).one_too_many(len)
    }
}

impl MultiLevel for Dgc {
    fn held_len(&self, most: Density, len: usize) -> usize {
        capacity(self.with_density(most).enough(len), len)
    }

    fn spare_len(&self, density: Density, len: usize) -> usize {
        let dgc = self.with_density(density);
        samples(&dgc, len).max(dgc.enough(len))
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
        let (dgc, p) = (self.with_density(of.density), of.p);
        let (stream, quota) = (of.key.own_selection(of.unit), dgc.quota(p.len()));
        let (fetch, value_at) = (|later| kernels::fetch(p, later), |place: usize| p[place].to_bits());
        let first = sampled_threshold(&dgc, p.len(), &stream, spare, fetch, value_at);
        quota.choose(Isa::best(), candidates, spare, |reach| lower_until_enough(quota, first, reach));
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
