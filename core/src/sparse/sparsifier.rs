//! The trait that a sparsifier implements. The encoding of its units follows from it.

use super::encode::{SparseCoding, decide, encode_selected, least_body_bytes};
use super::encode::{max_body_bytes, scratch_len, split_scratch};
use super::pieces::{self, Entries};
use super::view::SparseFields;
use crate::built::Full;
#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{Body, Capabilities, Cut, Cuts, Decided, EncodeUnit, Law, PacketSize, Piece, UnitInput};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::kernels::Candidates;
use crate::memory::Memory;
use crate::momentum::Momentum;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::CodecId;
use crate::wire::writer::Writer;
use core::ops::Range;

/// A codec whose units are sparse. Sparsifiers differ only in the coordinates that they choose.
pub(crate) trait Sparsifier: Send + Sync {
    /// The number of the method on the wire.
    const ID: CodecId;

    /// How positions and values are written.
    fn coding(&self) -> SparseCoding;

    /// The most entries of a unit of `len` elements.
    fn most_entries(&self, len: usize) -> usize;

    /// Elements of each part of the candidates, for a unit of `len`.
    fn capacity(&self, len: usize) -> usize;

    /// The momentum that the codec applies to a gradient before it is added to the residual.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// Whether the codec keeps a state of each unit.
    fn adapts(&self) -> bool {
        false
    }

    /// Whether choosing coordinates needs a part that only a full build has.
    fn needs_full(&self) -> bool {
        false
    }

    /// Whether all that [`select`](Self::select) does with an element, before it has a candidate, is to
    /// [sample](crate::corrected::Pass::sample) it and to
    /// [add and select](crate::corrected::Pass::add_and_select) it, without momentum.
    fn refuses_in_pass(&self) -> bool {
        false
    }

    /// The codec as [`MultiLevel`], if its entries at several densities follow from one read.
    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        None
    }

    /// Leaves the entries to send in `candidates`, of [`capacity`](Self::capacity), and adds the gradient to
    /// the memory. `spare` is working memory, one word for each of the most entries.
    ///
    /// # Errors
    /// The errors of [`Pass::add_and_select`](crate::corrected::Pass::add_and_select).
    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError>;
}

impl<S: Sparsifier> EncodeUnit for S {
    fn capabilities(&self) -> Capabilities {
        let coding = self.coding();
        Capabilities {
            // A value that is rounded at random may move so far that its error is not an f32.
            law: if coding.is_stochastic() { Law::NotKept } else { Law::Exact },
            adapts: Sparsifier::adapts(self),
            needs_full: coding.needs_full() || Sparsifier::adapts(self) || Sparsifier::needs_full(self),
            adds_early: true,
            refuses_in_pass: Sparsifier::refuses_in_pass(self),
            ..Capabilities::new(S::ID, SparseFields::KIND)
        }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        max_body_bytes(self.coding(), self.most_entries(len), len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        scratch_len(self.coding(), self.most_entries(len), len, self.capacity(len))
    }

    fn overflow_bound(&self) -> f32 {
        self.coding().overflow_bound()
    }

    fn momentum(&self) -> Option<Momentum> {
        Sparsifier::momentum(self)
    }

    fn as_cut(&self) -> Option<&dyn Cut> {
        Full::build().filter(|_| self.coding().index.is_cut()).map(|_| self as &dyn Cut)
    }

    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        Sparsifier::as_multi_level(self)
    }

    fn encode_body(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let (mut candidates, scratch) = split_scratch(scratch, self.capacity(input.unit.len));
        self.select(&mut input, &mut candidates, scratch.words)?;
        encode_selected(self.coding(), input, candidates, scratch, writer);
        Ok(())
    }
}

/// Pieces of a sparse unit: runs of entries, each with the coordinates up to the next piece's first entry.
impl<S: Sparsifier> Cut for S {
    fn least_body_bytes(&self, len: usize) -> usize {
        least_body_bytes(self.coding(), len)
    }

    fn decided_scratch_len(&self, len: usize) -> ScratchLen {
        self.unit_scratch_len(len)
    }

    fn decide(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Decided, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let (mut candidates, scratch) = split_scratch(scratch, self.capacity(input.unit.len));
        self.select(&mut input, &mut candidates, scratch.words)?;
        let prepared = decide(self.coding(), &input, candidates, scratch);
        Ok(Decided { atoms: prepared.kept(), values: Some(prepared) })
    }

    fn coordinates(&self, decided: &Decided, words: &[u32], atoms: Range<usize>, len: usize) -> Range<usize> {
        pieces::coordinates(words, atoms, decided.atoms, len)
    }

    fn cuts(&self, decided: &Decided, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>) {
        (pieces::cuts(decided.atoms - at, size), None)
    }

    fn write_piece(
        &self,
        decided: &Decided,
        piece: &Piece<'_>,
        _values: Grad<'_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool {
        let Some(prepared) = &decided.values else { return false };
        Entries { coding: self.coding(), stride: self.capacity(piece.len), prepared }
            .write(piece, scratch, writer)
    }

    fn commit_piece(
        &self,
        decided: &Decided,
        atoms: Range<usize>,
        scratch: &mut Scratch<'_>,
        memory: &mut Memory<'_>,
    ) {
        let Some(prepared) = &decided.values else { return };
        let entries = Entries { coding: self.coding(), stride: self.capacity(memory.len()), prepared };
        entries.commit(atoms, scratch.words, memory, Sparsifier::momentum(self).is_some());
    }
}
