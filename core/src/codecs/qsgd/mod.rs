//! QSGD: every coordinate rounded to one of a few levels of its bucket's norm.

mod context;
mod encode;
mod fields;
mod levels;
mod norms;
mod pack;
mod params;
mod pieces;
mod quantize;
#[cfg(feature = "alloc")]
mod rewrite;
mod spelling;
mod view;

use crate::built::Full;
use crate::codec::{Body, Capabilities, Cut, EncodeUnit, Law, UnitInput};
use crate::error::EncodeError;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;

pub(crate) use params::LEAST_NORM;
pub use params::{Cutoff, EntropyChoice, LevelBits, Norm, Qsgd};
pub(crate) use view::LevelsFields;

impl EncodeUnit for Qsgd {
    fn capabilities(&self) -> Capabilities {
        let is_usual = self.norm == Norm::Max && self.cutoff().is_none();
        let fits_small_builds = matches!(self.bits, LevelBits::Bits(_)) && is_usual;
        Capabilities {
            // Stochastic rounding may send a small coordinate as a level far above it, and a cutoff a large
            // one far below it. Such an error is not always an f32.
            law: if self.has_exact_error() { Law::Exact } else { Law::NotKept },
            needs_full: !fits_small_builds || self.entropy != EntropyChoice::Fixed,
            ..Capabilities::new(Self::ID, LevelsFields::KIND)
        }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        encode::max_body_bytes(self, len)
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        encode::scratch_len(self, len)
    }

    fn overflow_bound(&self) -> f32 {
        quantize::overflow_bound(self)
    }

    fn as_cut(&self) -> Option<&dyn Cut> {
        Full::build().map(|_| self as &dyn Cut)
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let stream = self.draws(&input);
        encode::Body::new(self, stream, len, scratch.words, scratch.bytes).write(input, writer)
    }
}
