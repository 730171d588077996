//! Pieces of a sparse unit: runs of entries, each with the coordinates up to the next piece's first entry.

use super::{Cuts, PacketSize, Piece};
use crate::coding::values::Prepared;
use crate::memory::Memory;
use crate::sparse::SparseCoding;
use crate::wire::writer::{Writer, varint_len};
use core::ops::Range;

/// The entries of a unit, in the scratch memory: positions from word 0, bits of the values from word `stride`, bits of what
/// they decode to from word 2·`stride`, symbols from byte 0.
#[derive(Debug)]
pub struct SparseContent {
    coding: SparseCoding,
    stride: usize,
    prepared: Prepared,
}

/// The arrays of the entries.
struct Stored<'s> {
    indices: &'s mut [u32],
    decoded: &'s mut [u32],
    symbols: &'s mut [u8],
    /// Behind what all entries decode to.
    models: &'s mut [u32],
}

impl SparseContent {
    pub(crate) fn new(coding: SparseCoding, stride: usize, prepared: Prepared) -> Self {
        Self { coding, stride, prepared }
    }

    /// Entries that are sent.
    pub(super) fn entries(&self) -> usize {
        self.prepared.kept()
    }

    /// An entry takes a bit at the least.
    pub(super) fn cuts(left: usize, size: PacketSize) -> Cuts {
        Cuts { grain: 1, most: left.min(8 * size.bytes()) }
    }

    pub(super) fn coordinates(&self, words: &[u32], entries: Range<usize>, len: usize) -> Range<usize> {
        let start = if entries.start == 0 { 0 } else { words[entries.start] as usize };
        let end = if entries.end == self.entries() { len } else { words[entries.end] as usize };
        start..end
    }

    fn stored<'s>(&self, entries: Range<usize>, words: &'s mut [u32], bytes: &'s mut [u8]) -> Stored<'s> {
        let (indices, rest) = words.split_at_mut(self.stride);
        let symbols = if self.coding.has_symbols() { entries.clone() } else { 0..0 };
        let (decoded, models) = rest[self.stride..].split_at_mut(self.entries());
        Stored {
            indices: &mut indices[entries.clone()],
            decoded: &mut decoded[entries],
            symbols: &mut bytes[symbols],
            models,
        }
    }

    /// Writes the body, if it fits.
    pub(super) fn write(
        &self,
        piece: &Piece<'_>,
        words: &mut [u32],
        bytes: &mut [u8],
        writer: &mut Writer<'_>,
    ) -> bool {
        let k = piece.atoms.len();
        writer.varint(k as u64);
        let Some(room) = piece.room.checked_sub(varint_len(k as u64)) else { return false };
        if k == 0 {
            return true;
        }
        let Stored { indices, decoded, symbols, models } = self.stored(piece.atoms.clone(), words, bytes);
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

    /// Where an entry was sent, residual = p − decoded, which is exact, and the momentum starts anew if the codec has any;
    /// `memory` is that of the unit.
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
