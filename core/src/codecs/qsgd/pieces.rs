//! Pieces of a unit of levels: whole buckets, or a part of one bucket if a whole one does not fit. Under
//! context, a piece is any run of coordinates.

use super::Qsgd;
use super::fields::Levels;
use super::levels::{self, Content};
use crate::codec::{Cut, Cuts, Decided, PacketSize, Piece, UnitInput};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::kernels::{self, Isa};
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::ops::Range;

/// The most coordinates in a part of a bucket, per byte of its packet. Equal levels take next to nothing, so
/// this bounds the search for the largest part.
const COORDINATES_PER_BYTE: usize = 64;

/// The same for a piece under context, in which buckets of zeros take next to nothing.
const STREAMED_PER_BYTE: usize = 1024;

/// Elements that are committed at a time.
const BLOCK: usize = 256;

impl Content {
    /// A norm takes four bytes, which bounds the number of buckets.
    fn cuts(&self, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
        let len = self.len;
        if self.qsgd.cuts_anywhere() {
            return (Cuts { grain: 1, most: (len - at).min(STREAMED_PER_BYTE * size.bytes()) }, None);
        }
        let (bucket, most) = (self.bucket(), COORDINATES_PER_BYTE * size.bytes());
        let inside = at % bucket;
        let left = (bucket - inside).min(len - at);
        let part = Cuts { grain: 1, most: left.min(most) };
        if inside > 0 {
            return (part, None);
        }
        let whole = Cuts { grain: bucket, most: (len - at).div_ceil(bucket).min(size.bytes() / 4) };
        (whole, Some(part))
    }

    /// Norms and levels of some coordinates, and room for symbols.
    fn levels<'s>(&self, atoms: Range<usize>, bytes: &'s mut [u8]) -> (Levels<'s>, &'s mut [u8]) {
        let (norms, fields, symbols) = self.parts_mut(bytes);
        let buckets = atoms.start / self.bucket()..atoms.end.div_ceil(self.bucket());
        (Levels { norms: &norms[buckets], fields: &fields[atoms] }, symbols)
    }

    /// residual = p − decoded, where p is what the unit's residual holds.
    fn commit(&self, atoms: Range<usize>, bytes: &mut [u8], residual: &mut [f32]) {
        let (isa, levels, mut p) = (Isa::best(), self.qsgd.bits().levels() as f32, [0; BLOCK]);
        let (norms, fields, _) = self.parts_mut(bytes);
        let mut at = atoms.start;
        while at < atoms.end {
            let bucket = at / self.bucket();
            let bucket_end = bucket.saturating_add(1).saturating_mul(self.bucket());
            let end = bucket_end.min(atoms.end).min(at + BLOCK);
            let kept = &mut residual[at..end];
            let p = &mut p[..kept.len()];
            p.copy_from_slice(kernels::bits_of(kept));
            let scale = f32::from_le_bytes(norms[bucket]) / levels;
            kernels::keep_rounding(isa, p, &fields[at..end], scale, kept);
            at = end;
        }
    }
}

impl Cut for Qsgd {
    fn least_body_bytes(&self, _len: usize) -> usize {
        levels::least_body_bytes(self)
    }

    fn decided_scratch_len(&self, len: usize) -> ScratchLen {
        levels::scratch_len(self, len)
    }

    fn decide(&self, input: UnitInput<'_, '_>, scratch: &mut Scratch<'_>) -> Result<Decided, EncodeError> {
        levels::decide(self, input, scratch)
    }

    fn cuts(&self, decided: &Decided, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
        Content { qsgd: *self, len: decided.atoms }.cuts(at, size)
    }

    /// Under context, a stream only grows with each coordinate. So one encode finds the largest piece that
    /// fits.
    fn fitting(
        &self,
        atoms: Range<usize>,
        len: usize,
        bytes: &mut [u8],
        room: &dyn Fn(usize) -> usize,
    ) -> Option<usize> {
        if !self.cuts_anywhere() {
            return None;
        }
        let first = atoms.start;
        let (levels, _) = Content { qsgd: *self, len }.levels(atoms, bytes);
        Some(levels.fitting(self, first, room))
    }

    fn write_piece(
        &self,
        decided: &Decided,
        piece: &Piece<'_>,
        _values: Grad<'_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool {
        let content = Content { qsgd: *self, len: decided.atoms };
        let (levels, symbols) = content.levels(piece.atoms.clone(), scratch.bytes);
        levels.write(self, piece.atoms.start, symbols, piece.room, writer)
    }

    fn commit_piece(
        &self,
        decided: &Decided,
        atoms: Range<usize>,
        scratch: &mut Scratch<'_>,
        memory: &mut Memory<'_>,
    ) {
        let content = Content { qsgd: *self, len: decided.atoms };
        content.commit(atoms, scratch.bytes, memory.residual_mut());
    }
}
