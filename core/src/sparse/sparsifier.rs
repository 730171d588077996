//! What one sparsifier says about itself; how its units are encoded follows from it.

use super::encode::{SparseCoding, decide, encode_selected, least_body_bytes};
use super::encode::{max_body_bytes, scratch_len, split_scratch};
use crate::built::Full;
use crate::error::EncodeError;
use crate::frame::header::{CodecId, Kind};
use crate::frame::packets::Content;
use crate::gather::{EncodeUnit, UnitInput};
use crate::kernels::Candidates;
use crate::momentum::Momentum;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;

/// A codec whose units are sparse: sparsifiers differ in which coordinates they choose, and in nothing else.
pub(crate) trait Sparsifier: Send + Sync {
    /// The number of the method on the wire.
    const ID: CodecId;

    /// How positions and values are written.
    fn coding(&self) -> SparseCoding;

    /// Entries of a unit of `len` elements, at the most.
    fn most_entries(&self, len: usize) -> usize;

    /// Elements of each part of the candidates, for a unit of `len`.
    fn capacity(&self, len: usize) -> usize;

    /// What the codec makes of a gradient before it is added to the residual.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// Whether the codec remembers something of each unit.
    fn adapts(&self) -> bool {
        false
    }

    /// Leaves the entries to send in `candidates`, of [`capacity`](Self::capacity), and adds the gradient to the memory.
    /// `spare` is working memory, one word for each of the most entries.
    ///
    /// # Errors
    /// Those of [`Pass::keep_from`](crate::source::Pass::keep_from).
    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError>;
}

impl<S: Sparsifier> EncodeUnit for S {
    fn codec_id(&self) -> CodecId {
        S::ID
    }

    fn kind(&self) -> Kind {
        Kind::Sparse
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

    /// What values are rounded to by draws may be far from them, so that the error is not a float.
    fn conserves(&self) -> bool {
        !self.coding().is_stochastic()
    }

    fn needs_full(&self) -> bool {
        self.coding().needs_full() || Sparsifier::adapts(self)
    }

    fn adds_early(&self) -> bool {
        true
    }

    fn momentum(&self) -> Option<Momentum> {
        Sparsifier::momentum(self)
    }

    fn adapts(&self) -> bool {
        Sparsifier::adapts(self)
    }

    fn is_cut(&self) -> bool {
        self.coding().index.is_cut()
    }

    fn least_body_bytes(&self, len: usize) -> usize {
        least_body_bytes(self.coding(), len)
    }

    fn decide(
        &self,
        mut input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Content, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let capacity = self.capacity(input.unit.len);
        let (mut candidates, scratch) = split_scratch(scratch, capacity);
        self.select(&mut input, &mut candidates, scratch.words)?;
        Ok(decide(self.coding(), &input, candidates, scratch, capacity))
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
