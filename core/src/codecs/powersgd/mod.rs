//! Gradients as products of two thin factors, each summed by all-reduce.

pub(crate) mod basis;
mod blocks;
#[cfg(feature = "alloc")]
mod by_unit;
mod spelling;

use crate::built::Full;
use crate::codec::{
    Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, UnitStep, begin_unit,
};
use crate::codecs::dense::Dense;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::{Keeper, Memory, MemoryView, StateLen};
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::ops::Range;

use basis::{complete, orthonormalise};
use blocks::{Blocks, Factors};
#[cfg(feature = "alloc")]
pub use by_unit::PowerSgdByUnit;

/// PowerSGD: the mean of the workers' matrices M of n × m, as a product P·Qᵀ of rank r, by one step of the
/// power iteration. Two rounds, both sums of f32: M·Q, whose columns all workers then make orthonormal in the
/// same way, and Mᵀ·P.
///
/// A tensor of two or more dimensions is a matrix of `shape[0]` rows. It is compressed if its factors have
/// fewer than one `min_rate`th of its elements: r·(n + m)·`min_rate` < n·m. All other tensors, vectors among
/// them, are sent whole in the first round. So is a tensor that the unit cuts, and so are all tensors before
/// the step `start`.
///
/// The memory holds the residual and, as its *factors*, the Q of the previous step, from which the next step
/// begins (warm start). Before the first step, all columns of Q are zero. A column that is zero is drawn
/// anew, the same on every worker. The memory keeps fl(p − mean), one rounding a coordinate. The sum over
/// workers of sent and kept is the sum of p, except for rounding.
///
/// There are no frames: one worker alone does not know what it contributes.
///
/// # Determinism
/// Sums have one order: M·Q in eight strides along a row, Mᵀ·P down the rows; inner products of columns in
/// f64, top to bottom. Every worker that gets the same sums computes the same mean.
///
/// # Source
/// Vogels, Karimireddy, Jaggi: PowerSGD (arXiv 1905.13727), algorithms 1 and 2. Two differences: Q is
/// orthonormalised before use, so that magnitudes stay those of M; and columns that others span are dropped
/// and drawn anew, where the authors add a small constant to the norm. `min_rate` and `start` are those of
/// PyTorch's communication hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PowerSgd {
    rank: u16,
    min_rate: u32,
    start: u64,
}

/// 2⁸⁸: sums of products with unit vectors of up to 2³² elements, over 2²² workers, stay finite.
const BOUND: f32 = f32::from_bits((127 + 88) << 23);

impl PowerSgd {
    /// The largest rank.
    pub const MAX_RANK: u16 = 256;
    /// How many times smaller a matrix must become, by default.
    pub const MIN_RATE: u32 = 2;

    /// PowerSGD of `rank` from 1 to [`MAX_RANK`](Self::MAX_RANK), else `None`. It compresses from step 0 on,
    /// at [`MIN_RATE`](Self::MIN_RATE).
    #[must_use]
    pub fn new(rank: u16) -> Option<Self> {
        (1..=Self::MAX_RANK).contains(&rank).then_some(Self { rank, min_rate: Self::MIN_RATE, start: 0 })
    }

    /// Compresses only matrices that become more than `min_rate` times smaller; 0 counts as 1.
    #[must_use]
    pub fn with_min_rate(self, min_rate: u32) -> Self {
        Self { min_rate: min_rate.max(1), ..self }
    }

    /// The same at another rank, from 1 to [`MAX_RANK`](Self::MAX_RANK), else `None`.
    #[must_use]
    pub fn with_rank(self, rank: u16) -> Option<Self> {
        Self::new(rank).map(|_| Self { rank, ..self })
    }

    /// Sends all tensors whole before this step.
    #[must_use]
    pub fn with_start(self, start: u64) -> Self {
        Self { start, ..self }
    }

    /// The rank of the approximation.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// A matrix is compressed only if it becomes more than this many times smaller.
    #[must_use]
    pub fn min_rate(&self) -> u32 {
        self.min_rate
    }

    /// The first step that is compressed.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether a tensor of this shape is compressed, in a unit that does not cut it.
    #[must_use]
    pub fn compresses(&self, shape: &[usize]) -> bool {
        Factors::of(self, shape).is_some()
    }

    /// Elements of the factors of a tensor.
    fn q_len(&self, tensor: &TensorRef<'_>) -> usize {
        Factors::of(self, tensor.shape).map_or(0, |factors| factors.q_len())
    }

    /// Elements of the factors of all matrices that start before `end`.
    fn factors_before(&self, layout: &LayoutRef<'_>, end: usize) -> usize {
        layout.tensors().take_while(|tensor| tensor.offset < end).map(|tensor| self.q_len(&tensor)).sum()
    }

    /// Turns the factors in a memory of this codec into those of `next`, which may have another rank. Every
    /// matrix keeps its first columns. Columns that it did not have, and all columns of a matrix that was
    /// sent whole, become zero, so that the next step draws them from its key, alike at all workers. All
    /// other parts of the memory stay as they are, bit for bit.
    ///
    /// Columns are made orthonormal from left to right, so the first ones do not depend on those that go.
    ///
    /// # Errors
    /// `MemoryIncomplete` for a memory whose factors are not those of this codec and layout. Nothing has
    /// changed then.
    ///
    /// # Examples
    /// ```
    /// use gradwire::codecs::PowerSgd;
    /// use gradwire::{EncodeError, Layout, Memory};
    ///
    /// let layout = Layout::packed([("w", vec![9, 9])]).unwrap();
    /// let [one, two] = [1, 2].map(|rank| PowerSgd::new(rank).unwrap());
    /// let mut memory = Memory::new(vec![0.5; 81]).with_factors(vec![1.0; 9]);
    /// one.hand_over(&two, &layout.as_ref(), &mut memory)?;
    /// assert_eq!(memory.factors(), [[1.0; 9], [0.0; 9]].concat());
    /// assert_eq!(memory.residual(), [0.5; 81]);
    /// assert_eq!(one.hand_over(&two, &layout.as_ref(), &mut memory), Err(EncodeError::MemoryIncomplete));
    /// # Ok::<(), EncodeError>(())
    /// ```
    #[cfg(feature = "alloc")]
    pub fn hand_over(
        &self,
        next: &Self,
        layout: &LayoutRef<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), EncodeError> {
        by_unit::hand_over(layout, memory, |tensor| [self.q_len(tensor), next.q_len(tensor)])
    }

    /// The codec of a unit, if all units have its rank.
    fn placed(&self, layout: &LayoutRef<'_>, unit: &Unit) -> Placed {
        let factors = self.factors_before(layout, unit.start)..self.factors_before(layout, unit.range().end);
        Placed { codec: *self, factors }
    }

    /// The blocks of a unit in a round. If `is_whole`, none of them is a matrix.
    fn blocks<'l>(self, layout: &'l LayoutRef<'l>, unit: &Unit, is_whole: bool) -> Blocks<'l> {
        Blocks::new(self, layout, *unit, is_whole)
    }

    /// Makes every P of the summed payload orthonormal and writes each Mᵀ·P to `q`, one after the other.
    fn project_back(blocks: Blocks<'_>, p: &[u32], first: &mut [f32], q: &mut [f32]) {
        for (block, factors) in blocks.matrices() {
            let columns = &mut first[block.first];
            orthonormalise(columns, factors.rows);
            kernels::multiply_transposed(
                Isa::best(),
                &p[block.range],
                factors.cols,
                columns,
                &mut q[factors.q],
            );
        }
    }
}

/// A draw as a value from −1 to below 1, exactly.
pub(crate) fn centred(draw: u64) -> f32 {
    (draw >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl EncodeUnit for PowerSgd {
    fn capabilities(&self) -> Capabilities {
        Capabilities { law: Law::Rounded, has_frames: false, needs_full: true, ..Dense::F32.capabilities() }
    }

    fn max_body_bytes(&self, _len: usize) -> Option<usize> {
        Some(0)
    }

    fn unit_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen::default()
    }

    fn state_len(&self, layout: &LayoutRef<'_>, _units: usize, _keeper: Keeper) -> StateLen {
        StateLen::default().with_factors(self.factors_before(layout, layout.len()))
    }

    fn encode_body(
        &self,
        _input: UnitInput<'_, '_>,
        _scratch: &mut Scratch<'_>,
        _writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        Err(EncodeError::NoFrames)
    }
}

/// The codec of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    codec: PowerSgd,
    /// Where the factors of the unit's matrices are stored among those of the layout.
    factors: Range<usize>,
}

/// First round: M·Q and the tensors that are sent whole. Second round: Mᵀ·P. Scratch floats: the first
/// payload at the front, the second at the end. Abandoning a step leaves the warm start as it is, because the
/// next step can begin with any Q.
impl Linear for Placed {
    fn round_scratch_len(&self, layout: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen {
        self.codec.round_scratch_len(layout, unit, workers)
    }

    fn held(&self, len: usize) -> usize {
        self.codec.held(len)
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let memory = memory.ok_or(EncodeError::MemoryIncomplete)?;
        let last = memory.factors.get(self.factors.clone()).ok_or(EncodeError::MemoryIncomplete)?;
        let (layout, unit) = (step.layout, step.unit);
        let needed = self.round_scratch_len(layout, unit, step.workers);
        begin_unit(needed, unit, grad, Some(memory.residual), BOUND, scratch)?;
        let p = &scratch.words[..unit.len];
        let (draws, is_whole) = (step.key.shared_selection(unit.id), step.key.step < self.codec.start);
        let blocks = || self.codec.blocks(layout, unit, is_whole);
        let (first, q) = split(&mut scratch.floats[..unit.len], blocks().q_len());
        let mut payload_len = 0;
        for block in blocks() {
            let (values, sent) = (&p[block.range.clone()], &mut first[block.first.clone()]);
            match &block.factors {
                None => sent.iter_mut().zip(values).for_each(|(sent, &bits)| *sent = f32::from_bits(bits)),
                Some(factors) => {
                    let q = &mut q[factors.q.clone()];
                    q.copy_from_slice(&last[factors.q.clone()]);
                    complete(q, factors.cols, |i| centred(draws.u64_at((block.range.start + i) as u64)));
                    kernels::multiply(Isa::best(), values, factors.cols, q, sent);
                }
            }
            payload_len = block.first.end;
        }
        Ok(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        payload(round, scratch)
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
        let Payload::F32(sum) = self.payload(&round, scratch) else { return None };
        sum.iter_mut().for_each(|sum| *sum /= step.workers as f32);
        // Factors have fewer elements than their matrix, so a payload as long as the unit holds no factors.
        let is_whole = round.index == 0 && round.payload_len == round.unit.len;
        let blocks = || self.codec.blocks(step.layout, &round.unit, is_whole);
        let p = &scratch.words[..round.unit.len];
        let q_len = blocks().q_len();
        let (first, q) = split(&mut scratch.floats[..round.unit.len], q_len);
        if round.index == 0 && q_len > 0 {
            PowerSgd::project_back(blocks(), p, first, q);
            return Some(Round { index: 1, payload_len: q_len, ..round });
        }
        for block in blocks() {
            let (sum, mean) = (&first[block.first], &mut mean[block.range]);
            match block.factors {
                None => mean.copy_from_slice(sum),
                Some(factors) => kernels::multiply_out(Isa::best(), sum, &q[factors.q], factors.cols, mean),
            }
        }
        if let Some(memory) = memory {
            let residual = memory.residual_mut();
            residual.fill(0.0);
            for (block, _) in blocks().matrices() {
                keep(&p[block.range.clone()], &mean[block.range.clone()], &mut residual[block.range]);
            }
            // If a value is not finite, it came from another worker, and the mean will be refused.
            if !is_whole && q.iter().all(|value| value.is_finite()) {
                memory.factors_mut()[self.factors.clone()][..q_len].copy_from_slice(q);
            }
        }
        None
    }
}

impl Linear for PowerSgd {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        // Both factors of a matrix together have fewer elements than the matrix.
        LinearScratchLen { words: unit.len, floats: unit.len, ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        self.placed(step.layout, step.unit).begin(step, grad, memory, scratch)
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        payload(round, scratch)
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        self.placed(step.layout, &round.unit).advance(step, round, scratch, mean, memory)
    }
}

/// The payload of a round, whatever the rank.
fn payload<'s>(round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
    let floats = &mut scratch.floats[..round.unit.len];
    Payload::F32(match round.index {
        0 => &mut floats[..round.payload_len],
        _ => split(floats, round.payload_len).1,
    })
}

/// The last `q_len` elements, and those before them.
fn split(floats: &mut [f32], q_len: usize) -> (&mut [f32], &mut [f32]) {
    floats.split_at_mut(floats.len() - q_len)
}

/// residual = fl(p − mean)
fn keep(p: &[u32], mean: &[f32], residual: &mut [f32]) {
    for ((residual, &bits), mean) in residual.iter_mut().zip(p).zip(mean) {
        *residual = f32::from_bits(bits) - mean;
    }
}
