//! Pieces of a unit that is sent dense: any run of coordinates.

use super::{Cuts, PacketSize, Piece};
use crate::codecs::dense::Dense;
use crate::coding::values::{ValueFormat, narrow};
use crate::gradient::grad::Grad;
use crate::kernels::Isa;
use crate::source::Source;
use crate::wire::writer::Writer;

/// Values that are widened on the stack at a time.
const BLOCK: usize = 256;

/// A dense unit. What it holds stays where it is until it is written.
#[derive(Clone, Copy, Debug)]
pub struct DenseContent {
    format: ValueFormat,
    bytes: usize,
}

impl DenseContent {
    pub(crate) fn new(dense: Dense) -> Self {
        let format = dense.format();
        Self { format, bytes: format.fixed_bytes().unwrap_or(4) }
    }

    pub(super) fn cuts(&self, left: usize, size: PacketSize) -> Cuts {
        Cuts { grain: 1, most: left.min(size.bytes() / self.bytes) }
    }

    /// Writes the body with the values of `grad`, those of the piece, if they fit.
    pub(super) fn write(&self, piece: &Piece<'_>, grad: Grad<'_>, writer: &mut Writer<'_>) -> bool {
        if 1 + grad.len() * self.bytes > piece.room {
            return false;
        }
        writer.u8(self.format.number());
        let (isa, mut room) = (Isa::best(), [0; BLOCK]);
        let source = Source::new(grad, None, piece.span.start, f32::INFINITY);
        for first in (0..grad.len()).step_by(BLOCK) {
            let room = &mut room[..BLOCK.min(grad.len() - first)];
            // Every value was looked at before the first packet.
            let Ok((p, _)) = source.bits(isa, first, room) else { return false };
            narrow::put_all(isa, self.format, p, writer);
        }
        true
    }

    /// What rounding lost stays; exact, as what a value rounds to lies between its half and its double, or is zero.
    pub(super) fn commit(&self, residual: &mut [f32]) {
        residual.iter_mut().for_each(|kept| *kept -= narrow::rounded(self.format, *kept));
    }
}
