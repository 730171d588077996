//! Steps of AMSGrad from the sum of the workers' sketches.

use super::{BEGUN, BOUND, KEY_WORDS, Sketch};
use crate::built::Full;
use crate::codec::{Linear, Payload, Reduction, Round, UnitStep, begin_unit};
use crate::codecs::topk::largest;
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::{Memory, MemoryView, StateLen};
use crate::scratch::{LinearScratch, LinearScratchLen};

/// The factors of [`SketchError::Divided`](super::SketchError::Divided).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AmsGrad {
    pub(super) momentum: f32,
    pub(super) squares: f32,
    pub(super) floor: f32,
}

/// The names of the arrays.
const STEPS: &str = "mean of gradients";
const SQUARES: &str = "mean of squares";
const PEAKS: &str = "largest mean of squares";

impl AmsGrad {
    /// The factor of the mean of squares by default.
    pub const SQUARES: f32 = 0.999;
    /// The least mean of squares by default.
    pub const FLOOR: f32 = 1e-3;

    /// Factors of both means from 0 to below 1, and a finite `floor` above 0; else `None`.
    #[must_use]
    pub fn new(momentum: f32, squares: f32, floor: f32) -> Option<Self> {
        let are_factors = [momentum, squares].iter().all(|factor| (0.0..1.0).contains(factor));
        let is_floor = floor > 0.0 && floor.is_finite();
        (are_factors && is_floor).then_some(Self { momentum, squares, floor })
    }

    /// The factor of the mean of gradients, b₁. At 0, gradients are taken as they are.
    #[must_use]
    pub fn momentum(&self) -> f32 {
        self.momentum
    }

    /// The factor of the mean of squares, b₂.
    #[must_use]
    pub fn squares(&self) -> f32 {
        self.squares
    }

    /// What the mean of squares is at first, and the least that it counts as: ε₀.
    #[must_use]
    pub fn floor(&self) -> f32 {
        self.floor
    }

    /// The mean of squares after h. A peak of 0 is that of a coordinate that has not begun.
    fn square(self, square: f32, peak: f32, h: f32) -> f32 {
        let before = if peak > 0.0 { square } else { self.floor };
        self.squares * before + (1.0 - self.squares) * (h * h)
    }

    /// The largest mean of squares so far.
    fn peak(self, peak: f32, square: f32) -> f32 {
        peak.max(self.floor).max(square)
    }

    /// Lengths of the arrays.
    pub(super) fn kept_len(self, layout: &LayoutRef<'_>) -> StateLen {
        let steps = if self.momentum > 0.0 { layout.len() } else { 0 };
        let lengths = StateLen::default().with_array_by_coordinate(STEPS, steps);
        [SQUARES, PEAKS]
            .iter()
            .fold(lengths, |lengths, name| lengths.with_array_by_coordinate(name, layout.len()))
    }

    /// Whether a memory has the arrays. Of no coordinates there are none.
    fn has_arrays(self, memory: &MemoryView<'_>, unit: &Unit) -> bool {
        let has = |name| memory.array(name).is_some_and(|array| array.len() >= unit.range().end);
        unit.len == 0 || has(SQUARES) && has(PEAKS) && (self.momentum == 0.0 || has(STEPS))
    }

    /// Makes m of gradients, in place.
    fn average(self, kept: Option<&[f32]>, steps: &mut [f32]) {
        for (step, kept) in steps.iter_mut().zip(kept.into_iter().flatten()) {
            *step = self.momentum * kept + (1.0 - self.momentum) * *step;
        }
    }
}

/// The codec with its factors. Scratch words: fl(residual + gradient), the keys of the rows, p, which gives
/// way to the estimates. Floats: the payload, then m, which gives way to the quotients.
pub(super) struct Divided<'c> {
    pub(super) sketch: &'c Sketch,
    pub(super) amsgrad: AmsGrad,
}

impl Divided<'_> {
    /// Floats of the payload. A unit without a sketch is sent whole.
    fn payload_len(&self, len: usize) -> usize {
        self.sketch.table(len).map_or(len, |table| table.cells())
    }

    /// Writes the values that the reduced payload says, a mean over the workers.
    fn estimate(&self, unit: &Unit, workers: u32, sums: &[f32], keys: &[u32], estimates: &mut [u32]) {
        match self.sketch.table(unit.len) {
            Some(table) => table.estimate(sums, keys, estimates),
            None => estimates.copy_from_slice(kernels::bits_of(sums)),
        }
        for estimate in estimates {
            *estimate = (f32::from_bits(*estimate) / workers as f32).to_bits();
        }
    }

    /// Fills `mean` with the estimates that have the largest quotients, and with zeros.
    fn choose(
        &self,
        unit: &Unit,
        memory: &Memory<'_>,
        estimates: &[u32],
        quotients: &mut [f32],
        mean: &mut [f32],
    ) {
        let [squares, peaks] = [SQUARES, PEAKS].map(|name| &memory.array(name).expect(BEGUN)[unit.range()]);
        for (at, quotient) in quotients.iter_mut().enumerate() {
            let (h, peak) = (f32::from_bits(estimates[at]), peaks[at]);
            let peak = self.amsgrad.peak(peak, self.amsgrad.square(squares[at], peak, h));
            *quotient = h / libm::sqrtf(peak);
        }
        let k = self.sketch.held(unit.len);
        let quotients = kernels::bits_of(quotients);
        // The mean has room for what is near the cut.
        let positions = largest(quotients, k, mean);
        mean.fill(0.0);
        positions.for_each(|at| mean[at] = f32::from_bits(estimates[at]));
    }

    /// Takes the values that were chosen from the residual, and nothing is left of a unit that is sent whole.
    fn keep(&self, unit: &Unit, memory: &mut Memory<'_>, chosen: &[f32]) {
        let is_whole = self.sketch.table(unit.len).is_none();
        for (kept, &h) in memory.residual_mut().iter_mut().zip(chosen) {
            *kept = if is_whole && h != 0.0 { 0.0 } else { *kept - h };
        }
    }

    /// Moves the means of squares on, and divides the mean, which holds what was chosen. `next` is room for
    /// a value of each coordinate.
    fn divide(&self, unit: &Unit, memory: &mut Memory<'_>, next: &mut [f32], mean: &mut [f32]) {
        let [squares, peaks] = [SQUARES, PEAKS].map(|name| &memory.array(name).expect(BEGUN)[unit.range()]);
        for (at, next) in next.iter_mut().enumerate() {
            *next = self.amsgrad.square(squares[at], peaks[at], mean[at]);
        }
        memory.array_mut(SQUARES).expect(BEGUN)[unit.range()].copy_from_slice(next);
        let peaks = &mut memory.array_mut(PEAKS).expect(BEGUN)[unit.range()];
        for ((peak, &mut square), mean) in peaks.iter_mut().zip(next).zip(mean) {
            *peak = self.amsgrad.peak(*peak, square);
            if *mean != 0.0 {
                *mean /= libm::sqrtf(*peak);
            }
        }
    }
}

impl Linear for Divided<'_> {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        let words = unit.len.saturating_mul(2).saturating_add(KEY_WORDS);
        LinearScratchLen { words, floats: self.payload_len(unit.len).saturating_add(unit.len), ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        self.sketch.held(len)
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let unit = step.unit;
        let memory = memory.filter(|memory| self.amsgrad.has_arrays(memory, unit));
        let memory = memory.ok_or(EncodeError::MemoryIncomplete)?;
        let needed = self.round_scratch_len(step.layout, unit, step.workers);
        begin_unit(needed, unit, grad, Some(memory.residual), BOUND, scratch)?;

        let (keys, p) = scratch.words[unit.len..].split_at_mut(KEY_WORDS);
        let (payload, steps) = scratch.floats.split_at_mut(self.payload_len(unit.len));
        let (p, steps) = (&mut p[..unit.len], &mut steps[..unit.len]);
        Corrected::new(grad, None, unit.start, BOUND).fold(Isa::best(), 0, kernels::bits_of_mut(steps))?;
        self.amsgrad.average(memory.array(STEPS).map(|kept| &kept[unit.range()]), steps);
        let sum = Corrected::new(Grad::F32(steps), Some(memory.residual), unit.start, BOUND);
        sum.fold(Isa::best(), 0, p)?;
        if let Some(table) = self.sketch.table(unit.len) {
            table.draw_keys(&step.key.shared_selection(unit.id), keys);
            table.fill(p, keys, payload);
        } else {
            payload.copy_from_slice(kernels::floats_of(p));
        }
        Ok(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len: payload.len() })
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
        let (unit, memory) = (&round.unit, memory.filter(|_| round.unit.len > 0)?);
        let (keys, estimates) = scratch.words[unit.len..].split_at_mut(KEY_WORDS);
        let (sums, steps) = scratch.floats.split_at_mut(round.payload_len);
        let (estimates, steps) = (&mut estimates[..unit.len], &mut steps[..unit.len]);
        // p, as it was when the step began.
        memory.residual_mut().iter_mut().zip(&*steps).for_each(|(kept, step)| *kept += step);
        if let Some(kept) = memory.array_mut(STEPS) {
            kept[unit.range()].copy_from_slice(steps);
        }
        self.estimate(unit, step.workers, sums, keys, estimates);
        self.choose(unit, memory, estimates, steps, mean);
        self.keep(unit, memory, mean);
        self.divide(unit, memory, steps, mean);
        None
    }
}
