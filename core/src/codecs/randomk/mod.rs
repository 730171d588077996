//! Random-k with a shared seed: every worker chooses the same coordinates, so it sends only their values, and
//! all-reduce can sum them.

mod draw;
#[cfg(feature = "alloc")]
mod multi_level;
mod spelling;
mod view;

#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{
    Body, Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, UnitStep, begin_unit,
};
use crate::coding::values::ValueFormat;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::Isa;
use crate::memory::{Memory, MemoryView};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::ids::CodecId;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

pub use draw::Block;
use draw::Drawing;
pub(crate) use view::SeededFields;

/// The factor on the values: the key `estimator=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Estimator {
    /// Values as they are: a contraction, with δ = k/n in expectation. Needs error feedback.
    #[default]
    Contraction,
    /// Values times n/k: unbiased, E‖C(x) − x‖² = (n/k − 1)·‖x‖². Diverges under error feedback, so it uses
    /// none.
    Unbiased,
}

/// Random-k: k = clamp(round(density·n), 1, n) coordinates, drawn without replacement from the shared stream
/// of (seed, step, unit), the same on every rank. Each k-subset is equally likely, or each [`Block`] of k
/// coordinates.
///
/// # Source
/// Stich, Cordonnier, Jaggi: Sparsified SGD with Memory (arXiv 1809.07599), definition 2.1; Wangni et al.:
/// Gradient Sparsification (arXiv 1710.09854) for the unbiased form. Sampling: Floyd, in Bentley: Programming
/// Pearls: A Sample of Brilliance (CACM 30(9), 1987). Runs: Eghlidi, Jaggi: Sparse Communication for Training
/// Deep Networks (arXiv 2009.09271), random-block. Tiles: GRSB, of which we know code alone. Its tiles are
/// aligned, and have no shorter row; here they may begin anywhere, so that no sizes need to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomK {
    density: Density,
    block: Block,
    estimator: Estimator,
}

impl RandomK {
    /// Its number on the wire.
    pub(crate) const ID: CodecId = CodecId::new(6);

    /// Random-k at `density`, of coordinates that are drawn alone.
    #[must_use]
    pub fn new(density: Density, estimator: Estimator) -> Self {
        Self { density, block: Block::None, estimator }
    }

    /// Drawn as such a block.
    #[must_use]
    pub fn with_block(self, block: Block) -> Self {
        Self { block, ..self }
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

    /// What is drawn as a whole.
    #[must_use]
    pub fn block(&self) -> Block {
        self.block
    }

    /// The estimator.
    #[must_use]
    pub fn estimator(&self) -> Estimator {
        self.estimator
    }

    /// The factor on a value before it is sent.
    fn factor(&self, k: usize, len: usize) -> f32 {
        match self.estimator {
            Estimator::Contraction => 1.0,
            Estimator::Unbiased => (len as f64 / k as f64) as f32,
        }
    }

    /// Values must stay below this, so that none overflows when it is multiplied by at most 2³².
    fn bound(&self) -> f32 {
        match self.estimator {
            Estimator::Contraction => f32::INFINITY,
            Estimator::Unbiased => f32::from_bits((127 + 95) << 23),
        }
    }
}

impl EncodeUnit for RandomK {
    fn capabilities(&self) -> Capabilities {
        let keeps = self.estimator == Estimator::Contraction;
        Capabilities {
            law: if keeps { Law::Exact } else { Law::NotKept },
            needs_full: true,
            ..Capabilities::new(Self::ID, SeededFields::KIND)
        }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        let values = self.density.count(len).checked_mul(4)?;
        values.checked_add(8 + MAX_VARINT_BYTES + 1 + self.block.most_bytes())
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        let k = self.density.count(len);
        ScratchLen { words: len.saturating_add(k).saturating_add(self.block.spare_words(len)), bytes: 0 }
    }

    fn overflow_bound(&self) -> f32 {
        self.bound()
    }

    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        Some(self)
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let (p, words) = scratch.words.split_at_mut(len);
        let drawing = Drawing::new(self.block, self.density, input.span());
        input.source(self.bound()).fold(Isa::best(), 0, p)?;
        let k = self.density.count(len);
        let (indices, words) = words.split_at_mut(k);
        drawing.draw(&input.key.shared_selection(input.unit.id), len, indices, words);
        let factor = self.factor(k, len);
        let values = indices.iter().map(|&index| f32::from_bits(p[index as usize]) * factor);
        write(input.key, drawing, values, writer);
        if let Some(memory) = input.memory {
            commit(p, indices, memory);
        }
        Ok(())
    }
}

/// Writes the body with these values. The positions follow from the key and the drawing.
fn write(
    key: StepKey,
    drawing: Drawing,
    values: impl ExactSizeIterator<Item = f32>,
    writer: &mut Writer<'_>,
) {
    let k = values.len();
    writer.bytes(&key.seed.to_le_bytes());
    writer.varint(k as u64);
    drawing.write(ValueFormat::F32.number(), writer);
    let places = writer.reserve(4 * k).as_chunks_mut::<4>().0;
    places.iter_mut().zip(values).for_each(|(place, value)| *place = value.to_le_bytes());
}

/// Sets the residual to p, and to zero at the coordinates sent.
fn commit(p: &[u32], indices: &[u32], memory: &mut Memory<'_>) {
    memory.keep_all(p);
    let residual = memory.residual_mut();
    indices.iter().for_each(|&index| residual[index as usize] = 0.0);
}

/// One round, a sum of f32: the values at the shared coordinates.
impl Linear for RandomK {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        let (len, k) = (unit.len, self.density.count(unit.len));
        LinearScratchLen {
            words: len.saturating_add(k).saturating_add(self.block.spare_words(len)),
            floats: k,
            ints: 0,
        }
    }

    fn held(&self, len: usize) -> usize {
        self.density.count(len)
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let residual = memory.map(|memory| memory.residual);
        let (unit, needed) = (step.unit, self.round_scratch_len(step.layout, step.unit, step.workers));
        begin_unit(needed, unit, grad, residual, self.bound(), scratch)?;
        let k = self.density.count(unit.len);
        let (p, words) = scratch.words.split_at_mut(unit.len);
        let drawing = Drawing::new(self.block, self.density, step.span());
        let (indices, words) = words.split_at_mut(k);
        drawing.draw(&step.key.shared_selection(unit.id), unit.len, indices, words);
        let factor = self.factor(k, unit.len);
        for (value, &index) in scratch.floats.iter_mut().zip(&*indices) {
            *value = f32::from_bits(p[index as usize]) * factor;
        }
        Ok(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len: k })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::F32(&mut scratch.floats[..round.payload_len])
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        round.assert_mean(mean, step.workers);
        let (p, words) = scratch.words.split_at(round.unit.len);
        let indices = &words[..round.payload_len];
        mean.fill(0.0);
        for (&index, &sum) in indices.iter().zip(&*scratch.floats) {
            mean[index as usize] = sum / step.workers as f32;
        }
        if let Some(memory) = memory {
            commit(p, indices, memory);
        }
        None
    }
}
