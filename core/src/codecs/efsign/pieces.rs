//! Pieces of a unit of signs: any run of coordinates, each with the scale of the unit.

use super::{EfSign, SCALE_BYTES, mean_magnitude};
use crate::built::Full;
use crate::codec::{Cut, Cuts, Decided, EncodeUnit, PacketSize, Piece, UnitInput};
use crate::corrected::{BLOCK, Corrected};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::kernels::{self, Isa};
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::ops::Range;

/// The most coordinates of a piece, per byte of its packet. A piece whose scale is zero takes the same bytes
/// whatever its length, so this bounds the search for the largest piece.
const COORDINATES_PER_BYTE: usize = 1024;

/// The scale, in the scratch memory.
fn scale(scratch: &Scratch<'_>) -> f32 {
    f32::from_bits(scratch.words[0])
}

impl Cut for EfSign {
    fn least_body_bytes(&self, _len: usize) -> usize {
        SCALE_BYTES + 1
    }

    fn decided_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen { words: 1, bytes: 0 }
    }

    fn decide(&self, input: UnitInput<'_, '_>, scratch: &mut Scratch<'_>) -> Result<Decided, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        scratch.words[0] = mean_magnitude(&input.source(self.overflow_bound()))?.to_bits();
        Ok(Decided { atoms: input.unit.len, values: None })
    }

    fn cuts(&self, decided: &Decided, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
        (Cuts { grain: 1, most: (decided.atoms - at).min(COORDINATES_PER_BYTE * size.bytes()) }, None)
    }

    fn write_piece(
        &self,
        _decided: &Decided,
        piece: &Piece<'_>,
        values: Grad<'_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool {
        let scale = scale(scratch);
        let signs = if scale == 0.0 { 0 } else { values.len().div_ceil(8) };
        if SCALE_BYTES + signs > piece.room {
            return false;
        }
        writer.bytes(&scale.to_le_bytes());
        let source = Corrected::new(values, None, piece.span.start, self.overflow_bound());
        let (isa, mut room) = (Isa::best(), [0; BLOCK]);
        for first in (0..values.len()).step_by(BLOCK).filter(|_| signs > 0) {
            let room = &mut room[..BLOCK.min(values.len() - first)];
            let p = source.known_bits(isa, first, room);
            kernels::pack_signs(isa, p, writer.reserve(p.len().div_ceil(8)));
        }
        true
    }

    fn commit_piece(
        &self,
        _decided: &Decided,
        atoms: Range<usize>,
        scratch: &mut Scratch<'_>,
        memory: &mut Memory<'_>,
    ) {
        let (isa, scale, mut p) = (Isa::best(), scale(scratch), [0; BLOCK]);
        for kept in memory.residual_mut()[atoms].chunks_mut(BLOCK) {
            p.iter_mut().zip(&*kept).for_each(|(p, value)| *p = value.to_bits());
            kernels::keep_signs(isa, &p[..kept.len()], scale, kept);
        }
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    extern crate std;
    use super::*;
    use crate::packets::PacketEncoder;
    use crate::{Decoder, Encoder, LayoutRef, Limits, Source as Who, StepInput, StepKey, Unit};
    use std::{vec, vec::Vec};

    #[test]
    fn packets_hold_what_one_frame_holds_and_keep_what_it_keeps() {
        let len = 3000;
        for all_zero in [false, true] {
            let value = |i: usize| if all_zero { 0.0 } else { ((i * 37 % 101) as f32 - 50.0) / 7.0 };
            let grad: Vec<f32> = (0..len).map(value).collect();
            let (layout, units) = (LayoutRef::flat(len), [Unit::whole(len)]);
            let key = StepKey { seed: 1, step: 2, source: Who::Rank(0) };
            let (mut whole, mut cut) = (Memory::new(vec![0.25; len]), Memory::new(vec![0.25; len]));
            let (limits, grad) = (Limits::for_layout(&layout), Grad::F32(&grad));
            let step = StepInput { key, layout: &layout, units: &units, grad };
            let mut encoder = Encoder::new();
            let frame = encoder.encode(&EfSign, &step, Some(&mut whole)).unwrap();
            let (mut expected, mut sum) = (vec![0.0; len], vec![0.0; len]);
            Decoder::new().parse(frame, &layout, &limits).unwrap().add_scaled_to(1.0, &mut expected);
            let mut packets = PacketEncoder::new();
            let size = PacketSize::new(64).unwrap();
            packets.encode(&EfSign, &step, Some(&mut cut), size).unwrap();
            assert!(all_zero || packets.count() > 10);
            for at in 0..packets.count() {
                let packet = packets.packet(at).unwrap();
                Decoder::new().parse(packet, &layout, &limits).unwrap().add_scaled_to(1.0, &mut sum);
            }
            assert_eq!(sum, expected);
            assert_eq!(cut.residual(), whole.residual());
        }
    }
}
