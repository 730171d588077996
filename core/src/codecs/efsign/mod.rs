//! Signs with error feedback: a bit a coordinate, and one scale a unit.

mod pieces;
mod spelling;
mod view;

use crate::built::Full;
use crate::codec::{Body, Capabilities, Cut, EncodeUnit, Law, UnitInput};
use crate::corrected::{BLOCK, Corrected};
use crate::error::EncodeError;
use crate::kernels::scalar::total_of;
use crate::kernels::{self, Isa, MomentSums};
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::CodecId;
use crate::wire::writer::Writer;

pub(crate) use view::SignsFields;

/// EF-signSGD: every coordinate is sent as its sign times the mean magnitude of the unit, ‖p‖₁/n.
///
/// Biased: needs error feedback, with which it converges as SGD does. ‖C(p) − p‖² = (1 − δ)·‖p‖² with δ =
/// ‖p‖₁² / (n·‖p‖₂²), so by default each tensor has its own scale. Zeros of either sign are sent as positive
/// values.
///
/// The memory keeps fl(p − sent), one rounding a coordinate ([`Law::Rounded`]): for a value far below the
/// scale, the exact difference is not an f32.
///
/// # Determinism
/// The sum of magnitudes has eight strides in f64, added as for a norm.
///
/// # Source
/// Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression Schemes
/// (arXiv 1901.09847), algorithm 1. The learning rate stays with the optimizer: the codec does not multiply
/// by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EfSign;

/// A frame may be given back: fl(fl(p − sent) + sent) can exceed p by a rounding, which overflows if p is as
/// large as an f32 can be.
const BOUND: f32 = f32::from_bits((127 + 126) << 23);

/// Bytes of the scale.
const SCALE_BYTES: usize = 4;

impl EfSign {
    /// Its number on the wire.
    pub(crate) const ID: CodecId = CodecId::new(9);
}

/// The mean magnitude. Checks every value.
fn mean_magnitude(source: &Corrected<'_>) -> Result<f32, EncodeError> {
    let (isa, mut sums, mut room) = (Isa::best(), MomentSums::default(), [0; BLOCK]);
    for first in (0..source.len()).step_by(BLOCK) {
        let room = &mut room[..BLOCK.min(source.len() - first)];
        let (p, _) = source.bits(isa, first, room)?;
        kernels::sum_magnitudes(isa, p, &mut sums);
    }
    let len = source.len() as f64;
    Ok(if source.len() == 0 { 0.0 } else { (total_of(sums.sum) / len) as f32 })
}

impl EncodeUnit for EfSign {
    fn capabilities(&self) -> Capabilities {
        Capabilities { law: Law::Rounded, needs_full: true, ..Capabilities::new(Self::ID, SignsFields::KIND) }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.div_ceil(8).checked_add(SCALE_BYTES)
    }

    fn unit_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen::default()
    }

    fn overflow_bound(&self) -> f32 {
        BOUND
    }

    fn as_cut(&self) -> Option<&dyn Cut> {
        Full::build().map(|_| self as &dyn Cut)
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        _scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let scale = mean_magnitude(&input.source(self.overflow_bound()))?;
        writer.bytes(&scale.to_le_bytes());
        let (grad, start, mut memory) = (input.grad, input.unit.start, input.memory);
        let (isa, mut room, mut largest) = (Isa::best(), [0; BLOCK], 0);
        for first in (0..grad.len()).step_by(BLOCK) {
            let room = &mut room[..BLOCK.min(grad.len() - first)];
            let residual = memory.as_deref().map(Memory::residual);
            let p = Corrected::new(grad, residual, start, self.overflow_bound()).known_bits(isa, first, room);
            if scale != 0.0 {
                kernels::pack_signs(isa, p, writer.reserve(p.len().div_ceil(8)));
            }
            if let Some(memory) = &mut memory {
                // With a residual, `room` holds p of this block.
                let residual = &mut memory.residual_mut()[first..first + room.len()];
                largest = largest.max(kernels::keep_signs(isa, room, scale, residual));
            }
        }
        if let Some(memory) = memory {
            memory.set_magnitude_bound(f32::from_bits(largest));
        }
        Ok(())
    }
}
