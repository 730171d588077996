//! Sparsifiers whose entries at several densities follow from one read of the gradient.

use crate::codec::UnitInput;
use crate::gradient::density::Density;
use crate::kernels::Candidates;
use crate::rng::key::StepKey;
use crate::scratch::Scratch;
use crate::wire::writer::Writer;

/// What a choice depends on besides the largest values.
pub struct Chosen<'c> {
    pub(crate) density: Density,
    pub(crate) key: StepKey,
    /// Identifier of the unit.
    pub(crate) unit: u32,
    /// All values of the unit.
    pub(crate) p: &'c [f32],
}

/// A sparsifier whose entries are always among the largest values of the unit: as many as
/// [`enough`](Self::enough) says for its density, and so for every lower density.
pub trait MultiLevel {
    /// How many of the largest values of a unit of `len` elements hold all entries at `density`.
    fn enough(&self, density: Density, len: usize) -> usize;

    /// Words of working memory that [`choose`](Self::choose) needs.
    fn spare_len(&self, density: Density, len: usize) -> usize;

    /// Leaves the entries of the unit, the same as an encode at that density would choose. The candidates are
    /// at least [`enough`](Self::enough) of the largest values, or all that are not zero if there are fewer.
    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]);

    /// Writes the body of a unit with these entries, and takes them out of the memory, which holds p and the
    /// momentum after the step.
    fn encode_chosen(
        &self,
        input: UnitInput<'_, '_>,
        entries: Candidates<'_>,
        scratch: Scratch<'_>,
        writer: &mut Writer<'_>,
    );
}
