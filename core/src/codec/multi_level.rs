//! Codecs whose entries at several densities follow from one read of the gradient.

use crate::codec::{Round, UnitInput};
use crate::corrected::{BLOCK, Corrected};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::kernels::scalar::sums::Strides;
use crate::kernels::scalar::total_of;
use crate::kernels::{self, Candidates, Isa, Largest};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, Scratch};
use crate::wire::writer::Writer;

/// Where the one read writes p and, if there is momentum, what it is after the step.
pub struct Beside<'b> {
    pub(crate) p: &'b mut [f32],
    /// Empty without momentum.
    pub(crate) momentum: &'b mut [f32],
}

/// Sums over all elements of a unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole {
    /// Of the squares of p.
    pub(crate) squares: f64,
    /// Largest magnitude bits.
    pub(crate) largest: Largest,
}

/// What a choice depends on besides the entries that are held.
pub struct Chosen<'c> {
    pub(crate) density: Density,
    pub(crate) key: StepKey,
    /// Identifier of the unit.
    pub(crate) unit: u32,
    /// The unit's range of the layout.
    pub(crate) span: Span<'c>,
    /// All values of the unit.
    pub(crate) p: &'c [f32],
}

/// A codec whose entries at several densities follow from one read of the gradient. [`hold`](Self::hold) is
/// that read: it writes p, and leaves candidates that are enough for the highest of the densities, or none.
/// [`choose`](Self::choose) then leaves the entries of each density, out of the candidates or out of p.
pub trait MultiLevel {
    /// Elements that each part of the candidates must hold in [`hold`](Self::hold), of a unit of `len`.
    fn held_len(&self, most: Density, len: usize) -> usize {
        let _ = (most, len);
        0
    }

    /// Words of working memory that [`hold`](Self::hold) and [`choose`](Self::choose) need at that density.
    fn spare_len(&self, density: Density, len: usize) -> usize;

    /// Reads the source once, writes p and momentum, and leaves candidates that are enough for [choosing
    /// at](Self::choose) any density up to `most`. Leaves none for a codec that chooses out of p.
    ///
    /// # Errors
    /// The errors of [`Corrected::fold`].
    fn hold(
        &self,
        most: Density,
        source: &Corrected<'_>,
        beside: &mut Beside<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Whole, EncodeError> {
        let _ = (most, candidates, spare);
        read_beside(source, beside, |_, _| {})
    }

    /// Elements that each part of the candidates must hold in [`choose`](Self::choose), if those that are
    /// held are not enough; 0 if they are.
    fn choice_len(&self, density: Density, len: usize) -> usize {
        let _ = (density, len);
        0
    }

    /// Leaves the entries of the unit, with the values that an encode at that density would send if it did
    /// not round them. The candidates are those of [`hold`](Self::hold) at this density or a higher one.
    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]);

    /// Writes the body of a unit with these entries, and takes them out of the memory, which holds p and the
    /// momentum after the step. The codec has the density at which they were chosen.
    fn encode_chosen(
        &self,
        input: UnitInput<'_, '_>,
        entries: Candidates<'_>,
        scratch: Scratch<'_>,
        writer: &mut Writer<'_>,
    );

    /// Begins the rounds of a unit with these entries: positions, and bits of values. `scratch` has what
    /// [`round_scratch_len`](crate::Linear::round_scratch_len) asks for at the density at which they were
    /// chosen. `None` for a codec without rounds.
    fn begin_chosen(
        &self,
        unit: &Unit,
        p: &[f32],
        entries: (&[u32], &[u32]),
        scratch: &mut LinearScratch<'_>,
    ) -> Option<Round> {
        let _ = (unit, p, entries, scratch);
        None
    }
}

/// Reads the source once, and writes p and momentum. Calls `see` with every run of p, in order, and the
/// position of its first element; a run has at most [`BLOCK`] elements and begins at a multiple of it.
///
/// # Errors
/// The errors of [`Corrected::fold`].
pub(crate) fn read_beside(
    source: &Corrected<'_>,
    beside: &mut Beside<'_>,
    mut see: impl FnMut(usize, &[f32]),
) -> Result<Whole, EncodeError> {
    let isa = Isa::best();
    let (mut sums, mut largest): (Strides, _) = ([0.0; 8], Largest::default());
    for first in (0..source.len()).step_by(BLOCK) {
        let range = first..source.len().min(first + BLOCK);
        let p = &mut beside.p[range.clone()];
        let momentum = beside.momentum.get_mut(range).unwrap_or_default();
        let of_block = source.write(isa, first, p, momentum)?;
        largest.residual = largest.residual.max(of_block.residual);
        largest.momentum = largest.momentum.max(of_block.momentum);
        kernels::add_squares(isa, kernels::bits_of(p), &mut sums);
        see(first, p);
    }
    Ok(Whole { squares: total_of(sums), largest })
}
