//! The rounds: the range, with two scales who takes which, the levels.

use super::MaxNorm;
use super::scales::{Scales, signed};
use crate::built::Full;
use crate::codec::{EncodeUnit, Linear, Payload, Reduction, Round, UnitStep, begin_unit};
use crate::coding::values::Rounding;
use crate::corrected::BLOCK;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::{Memory, MemoryView};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// The words of the scratch memory.
struct Parts<'s> {
    /// p of the unit, where [`Linear::abandon`] expects it.
    p: &'s mut [u32],
    /// With a density: the coordinates that are sent, ascending, and their values.
    indices: &'s mut [u32],
    chosen: &'s mut [u32],
    /// With two scales: one bit for each value.
    mask: &'s mut [u32],
}

impl<'s> Parts<'s> {
    fn of(codec: MaxNorm, words: &'s mut [u32], len: usize) -> Self {
        let [chosen, mask] = codec.lens(len);
        let (p, words) = words.split_at_mut(len);
        let (indices, words) = words.split_at_mut(chosen);
        let (chosen, words) = words.split_at_mut(chosen);
        Self { p, indices, chosen, mask: &mut words[..mask] }
    }

    /// The values that are sent.
    fn values(&self) -> &[u32] {
        if self.indices.is_empty() { self.p } else { self.chosen }
    }

    /// The coordinate of a value.
    fn coordinate(&self, i: usize) -> usize {
        self.indices.get(i).map_or(i, |&index| index as usize)
    }

    /// Takes the block of this step.
    fn choose(&mut self, key: StepKey, unit: &Unit) {
        let k = self.indices.len();
        if k == 0 {
            return;
        }
        let blocks = unit.len.div_ceil(k) as u64;
        let order = key.shared_order(unit.id, key.step / blocks, unit.len);
        let first = ((key.step % blocks) as usize * k).min(unit.len - k);
        for (place, index) in (first..).zip(self.indices.iter_mut()) {
            *index = order.at(place) as u32;
        }
        self.indices.sort_unstable();
        for (value, &index) in self.chosen.iter_mut().zip(&*self.indices) {
            *value = self.p[index as usize];
        }
    }

    /// Keeps p, less what this worker sent.
    fn keep(&self, scales: &Scales<'_>, memory: &mut Memory<'_>) {
        memory.keep_all(self.p);
        let residual = memory.residual_mut();
        let mut fields = [0; BLOCK];
        for (first, values) in (0..).step_by(BLOCK).zip(self.values().chunks(BLOCK)) {
            let fields = &mut fields[..values.len()];
            scales.quantize(first, values, None, fields);
            for (i, (&bits, &field)) in (first..).zip(values.iter().zip(&*fields)) {
                let sent = scales.scale_at(i) * signed(field) as f32;
                residual[self.coordinate(i)] = f32::from_bits(bits) - sent;
            }
        }
    }
}

impl MaxNorm {
    /// Words for the chosen coordinates, and for the mask, of a unit of `len`.
    fn lens(self, len: usize) -> [usize; 2] {
        let k = self.count(len);
        [self.density.map_or(0, |_| k), self.fine.map_or(0, |_| k.div_ceil(32))]
    }

    /// What one worker's values say of R.
    fn range_of(self, values: &[u32]) -> f32 {
        let isa = Isa::best();
        let largest = f32::from_bits(kernels::max_magnitude(isa, values));
        let Some(cutoff) = Full::build().and(self.cutoff) else { return largest };
        let (mut sums, mut squares) = ([0.0; 8], [0.0; 8]);
        kernels::add_values(isa, values, &mut sums);
        kernels::add_squares(isa, values, &mut squares);
        largest.min(cutoff.largest(sums, squares, values.len()))
    }

    fn scales<'m>(self, range: f32, mask: &'m [u32]) -> Scales<'m> {
        Scales::new(range, self.levels(), self.fine_levels().map(|levels| (levels, mask)))
    }
}

impl Linear for MaxNorm {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        let [chosen, mask] = self.lens(unit.len);
        let words = unit.len.saturating_add(chosen).saturating_add(chosen).saturating_add(mask);
        // With many workers a word holds a single field.
        LinearScratchLen { words, floats: 1, ints: self.count(unit.len) }
    }

    fn held(&self, len: usize) -> usize {
        self.count(len)
    }

    /// The most workers whose sum of levels fits a word, ⌊(2³¹ − 1) / 2s⌋: 8,454,660 at 8 bits.
    fn most_contributors(&self) -> u32 {
        self.most_workers()
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        if !self.has_frames() || self.cutoff.is_some() {
            Full::build().ok_or(EncodeError::NotBuilt)?;
        }
        if memory.is_some() && !self.keeps() {
            return Err(EncodeError::MemoryRefused);
        }
        let residual = memory.map(|memory| memory.residual);
        let (unit, needed) = (step.unit, self.round_scratch_len(step.layout, step.unit, step.workers));
        begin_unit(needed, unit, grad, residual, self.overflow_bound(), scratch)?;
        let mut parts = Parts::of(*self, scratch.words, unit.len);
        parts.choose(step.key, unit);
        scratch.floats[0] = self.range_of(parts.values());
        Ok(Round { index: 0, reduction: Reduction::MaxF32, unit: *unit, payload_len: 1 })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        match round.reduction {
            Reduction::SumI32 => Payload::I32(&mut scratch.ints[..round.payload_len]),
            Reduction::And => Payload::U32(Parts::of(*self, scratch.words, round.unit.len).mask),
            _ => Payload::F32(&mut scratch.floats[..round.payload_len]),
        }
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        let workers = step.workers;
        round.assert_mean(mean, workers);
        let (mut parts, range) = (Parts::of(*self, scratch.words, round.unit.len), scratch.floats[0]);
        let next = Round { index: round.index + 1, ..round };
        if let (Reduction::MaxF32, Some(levels)) = (round.reduction, self.fine_levels()) {
            let mask = core::mem::take(&mut parts.mask);
            self.scales(range, &[]).mark_fine(levels, parts.values(), mask);
            return Some(Round { reduction: Reduction::And, payload_len: mask.len(), ..next });
        }
        let scales = self.scales(range, parts.mask);
        if round.reduction != Reduction::SumI32 {
            let draws = (self.rounding == Rounding::Stochastic).then(|| step.key.rounding(round.unit.id));
            let payload_len = self.pack(parts.values(), &scales, draws.as_ref(), workers, scratch.ints);
            return Some(Round { reduction: Reduction::SumI32, payload_len, ..next });
        }
        if !parts.indices.is_empty() {
            mean.fill(0.0);
        }
        let sums = &scratch.ints[..round.payload_len];
        self.for_each_sum(sums, parts.values().len(), workers, |i, sum| {
            mean[parts.coordinate(i)] = scales.scale_at(i) * sum as f32 / workers as f32;
        });
        if let Some(memory) = memory {
            parts.keep(&scales, memory);
        }
        None
    }
}
