//! Deep Gradient Compression: momentum before the residual, and a threshold taken from a sample.

#[cfg(feature = "alloc")]
mod multi_level;
mod select;
mod spelling;

#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{EncodeUnit, UnitInput};
use crate::codecs::topk::Quota;
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::momentum::Momentum;
use crate::sparse::{SparseCoding, Sparsifier, coding_methods, density_methods};
use crate::wire::ids::CodecId;

/// Deep Gradient Compression. Momentum works on each worker, before the residual (which the paper calls
/// velocity): the residual accumulates steps instead of gradients. When an entry is sent, the momentum of its
/// coordinate becomes 0 (momentum factor masking). So the optimizer must not have momentum of its own for the
/// units that are compressed. It keeps its momentum for units that are sent dense, such as tensors of one
/// dimension.
///
/// The codec sends the coordinates that reach a threshold taken from an evenly spaced sample: between 0.8·k
/// and 1.3·k of them, where k = clamp(round(density·n), 1, n). If more than 1.3·k reach it, the k largest are
/// sent. A threshold that leaves fewer than 0.8·k is lowered to 0.8 of itself, up to ten times. A zero is
/// never sent.
///
/// At every step sent + kept = fl(residual + step), bit for bit, where the [step](Momentum) is what momentum
/// makes of the gradient. Masked momentum is dropped on purpose, and giving a frame back does not restore it.
///
/// # Source
/// Lin, Han, Mao, Wang, Dally: Deep Gradient Compression (arXiv 1712.01887), algorithms 1 to 4. Two
/// differences: up to 1.3·k, every coordinate that reaches the threshold is sent, and none is dropped for its
/// position; and clipping bounds the norm of the gradient, not its elements one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dgc {
    density: Density,
    coding: SparseCoding,
    momentum: Option<Momentum>,
    sample: Density,
    clip: Option<f32>,
}

impl Dgc {
    /// DGC at `density`, with index and value coders; no momentum, no clipping, a sample of 1 %.
    #[must_use]
    pub fn new(density: Density, index: IndexChoice, values: ValueChoice) -> Self {
        let coding = SparseCoding::new(index, values);
        Self { density, coding, momentum: None, sample: Density::percent(), clip: None }
    }

    /// Sets the momentum, which needs a [memory that holds it](crate::Memory::with_momentum). `None` is plain
    /// error feedback.
    #[must_use]
    pub fn with_momentum(self, momentum: Option<Momentum>) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the share of a unit in the sample. The sample is larger if it takes more elements to expect two
    /// of them among the k largest.
    #[must_use]
    pub fn with_sample(self, sample: Density) -> Self {
        Self { sample, ..self }
    }

    /// Sets a limit above 0 on the norm of the sum of all workers' gradients; see
    /// [`local_clip`](Self::local_clip).
    #[must_use]
    pub fn with_clip(self, clip: Option<f32>) -> Self {
        Self { clip: clip.filter(|clip| clip.is_finite() && *clip > 0.0), ..self }
    }

    /// The momentum.
    #[must_use]
    pub fn momentum(&self) -> Option<Momentum> {
        self.momentum
    }

    /// The share of a unit that is sampled.
    #[must_use]
    pub fn sample(&self) -> Density {
        self.sample
    }

    /// The limit on the norm of the sum of all workers' gradients.
    #[must_use]
    pub fn clip(&self) -> Option<f32> {
        self.clip
    }

    /// The norm to which a worker, one of `workers`, shortens its whole gradient before it encodes (see
    /// [`clip_norm`](crate::arithmetic::clip_norm)): limit·workers^(−1/2), because the sum of N independent
    /// gradients is √N times as long.
    ///
    /// # Source
    /// Lin et al., section 3.3.
    #[must_use]
    pub fn local_clip(&self, workers: u32) -> Option<f64> {
        self.clip.map(|clip| f64::from(clip) / libm::sqrt(f64::from(workers.max(1))))
    }

    fn quota(&self, len: usize) -> Quota {
        select::quota(self.density.count(len), len)
    }
}

coding_methods!(Dgc);
density_methods!(Dgc);

impl Sparsifier for Dgc {
    const ID: CodecId = CodecId::new(7);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        self.quota(len).most
    }

    /// Also holds the sample, which is stored where the values of the candidates go later.
    fn capacity(&self, len: usize) -> usize {
        self.quota(len).capacity(len).max(select::samples(self, len))
    }

    fn momentum(&self) -> Option<Momentum> {
        self.momentum
    }

    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        Some(self)
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        let stream = input.key.own_selection(input.unit.id);
        input.pass(self.overflow_bound(), |pass| {
            select::select(Isa::best(), self, pass, &stream, candidates, spare)
        })
    }
}
