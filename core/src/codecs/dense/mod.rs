//! Every coordinate: as it is, or cast to a narrower format.

mod pieces;
mod spelling;
mod view;

use crate::built::Full;
use crate::codec::{
    Body, Capabilities, Cut, EncodeUnit, Linear, Payload, Reduction, Round, UnitInput, UnitStep, begin_unit,
};
use crate::coding::values::{ValueFormat, narrow};
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::{Memory, MemoryView};
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
#[cfg(feature = "parallel")]
use crate::threads;
use crate::wire::ids::CodecId;
use crate::wire::writer::Writer;

pub(crate) use view::DenseFields;

/// Every coordinate of the unit, in order.
///
/// The casts round to nearest, ties to even. Their bias is at most half a unit in the last place, so by
/// default they use no error feedback. Half precision refuses magnitudes from 65520 up, which would round to
/// infinity: scale the gradient down first.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dense {
    /// As it is.
    F32,
    /// IEEE half precision: 11 significant bits, smallest magnitude 2⁻²⁴.
    F16,
    /// bfloat16: 8 significant bits, the range of f32.
    Bf16,
}

/// Elements that are cast together: with their casts they fit the first cache level. Prefetching the next
/// block at once is slower than letting the processor read ahead by itself.
const CAST: usize = 1024;

/// Working memory for a unit of `len` elements.
fn scratch_len(len: usize) -> ScratchLen {
    ScratchLen { words: len.min(CAST), bytes: 0 }
}

impl Dense {
    /// The number of each variant on the wire.
    const IDS: [CodecId; 3] = [CodecId::new(0), CodecId::new(1), CodecId::new(2)];

    pub(crate) fn format(self) -> ValueFormat {
        match self {
            Self::F32 => ValueFormat::F32,
            // Refused in any other build.
            Self::F16 => Full::build().map_or(ValueFormat::F32, ValueFormat::F16),
            Self::Bf16 => ValueFormat::Bf16,
        }
    }
}

impl EncodeUnit for Dense {
    fn capabilities(&self) -> Capabilities {
        let [none, f16, bf16] = Self::IDS;
        let id = match self {
            Self::F32 => none,
            Self::F16 => f16,
            Self::Bf16 => bf16,
        };
        Capabilities {
            needs_full: *self == Self::F16,
            adds_early: true,
            ..Capabilities::new(id, DenseFields::KIND)
        }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_mul(self.format().fixed_bytes()?)?.checked_add(1)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        scratch_len(len)
    }

    fn overflow_bound(&self) -> f32 {
        narrow::overflow_bound(self.format())
    }

    fn as_cut(&self) -> Option<&dyn Cut> {
        Full::build().map(|_| self as &dyn Cut)
    }

    fn encode_body(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        writer.u8(self.format().number());
        let run = Run {
            format: self.format(),
            grad: input.grad,
            residual: input.memory.as_deref_mut().map(Memory::residual_mut),
            start: input.unit.start,
            bound: self.overflow_bound(),
        };
        #[cfg(feature = "parallel")]
        let largest = run.write_in_parts(input.threads, scratch.words, writer)?;
        #[cfg(not(feature = "parallel"))]
        let largest = run.write(scratch.words, writer)?;
        if let Some(memory) = input.memory {
            memory.set_magnitude_bound(largest);
        }
        Ok(())
    }
}

/// Coordinates on their way to the wire.
struct Run<'r> {
    format: ValueFormat,
    grad: Grad<'r>,
    residual: Option<&'r mut [f32]>,
    /// Position of the first in the flat gradient, for errors.
    start: usize,
    /// Magnitudes must be below this.
    bound: f32,
}

impl Run<'_> {
    /// Writes block by block, while each block is in the cache. `room` holds one block. Returns the largest
    /// magnitude that the residual keeps.
    fn write(mut self, room: &mut [u32], writer: &mut Writer<'_>) -> Result<f32, EncodeError> {
        let (isa, mut largest) = (Isa::best(), 0.0f32);
        for first in (0..self.grad.len()).step_by(CAST) {
            let room = &mut room[..CAST.min(self.grad.len() - first)];
            let source = Corrected::new(self.grad, self.residual.as_deref(), self.start, self.bound);
            let p = source.bits(isa, first, room)?.0;
            narrow::put_all(isa, self.format, p, writer);
            writer.sum_up();
            if let Some(residual) = &mut self.residual {
                let residual = &mut residual[first..first + room.len()];
                largest = largest.max(keep(self.format, room, residual));
            }
        }
        Ok(largest)
    }

    /// [`write`](Self::write) on several threads, if that pays.
    #[cfg(feature = "parallel")]
    fn write_in_parts(
        mut self,
        threads: usize,
        room: &mut [u32],
        writer: &mut Writer<'_>,
    ) -> Result<f32, EncodeError> {
        let len = self.grad.len();
        let step = threads::part_len(threads, len, CAST);
        if step >= len {
            return self.write(room, writer);
        }
        let bytes = self.format.fixed_bytes().unwrap_or(4);
        writer.sum_up();
        let outs = writer.reserve(len * bytes).chunks_mut(step * bytes);
        let parts = (0..len).step_by(step).zip(outs).map(|(first, out)| {
            let grad = self.grad.slice(first, step.min(len - first));
            let residual = self.residual.as_mut().and_then(|residual| residual.split_off_mut(..grad.len()));
            (Run { grad, residual, start: self.start + first, format: self.format, bound: self.bound }, out)
        });
        let written = threads::on_each(parts.collect(), |(run, out)| {
            let mut writer = Writer::new(out);
            let largest = run.write(&mut [0; CAST], &mut writer)?;
            Ok((largest, writer.checksum(0), writer.len()))
        });
        written.into_iter().try_fold(0.0f32, |largest, part| {
            let (kept, sum, bytes) = part?;
            writer.summed_up(sum, bytes);
            Ok(largest.max(kept))
        })
    }
}

/// Sets the residual to the rounding errors of these values. Returns its largest magnitude.
fn keep(format: ValueFormat, p: &[u32], residual: &mut [f32]) -> f32 {
    // A small build needs no such case: the loop gives the same zeros, because a finite value less itself is
    // zero.
    if Full::build().is_some() && format == ValueFormat::F32 {
        residual.fill(0.0);
        return 0.0;
    }
    let mut largest = 0.0f32;
    for (residual, &bits) in residual.iter_mut().zip(p) {
        let value = f32::from_bits(bits);
        // Exact: the result of rounding lies between half the value and its double, or is zero.
        *residual = value - narrow::rounded(format, value);
        largest = largest.max(residual.abs());
    }
    largest
}

/// Dense f32 over all-reduce, one round, a sum of f32: the baseline that every codec is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseSum;

impl Linear for DenseSum {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
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
        let unit = step.unit;
        let needed = self.round_scratch_len(step.layout, unit, step.workers);
        match memory {
            Some(memory) => {
                begin_unit(needed, unit, grad, Some(memory.residual), f32::INFINITY, scratch)?;
                let p = kernels::floats_of(&scratch.words[..unit.len]);
                scratch.floats[..unit.len].copy_from_slice(p);
            }
            // Nothing is kept of p, so it is written where it is summed.
            None if scratch.holds(needed) => {
                let p = kernels::bits_of_mut(&mut scratch.floats[..unit.len]);
                Corrected::new(grad, None, unit.start, f32::INFINITY).fold(Isa::best(), 0, p)?;
            }
            None => return Err(EncodeError::LinearScratchTooSmall { needed }),
        }
        Ok(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len: unit.len })
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
        mean.iter_mut().zip(&*scratch.floats).for_each(|(mean, sum)| *mean = sum / step.workers as f32);
        if let Some(memory) = memory {
            memory.residual_mut().fill(0.0);
        }
        None
    }
}
