//! Pieces of a unit that is sent dense: any run of coordinates.

use super::Dense;
use crate::codec::{Cut, Cuts, Decided, PacketSize, Piece, UnitInput};
use crate::coding::values::narrow;
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::kernels::Isa;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::ops::Range;

/// Values that are widened on the stack at a time.
const BLOCK: usize = 256;

impl Dense {
    /// Bytes of a value.
    fn value_bytes(self) -> usize {
        self.format().fixed_bytes().unwrap_or(4)
    }
}

impl Cut for Dense {
    /// The format and a value.
    fn least_body_bytes(&self, _len: usize) -> usize {
        1 + 4
    }

    fn decided_scratch_len(&self, len: usize) -> ScratchLen {
        super::scratch_len(len)
    }

    /// The values that are sent stay where they are until they are written.
    fn decide(&self, input: UnitInput<'_, '_>, _scratch: &mut Scratch<'_>) -> Result<Decided, EncodeError> {
        Ok(Decided { atoms: input.unit.len, values: None })
    }

    fn cuts(&self, decided: &Decided, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
        (Cuts { grain: 1, most: (decided.atoms - at).min(size.bytes() / self.value_bytes()) }, None)
    }

    fn write_piece(
        &self,
        _decided: &Decided,
        piece: &Piece<'_>,
        values: Grad<'_>,
        _scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool {
        if 1 + values.len() * self.value_bytes() > piece.room {
            return false;
        }
        writer.u8(self.format().number());
        let (isa, mut room) = (Isa::best(), [0; BLOCK]);
        let source = Corrected::new(values, None, piece.span.start, f32::INFINITY);
        for first in (0..values.len()).step_by(BLOCK) {
            let room = &mut room[..BLOCK.min(values.len() - first)];
            // Every value was checked before the first packet.
            let Ok((p, _)) = source.bits(isa, first, room) else { return false };
            narrow::put_all(isa, self.format(), p, writer);
        }
        true
    }

    /// The residual keeps the rounding error. The error is exact, because the result of rounding lies between
    /// half the value and its double, or is zero.
    fn commit_piece(
        &self,
        _decided: &Decided,
        atoms: Range<usize>,
        _scratch: &mut Scratch<'_>,
        memory: &mut Memory<'_>,
    ) {
        let format = self.format();
        memory.residual_mut()[atoms].iter_mut().for_each(|kept| *kept -= narrow::rounded(format, *kept));
    }
}
