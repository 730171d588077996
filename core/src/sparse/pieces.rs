//! Pieces of a sparse unit: runs of entries, each with the coordinates up to the next piece's first entry.

use super::encode::SparseCoding;
use crate::codec::{Cuts, PacketSize, Piece};
use crate::coding::values::Prepared;
use crate::memory::Memory;
use crate::scratch::Scratch;
use crate::wire::writer::{Writer, varint_len};
use core::ops::Range;

/// The entries of a unit, in the scratch memory: positions from word 0, bits of the values from word
/// `stride`, bits of their decoded values from word 2·`stride`, symbols from byte 0.
pub(super) struct Entries<'d> {
    pub(super) coding: SparseCoding,
    pub(super) stride: usize,
    pub(super) prepared: &'d Prepared,
}

/// The arrays of the entries.
struct Stored<'s> {
    indices: &'s mut [u32],
    decoded: &'s mut [u32],
    symbols: &'s mut [u8],
    /// The words after the decoded values of all entries.
    models: &'s mut [u32],
}

/// An entry takes at least a bit.
pub(super) fn cuts(left: usize, size: PacketSize) -> Cuts {
    Cuts { grain: 1, most: left.min(8 * size.bytes()) }
}

/// The coordinates, of a unit of `len` with `all` entries, that these entries cover.
pub(super) fn coordinates(words: &[u32], entries: Range<usize>, all: usize, len: usize) -> Range<usize> {
    let start = if entries.start == 0 { 0 } else { words[entries.start] as usize };
    let end = if entries.end == all { len } else { words[entries.end] as usize };
    start..end
}

impl Entries<'_> {
    fn stored<'s>(&self, entries: Range<usize>, scratch: &'s mut Scratch<'_>) -> Stored<'s> {
        let (indices, rest) = scratch.words.split_at_mut(self.stride);
        let symbols = if self.coding.has_symbols() { entries.clone() } else { 0..0 };
        let (decoded, models) = rest[self.stride..].split_at_mut(self.prepared.kept());
        Stored {
            indices: &mut indices[entries.clone()],
            decoded: &mut decoded[entries],
            symbols: &mut scratch.bytes[symbols],
            models,
        }
    }

    /// Writes the body, if it fits.
    pub(super) fn write(
        &self,
        piece: &Piece<'_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool {
        let k = piece.atoms.len();
        writer.varint(k as u64);
        let Some(room) = piece.room.checked_sub(varint_len(k as u64)) else { return false };
        if k == 0 {
            return true;
        }
        let Stored { indices, decoded, symbols, models } = self.stored(piece.atoms.clone(), scratch);
        // Positions count from the start of the piece while it is written.
        let first = (piece.span.start - piece.start) as u32;
        indices.iter_mut().for_each(|index| *index -= first);
        let coding_byte = writer.len();
        writer.u8(0);
        let section = writer.len();
        let coder = room
            .checked_sub(1)
            .and_then(|room| self.coding.index.write(indices, piece.span, models, room, writer));
        indices.iter_mut().for_each(|index| *index += first);
        let Some(coder) = coder else { return false };
        let room = room - 1 - (writer.len() - section);
        let Some(format) = self.prepared.write_part(decoded, symbols, room, writer) else { return false };
        writer.patch(coding_byte, coder.number() | format.number() << 4);
        true
    }

    /// At the coordinate of each entry sent, sets residual = p − decoded, which is exact, and the momentum,
    /// if the codec has any, to 0. `memory` is that of the unit.
    pub(super) fn commit(
        &self,
        entries: Range<usize>,
        words: &[u32],
        memory: &mut Memory<'_>,
        has_momentum: bool,
    ) {
        if has_momentum {
            memory.mask_momentum(&words[entries.clone()]);
        }
        let residual = memory.residual_mut();
        for i in entries {
            let [value, decoded] = [i + self.stride, i + 2 * self.stride].map(|at| f32::from_bits(words[at]));
            residual[words[i] as usize] = value - decoded;
        }
    }
}
