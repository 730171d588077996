//! Pieces of a unit of levels: whole buckets, or a part of one bucket where a whole one does not fit; under context, any run of
//! coordinates.

use super::{Cuts, PacketSize, Piece};
use crate::codecs::qsgd::{self, Qsgd};
use crate::kernels::{self, Isa};
use crate::wire::writer::Writer;
use core::ops::Range;

/// Coordinates of a part of a bucket, at the most, for each byte of a packet: levels that are all alike take next to nothing,
/// but the search for the largest part has to end.
const COORDINATES_PER_BYTE: usize = 64;

/// The same of a piece under context, where buckets of zeros take next to nothing.
const STREAMED_PER_BYTE: usize = 1024;

/// Elements that are committed at a time.
const BLOCK: usize = 256;

/// The levels of a unit, in the scratch memory: its norms, a field a coordinate, and room for a symbol a coordinate.
#[derive(Clone, Copy, Debug)]
pub struct LevelsContent {
    qsgd: Qsgd,
    len: usize,
}

impl LevelsContent {
    pub(crate) fn new(qsgd: Qsgd, len: usize) -> Self {
        Self { qsgd, len }
    }

    fn bucket(&self) -> usize {
        self.qsgd.bucket().get() as usize
    }

    /// Norms, fields and symbols.
    pub(crate) fn parts_mut<'s>(
        &self,
        bytes: &'s mut [u8],
    ) -> (&'s mut [[u8; 4]], &'s mut [u8], &'s mut [u8]) {
        let (norms, bytes) = bytes.split_at_mut(4 * self.len.div_ceil(self.bucket()));
        let (fields, symbols) = bytes.split_at_mut(self.len);
        (norms.as_chunks_mut().0, fields, &mut symbols[..self.len])
    }

    /// A norm takes four bytes, so there are only so many buckets.
    pub(super) fn cuts(&self, at: usize, len: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
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

    /// How many of these coordinates fit bodies of at most `room(coordinates)` bytes, where that is known without trying:
    /// under context, as streams only grow.
    pub(super) fn fitting(
        &self,
        atoms: Range<usize>,
        bytes: &mut [u8],
        room: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let first = atoms.start;
        let (levels, _) = self.levels(atoms, bytes);
        self.qsgd.cuts_anywhere().then(|| levels.fitting(&self.qsgd, first, room))
    }

    /// Writes the body, if it fits.
    pub(super) fn write(&self, piece: &Piece<'_>, bytes: &mut [u8], writer: &mut Writer<'_>) -> bool {
        let (levels, symbols) = self.levels(piece.atoms.clone(), bytes);
        levels.write(&self.qsgd, piece.atoms.start, symbols, piece.room, writer)
    }

    /// Norms and levels of some coordinates, and room for symbols.
    fn levels<'s>(&self, atoms: Range<usize>, bytes: &'s mut [u8]) -> (qsgd::Levels<'s>, &'s mut [u8]) {
        let (norms, fields, symbols) = self.parts_mut(bytes);
        let buckets = atoms.start / self.bucket()..atoms.end.div_ceil(self.bucket());
        (qsgd::Levels { norms: &norms[buckets], fields: &fields[atoms] }, symbols)
    }

    /// residual = p − decoded, where p is what the residual holds: that of the piece.
    pub(super) fn commit(&self, atoms: Range<usize>, bytes: &mut [u8], residual: &mut [f32]) {
        let (isa, levels, mut p) = (Isa::best(), self.qsgd.bits().levels() as f32, [0; BLOCK]);
        let (norms, fields, _) = self.parts_mut(bytes);
        let mut at = atoms.start;
        while at < atoms.end {
            let bucket = at / self.bucket();
            let bucket_end = bucket.saturating_add(1).saturating_mul(self.bucket());
            let end = bucket_end.min(atoms.end).min(at + BLOCK);
            let kept = &mut residual[at - atoms.start..end - atoms.start];
            let p = &mut p[..kept.len()];
            p.copy_from_slice(kernels::bits_of(kept));
            let scale = f32::from_le_bytes(norms[bucket]) / levels;
            kernels::keep_rounding(isa, p, &fields[at..end], scale, kept);
            at = end;
        }
    }
}
