//! Deep Gradient Compression: momentum ahead of the residual, and a threshold taken from a sample.

mod select;

use crate::density::Density;
use crate::error::EncodeError;
use crate::gather::{EncodeUnit, UnitInput};
use crate::index::IndexChoice;
use crate::kernels::Isa;
use crate::momentum::Momentum;
use crate::scratch::{Scratch, ScratchLen};
use crate::sparse::{self, SparseCoding};
use crate::topk::Quota;
use crate::values::ValueChoice;
use crate::wire::header::{CodecId, Kind};
use crate::wire::writer::Writer;

/// Deep Gradient Compression. Momentum works on each worker, ahead of the residual (which the paper calls velocity): the
/// residual accumulates steps instead of gradients, and where an entry is sent, its momentum starts anew (momentum factor
/// masking). So the optimizer must not have momentum of its own for the units that are compressed; it keeps that of
/// units that are sent dense, as tensors of one dimension are.
///
/// Coordinates are those that reach a threshold taken from an evenly spaced sample: between 0.8·k and 1.3·k of them, where
/// k = clamp(round(density·n), 1, n). Of more than 1.3·k the k largest are sent; a threshold that leaves fewer than 0.8·k
/// is lowered to 0.8 of itself, up to ten times. A zero is never sent.
///
/// At every step sent + kept = fl(residual + step), bit for bit, where the [step](Momentum) is what momentum makes of the
/// gradient. Masked momentum is dropped, on purpose, and a frame that is given back does not bring it back.
///
/// # Source
/// Lin, Han, Mao, Wang, Dally: Deep Gradient Compression (arXiv 1712.01887), algorithms 1 to 4. Differences: in the band
/// up to 1.3·k all that reach the threshold are sent, none is dropped for its position; and clipping bounds the norm of
/// the gradient, not its elements one by one.
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
        let coding = SparseCoding { index, values };
        Self { density, coding, momentum: None, sample: Density::percent(), clip: None }
    }

    /// With momentum, which needs a [memory that holds it](crate::Memory::with_momentum); without, plain error feedback.
    #[must_use]
    pub fn with_momentum(self, momentum: Option<Momentum>) -> Self {
        Self { momentum, ..self }
    }

    /// With this share of a unit in the sample, or as many as it takes for two of them to be among the k.
    #[must_use]
    pub fn with_sample(self, sample: Density) -> Self {
        Self { sample, ..self }
    }

    /// With a limit above 0 on the norm of the sum of all workers' gradients; see [`local_clip`](Self::local_clip).
    #[must_use]
    pub fn with_clip(self, clip: Option<f32>) -> Self {
        Self { clip: clip.filter(|clip| clip.is_finite() && *clip > 0.0), ..self }
    }

    /// At another density.
    #[must_use]
    pub fn with_density(self, density: Density) -> Self {
        Self { density, ..self }
    }

    /// The density.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
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

    /// The norm that one of `workers` shortens its whole gradient to (see [`clip_norm`](crate::clip_norm)) before it
    /// encodes: limit·workers^(−1/2), since the sum of N independent gradients is √N times as long.
    ///
    /// # Source
    /// Lin et al., section 3.3.
    #[must_use]
    pub fn local_clip(&self, workers: u32) -> Option<f64> {
        self.clip.map(|clip| f64::from(clip) / libm::sqrt(f64::from(workers.max(1))))
    }

    /// The index coder.
    #[must_use]
    pub fn index(&self) -> IndexChoice {
        self.coding.index
    }

    /// The value coder.
    #[must_use]
    pub fn values(&self) -> ValueChoice {
        self.coding.values
    }

    fn quota(&self, len: usize) -> Quota {
        select::quota(self.density.count(len), len)
    }

    /// Elements of each part of the candidates; the sample goes where their values will be.
    fn capacity(&self, len: usize) -> usize {
        self.quota(len).capacity(len).max(select::samples(self, len))
    }
}

impl EncodeUnit for Dgc {
    fn codec_id(&self) -> CodecId {
        CodecId::Dgc
    }

    fn kind(&self) -> Kind {
        Kind::Sparse
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        sparse::max_body_bytes(self.coding, self.quota(len).most, len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        sparse::scratch_len(self.coding, self.quota(len).most, len, self.capacity(len))
    }

    fn overflow_bound(&self) -> f32 {
        self.coding.values.overflow_bound()
    }

    fn adds_early(&self) -> bool {
        true
    }

    fn momentum(&self) -> Option<Momentum> {
        self.momentum
    }

    fn encode_body(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let stream = input.key.own_selection(input.unit.id);
        let (mut candidates, scratch) = sparse::split_scratch(scratch, self.capacity(input.unit.len));
        let spare = &mut *scratch.words;
        input.pass(self.overflow_bound(), |pass| {
            select::select(Isa::best(), self, pass, &stream, &mut candidates, spare)
        })?;
        sparse::encode_selected(self.coding, input, candidates, scratch, writer);
        Ok(())
    }
}
