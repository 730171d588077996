//! Value coders: the values of the entries of a sparse unit, exact or in few bits.
//!
//! Every coder is total and conserving. For each entry it either gives a decoded value `d`, not zero, such
//! that the error `p − d` is exactly an f32, or it leaves the entry out. The whole value of such an entry
//! stays in the residual. So what is sent and what is kept add up to p, bit for bit, for every coder and
//! input.

pub(crate) mod codebook;
mod entries;
mod format;
pub(crate) mod narrow;
mod planes;
mod view;

use crate::built::Full;
use crate::kernels::Isa;
use crate::rng::Stream;
use crate::wire::writer::Writer;
use codebook::Codebook;

pub(crate) use entries::Entries;
pub use format::{Rounding, ValueChoice};
pub(crate) use format::{ValueFormat, check_magnitude, check_magnitudes};
pub(crate) use view::{Values, f32_values};

impl ValueChoice {
    /// Largest number of bytes that the values of `k` entries can take; in planes if they may be.
    pub(crate) fn max_section_bytes(self, k: usize, may_be_planes: bool) -> Option<usize> {
        match self.codebook_log2() {
            None => {
                let trial = if may_be_planes { planes::TRIAL_BYTES } else { 0 };
                k.checked_mul(self.format().fixed_bytes().unwrap_or(4))?.checked_add(trial)
            }
            Some(log2) => codebook::max_section_bytes(log2, k),
        }
    }

    /// Largest number of bytes of a section with a single entry.
    pub(crate) fn max_entry_bytes(self) -> usize {
        self.format().fixed_bytes().unwrap_or(codebook::ENTRY_BYTES)
    }

    /// Words of scratch memory, besides those of the entries, that [`prepare`](Self::prepare) needs.
    pub(crate) fn fit_words(self) -> usize {
        if self.codebook_log2().is_some() { codebook::FIT_WORDS } else { 0 }
    }

    /// Values must stay below this magnitude.
    pub(crate) fn overflow_bound(self) -> f32 {
        narrow::overflow_bound(self.format())
    }

    /// Fits the coder to the entries, decides what each decodes to, and drops those that it cannot send
    /// without losing conservation. The first [`Prepared::kept`] elements of every slice are then the entries
    /// that are sent. With draws, the draws decide how values are rounded to a codebook, and every entry is
    /// sent. `packs_values` says whether values are entropy coded where that is shorter, which takes time.
    pub(crate) fn prepare(
        self,
        entries: &mut Entries<'_>,
        draws: Option<&Stream>,
        packs_values: bool,
    ) -> Prepared {
        match self.codebook_log2().zip(Full::build()) {
            None => {
                let kept = narrow::prepare(self.format(), entries);
                Prepared { kept, format: self.format(), book: None, packs_values }
            }
            Some((log2, full)) => {
                let (kept, book) = match draws {
                    None => codebook::prepare(full, log2, entries),
                    Some(draws) => codebook::prepare_unbiased(full, log2, entries, draws),
                };
                Prepared { kept, format: self.format(), book: Some(book), packs_values }
            }
        }
    }
}

/// What [`ValueChoice::prepare`] decided.
#[derive(Debug)]
pub(crate) struct Prepared {
    kept: usize,
    format: ValueFormat,
    book: Option<Codebook>,
    packs_values: bool,
}

impl Prepared {
    /// Entries that are sent.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Writes the values of the kept entries; returns the format that they are in.
    pub(crate) fn write(&self, entries: &mut Entries<'_>, writer: &mut Writer<'_>) -> ValueFormat {
        let (decoded, symbols) = (&entries.decoded[..self.kept], &mut *entries.symbols);
        let kept = self.kept.min(symbols.len());
        let format = self.write_part(decoded, &mut symbols[..kept], usize::MAX, writer);
        debug_assert!(format.is_some(), "there is room for every section");
        format.unwrap_or(self.format)
    }

    /// Writes the values of some of the kept entries, if they take at most `room` bytes. Returns their
    /// format, chosen by exact bytes: planes only if they take fewer.
    pub(crate) fn write_part(
        &self,
        decoded: &[u32],
        symbols: &mut [u8],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> Option<ValueFormat> {
        if let Some(book) = &self.book {
            return book.write(symbols, self.packs_values, room, writer).then_some(self.format);
        }
        let bytes = decoded.len().saturating_mul(self.format.fixed_bytes().unwrap_or(4));
        let planes = self.format.in_planes().filter(|_| self.packs_values);
        let limit = bytes.min(room.saturating_add(1));
        let shorter = planes.filter(|planes| planes::write(*planes, decoded, symbols, limit, writer));
        if shorter.is_none() && bytes <= room {
            narrow::put_all(Isa::best(), self.format, decoded, writer);
            return Some(self.format);
        }
        shorter
    }
}
