//! Count-sketches as all that is sent.

mod amsgrad;
mod spelling;
mod table;

use crate::built::Full;
use crate::codec::{
    Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, UnitStep, begin_unit,
};
use crate::codecs::dense::{Dense, DenseSum};
use crate::codecs::topk::largest;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::MAX_SKETCH_ROWS;
use crate::memory::{Keeper, Memory, MemoryView, StateLen};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::ops::Range;

pub use amsgrad::AmsGrad;
use amsgrad::Divided;
pub(crate) use table::{KEY_WORDS, Table};

/// A count-sketch of each worker's gradient, summed. The mean holds the k = clamp(round(density·n), 1, n)
/// coordinates of which the sum says most, with the values that it says: the lower medians over the rows.
/// Zeros are never among them. All workers have the same sum, so they choose alike. One round, a sum of f32.
///
/// The sketch of a unit has `rows` rows and, in all, about `cells` cells for each coordinate: the largest
/// multiple of 16·rows that is at most ⌈cells·n⌉, and at least 16·rows. A unit with no more coordinates than
/// cells is sent whole, and nothing is kept of it. What is sent does not depend on the density.
///
/// [`SharedK`](super::SharedK) sends exact values of what a sketch finds, in a second round.
///
/// # Determinism
/// Rows hash as those of [`SharedBy::Sketch`](super::SharedBy::Sketch), by the shared stream of (seed, step,
/// unit). A sketch that is kept has the hashes of step 0 in all steps.
///
/// # Source
/// Rothchild et al.: FetchSGD (arXiv 2007.07682), algorithm 1, with its authors' way of forgetting: where
/// the paper subtracts the sketch of what was sent from the error, they empty its cells, in the error and in
/// the momentum. Here all cells of a coordinate that is sent are emptied, also where two of them cancel. As
/// in their code, the learning rate is applied after the sketch and is no part of the error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sketch {
    density: Density,
    cells: Density,
    rows: u8,
    error: SketchError,
}

/// Where [`Sketch`] keeps what was not sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SketchError {
    /// In the sketch: FetchSGD. All workers keep the same two sketches, of the momentum u and of the error e,
    /// and nothing of their own, so any of them may be a new one, if it is given these. With S the mean of
    /// the sketches:
    ///
    /// ```text
    /// u = fl(fl(momentum·u) + S)    e = fl(e + u)
    /// ```
    ///
    /// The estimates are those of e. The cells of what is sent become 0 in both.
    Sketched {
        /// From 0 to below 1; with 0 there is no u.
        momentum: f32,
    },
    /// At each worker: p = residual + gradient is sketched, with other hashes in every step, and fl(p − mean)
    /// is kept of what the mean holds, p of the rest.
    Workers,
    /// At each worker, and the mean is a step of AMSGrad: SketchedAMSGrad, where gradients are averaged. Each
    /// worker keeps a mean m of its gradients, and p = residual + m is sketched, with other hashes in every
    /// step. With U what the sum says of a coordinate, divided by the number of workers:
    ///
    /// ```text
    /// m = fl(fl(momentum·m) + fl(fl(1 − momentum)·g))         p = fl(residual + m)
    /// v = fl(fl(squares·v) + fl(fl(1 − squares)·fl(h·h)))     v̂ = max(v̂, v)     both begin at floor
    /// ```
    ///
    /// The mean holds the k largest quotients fl(U / √v̂), h being U. Of these coordinates fl(p − U) is kept,
    /// and p of the rest, where h is 0. v and v̂ are the same at all workers. No quotient is larger than
    /// 1 / √(1 − squares).
    ///
    /// So the optimizer must be SGD without a momentum; its rate is that of Adam. Residuals are in units of
    /// m: where the rate changes, [rescale](Memory::rescale) them by the ratio of rates, as the paper does.
    /// A unit that is sent whole has exact means in place of estimates, and holds all of them. A step that is
    /// given up leaves m as it was and keeps residual + gradient: all that m would have sent of the gradient.
    ///
    /// # Source
    /// Xian, Huang, Huang: Communication-Efficient Adam-Type Algorithms for Distributed Data Mining (arXiv
    /// 2210.07454), by a public summary of the gradient-averaging instance; no code of the authors is public.
    /// Not in these sources, so choices of this project: that h comes from the sketch, so that all workers
    /// know it, and is 0 elsewhere; that U is taken from the residual, in units of m, and not the quotient;
    /// the floor.
    Divided(AmsGrad),
}

/// The names of the arrays.
const ERROR: &str = "sketched error";
const MOMENTUM: &str = "sketched momentum";
/// Why the arrays are there.
const BEGUN: &str = "a step that begins has its arrays";

/// 2⁷²: sums of up to 2³² values, over 2²² workers, stay finite.
const BOUND: f32 = f32::from_bits((127 + 72) << 23);

impl Sketch {
    /// The most rows.
    pub const MAX_ROWS: u8 = MAX_SKETCH_ROWS as u8;
    /// Cells for each coordinate, by default.
    pub const CELLS: Density = Density::fifth();
    /// Rows by default.
    pub const ROWS: u8 = 5;
    /// The factor of the momentum by default.
    pub const MOMENTUM: f32 = 0.9;

    /// At `density`, with `rows` from 1 to [`MAX_ROWS`](Self::MAX_ROWS), `cells` for each coordinate, and a
    /// momentum from 0 to below 1; else `None`.
    #[must_use]
    pub fn new(density: Density, cells: Density, rows: u8, error: SketchError) -> Option<Self> {
        let is_factor = match error {
            SketchError::Sketched { momentum } => (0.0..1.0).contains(&momentum),
            SketchError::Workers | SketchError::Divided(_) => true,
        };
        let is_height = (1..=Self::MAX_ROWS).contains(&rows);
        (is_height && is_factor).then_some(Self { density, cells, rows, error })
    }

    /// The share of coordinates that the mean holds.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
    }

    /// Cells for each coordinate.
    #[must_use]
    pub fn cells(&self) -> Density {
        self.cells
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u8 {
        self.rows
    }

    /// Where what was not sent is kept.
    #[must_use]
    pub fn error(&self) -> SketchError {
        self.error
    }

    fn divided(&self) -> Option<Divided<'_>> {
        let SketchError::Divided(amsgrad) = self.error else { return None };
        Some(Divided { sketch: self, amsgrad })
    }

    /// The sketch of a unit of this length, unless the unit is sent whole.
    fn table(&self, len: usize) -> Option<Table> {
        Some(Table::with_cells(self.rows, self.cells.count_up(len))).filter(|table| table.cells() < len)
    }

    /// Where in the arrays a unit with this number begins, from this coordinate on. Each unit has room for
    /// its share of cells and for the smallest table.
    fn place(&self, start: usize, id: usize) -> usize {
        self.cells.count_up(start).saturating_add(Table::least(self.rows).saturating_mul(id))
    }

    /// The cells of a unit in the arrays.
    fn kept(&self, unit: &Unit, table: Table) -> Range<usize> {
        let first = self.place(unit.start, unit.id as usize);
        first..first.saturating_add(table.cells())
    }

    /// Whether a memory has room for what is kept of a unit.
    fn is_complete(&self, memory: Option<MemoryView<'_>>, unit: &Unit, table: Table) -> bool {
        let SketchError::Sketched { momentum } = self.error else { return true };
        let has = |name| {
            let array = memory.and_then(|memory| memory.array(name));
            array.is_some_and(|array| array.get(self.kept(unit, table)).is_some())
        };
        has(ERROR) && (momentum == 0.0 || has(MOMENTUM))
    }
}

/// One sketched unit after its round.
struct Summed<'s> {
    table: Table,
    k: usize,
    contributors: f32,
    sums: &'s mut [f32],
    keys: &'s [u32],
    mean: &'s mut [f32],
}

impl Summed<'_> {
    /// The coordinates of which the cells say most, ascending, and what they say. Empties the mean.
    fn largest<'e>(
        (table, k): (Table, usize),
        (cells, keys): (&[f32], &[u32]),
        estimates: &'e mut [u32],
        mean: &mut [f32],
    ) -> impl Iterator<Item = (usize, f32)> + use<'e> {
        table.estimate(cells, keys, estimates);
        let estimates = &*estimates;
        // The mean has room for what is near the cut.
        let positions = largest(estimates, k, mean);
        mean.fill(0.0);
        let found = positions.map(|at| (at, f32::from_bits(estimates[at])));
        found.filter(|&(_, sum)| sum != 0.0)
    }

    /// [`SketchError::Workers`]
    fn leave_to_workers(self, p: &[u32], estimates: &mut [u32], memory: Option<&mut Memory<'_>>) {
        let largest = Self::largest((self.table, self.k), (self.sums, self.keys), estimates, self.mean);
        let mut kept = memory.map(|memory| {
            memory.keep_all(p);
            memory.residual_mut()
        });
        for (at, sum) in largest {
            self.mean[at] = sum / self.contributors;
            if let Some(kept) = &mut kept {
                kept[at] -= self.mean[at];
            }
        }
    }

    /// [`SketchError::Sketched`]
    fn leave_in_sketch(
        self,
        momentum: f32,
        kept: Range<usize>,
        estimates: &mut [u32],
        memory: &mut Memory<'_>,
    ) {
        self.sums.iter_mut().for_each(|sum| *sum /= self.contributors);
        if momentum > 0.0 {
            let momenta = &mut memory.array_mut(MOMENTUM).expect(BEGUN)[kept.clone()];
            for (u, step) in momenta.iter_mut().zip(&mut *self.sums) {
                *step += momentum * *u;
                *u = *step;
            }
        }
        let error = &mut memory.array_mut(ERROR).expect(BEGUN)[kept.clone()];
        error.iter_mut().zip(&*self.sums).for_each(|(e, step)| *e += step);
        if !error.iter().all(|e| e.is_finite()) {
            // A median may hide it. It came from another worker, so the mean has to be refused.
            self.mean.fill(f32::NAN);
            return;
        }
        let largest = Self::largest((self.table, self.k), (error, self.keys), estimates, self.mean);
        for (at, value) in largest {
            self.mean[at] = value;
            self.table.forget(at, self.keys, error);
        }
        if let Some(momenta) = memory.array_mut(MOMENTUM) {
            let momenta = &mut momenta[kept];
            let sent = self.mean.iter().enumerate().filter(|&(_, &value)| value != 0.0);
            sent.for_each(|(at, _)| self.table.forget(at, self.keys, momenta));
        }
    }
}

impl EncodeUnit for Sketch {
    fn capabilities(&self) -> Capabilities {
        let law = match self.error {
            SketchError::Sketched { .. } => Law::State,
            SketchError::Workers | SketchError::Divided(_) => Law::Rounded,
        };
        Capabilities { law, has_frames: false, needs_full: true, ..Dense::F32.capabilities() }
    }

    fn max_body_bytes(&self, _len: usize) -> Option<usize> {
        Some(0)
    }

    fn unit_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen::default()
    }

    fn state_len(&self, layout: &LayoutRef<'_>, units: usize, _keeper: Keeper) -> StateLen {
        self.kept_len(layout, units)
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

/// Scratch words: p of the unit, the keys of the rows, the estimates, which take the place of p where workers
/// keep nothing. Floats: the sketch.
impl Linear for Sketch {
    fn round_scratch_len(&self, layout: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen {
        if let Some(divided) = self.divided() {
            return divided.round_scratch_len(layout, unit, workers);
        }
        let len = unit.len;
        let Some(table) = self.table(len) else {
            return DenseSum.round_scratch_len(layout, unit, workers);
        };
        let estimates = if self.error == SketchError::Workers { len } else { 0 };
        let words = len.saturating_add(KEY_WORDS).saturating_add(estimates);
        LinearScratchLen { words, floats: table.cells(), ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        self.table(len).map_or(len, |_| self.density.count(len))
    }

    fn kept_len(&self, layout: &LayoutRef<'_>, units: usize) -> StateLen {
        let momentum = match self.error {
            SketchError::Sketched { momentum } => momentum,
            SketchError::Workers => return StateLen::default(),
            SketchError::Divided(amsgrad) => return amsgrad.kept_len(layout),
        };
        let cells = self.place(layout.len(), units);
        let momenta = if momentum > 0.0 { cells } else { 0 };
        StateLen::default().with_array(ERROR, cells).with_array(MOMENTUM, momenta)
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        if let Some(divided) = self.divided() {
            return divided.begin(step, grad, memory, scratch);
        }
        let unit = step.unit;
        let Some(table) = self.table(unit.len) else {
            return DenseSum.begin(step, grad, memory, scratch);
        };
        if !self.is_complete(memory, unit, table) {
            return Err(EncodeError::MemoryIncomplete);
        }
        let residual = memory.map(|memory| memory.residual).filter(|_| self.error == SketchError::Workers);
        let needed = self.round_scratch_len(step.layout, unit, step.workers);
        begin_unit(needed, unit, grad, residual, BOUND, scratch)?;
        let key = match self.error {
            SketchError::Sketched { .. } => StepKey { step: 0, ..step.key },
            _ => step.key,
        };
        let (p, words) = scratch.words.split_at_mut(unit.len);
        table.draw_keys(&key.shared_selection(unit.id), words);
        table.fill(p, words, &mut scratch.floats[..table.cells()]);
        Ok(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len: table.cells() })
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
        if let Some(divided) = self.divided() {
            return divided.advance(step, round, scratch, mean, memory);
        }
        round.assert_mean(mean, step.workers);
        let Some(table) = self.table(round.unit.len) else {
            return DenseSum.advance(step, round, scratch, mean, memory);
        };
        let (p, words) = scratch.words.split_at_mut(round.unit.len);
        let (keys, estimates) = words.split_at_mut(KEY_WORDS);
        let sums = &mut scratch.floats[..round.payload_len];
        let (k, contributors) = (self.density.count(p.len()), step.workers as f32);
        let summed = Summed { table, k, contributors, sums, keys, mean };
        match (self.error, memory) {
            (SketchError::Sketched { momentum }, memory) => {
                let kept = self.kept(&round.unit, table);
                // p is of no more use.
                summed.leave_in_sketch(momentum, kept, p, memory?);
            }
            (_, memory) => summed.leave_to_workers(p, &mut estimates[..p.len()], memory),
        }
        None
    }

    fn abandon(&self, round: Round, scratch: &mut LinearScratch<'_>, memory: Option<&mut Memory<'_>>) {
        // The exchange restores the arrays; beside sketches there is no residual.
        let is_sketched = matches!(self.error, SketchError::Sketched { .. });
        if let Some(memory) = memory.filter(|_| !is_sketched) {
            memory.keep_all(&scratch.words[..round.unit.len]);
        }
    }
}
