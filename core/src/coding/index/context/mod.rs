//! Positions under adaptive models, in a range coder.
//!
//! Positions cluster: whole tensors, rows and columns of a gradient are large together. So the entries of
//! each tensor are counted first.
//!
//! `context` codes each gap by its number of digits under three models at once. They see how long the gaps of
//! this tensor are expected to be, how long the last ones were, and how far away the next column is that had
//! an entry before. The digits after the second are as good as random, and are coded as they are.
//!
//! `context-max` codes one decision for every row, whether it has entries, and one for every coordinate of a
//! row that does. It uses three models too. They see how dense the column and the surroundings are, how far
//! back the last entries are along the row and along the column, and how well this row repeats the one
//! before.
//!
//! Positions without such order would cost more than the number of entries alone implies. For them there is a
//! second form, with one probability for all coordinates. The first decision of a section selects the form.

mod columns;
mod coordinates;
mod counts;
mod gaps;
mod memoryless;
mod models;

use crate::coding::entropy::range::{BitCoder, RangeDecoder, RangeEncoder};
use crate::error::DecodeError;
use crate::gradient::layout::{Part, Span};
use columns::Columns;
use coordinates::{CoordinateModels, Coordinates};
use counts::Counts;
use gaps::Gaps;
use models::{COUNT_WORDS, GAP_WORDS, GapModels};

/// How the adaptive form of a section codes positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adaptive {
    /// One symbol for each gap: `context`.
    Gaps,
    /// One decision for each coordinate: `context-max`.
    Coordinates,
}

/// Probability, out of 2¹⁶, that a section is memoryless.
const MEMORYLESS: u32 = 1 << 12;

/// The most entries that a byte can hold, because no decision costs less than 1/512 of a bit.
const ENTRIES_PER_BYTE: usize = 1 << 12;

/// A section above this many bytes is never written.
pub(super) fn max_section_bytes(k: usize, len: usize) -> Option<usize> {
    let digits = usize::BITS - (len / k.max(1)).leading_zeros();
    Some(k.checked_mul(digits as usize + 3)? / 8 + 16)
}

/// The fewest bytes of a section of `k` entries.
pub(super) fn min_section_bytes(k: usize) -> usize {
    k.div_ceil(ENTRIES_PER_BYTE).saturating_sub(1)
}

/// Whether a section of so many bytes is shorter than the number of entries alone implies.
pub(super) fn finds_order(bytes: usize, indices: &[u32], len: usize) -> bool {
    (bytes as u64) * 8 < memoryless::bits(indices, len)
}

impl Adaptive {
    /// Words of working memory, for either side.
    pub(super) fn scratch_words(self, len: usize) -> usize {
        COUNT_WORDS
            + match self {
                Self::Gaps => GAP_WORDS + Columns::words(len),
                Self::Coordinates => coordinates::WORDS + coordinates::column_words(len),
            }
    }

    /// Writes the section to the front of `out`. Returns its length, which exceeds that of `out` if it does
    /// not fit, or `None` if the positions cannot be written at all. `indices` do not change; `memory` has
    /// [`scratch_words`](Self::scratch_words).
    ///
    /// The adaptive form is kept unless it is longer than the memoryless one by more than a 64th part.
    pub(super) fn write(
        self,
        indices: &mut [u32],
        span: Span<'_>,
        memory: &mut [u32],
        out: &mut [u8],
    ) -> Option<usize> {
        let memoryless_bits = memoryless::bits(indices, span.len);
        let bytes = self.write_adaptive(indices, span, memory, out)?;
        if bytes as u64 * 8 > memoryless_bits + memoryless_bits / 64 {
            return write_memoryless(indices, span.len, out);
        }
        Some(bytes)
    }

    /// Bytes of the adaptive form, whether or not it fits `out`; the same holds for the functions that
    /// follow.
    fn write_adaptive(
        self,
        indices: &mut [u32],
        span: Span<'_>,
        memory: &mut [u32],
        out: &mut [u8],
    ) -> Option<usize> {
        let mut encoder = RangeEncoder::new(out);
        encoder.bit(MEMORYLESS, false);
        self.code(&mut encoder, indices, span, memory).ok()?;
        Some(encoder.finish())
    }

    pub(super) fn read(
        self,
        section: &[u8],
        span: Span<'_>,
        indices: &mut [u32],
        memory: &mut [u32],
    ) -> Result<(), DecodeError> {
        if span.layout.is_opaque() {
            return Err(DecodeError::LayoutUnknown);
        }
        let mut decoder = RangeDecoder::new(section);
        if decoder.bit(MEMORYLESS, false) {
            memoryless::code(&mut decoder, indices, span.len)
        } else {
            self.code(&mut decoder, indices, span, memory)
        }
    }

    /// Codes the positions tensor by tensor: how many it has, and which.
    fn code(
        self,
        coder: &mut impl BitCoder,
        indices: &mut [u32],
        span: Span<'_>,
        memory: &mut [u32],
    ) -> Result<(), DecodeError> {
        let too_small = DecodeError::ScratchTooSmall { needed: self.scratch_words(span.len) };
        let (counts, memory) = memory.split_at_mut_checked(COUNT_WORDS).ok_or(too_small)?;
        let mut counts = Counts::new(counts).ok_or(too_small)?;
        let mut models = Models::new(self, memory).ok_or(too_small)?;
        let mut left = indices;
        for part in span.parts() {
            if left.is_empty() {
                break;
            }
            let own = left.partition_point(|&index| (index as usize) < part.end);
            let k = counts.code(coder, &part, span.len, left.len(), own)?;
            let (own, others) = left.split_at_mut(k);
            if k > 0 {
                models.code(coder, &part, own)?;
            }
            left = others;
        }
        Ok(())
    }
}

fn write_memoryless(indices: &mut [u32], len: usize, out: &mut [u8]) -> Option<usize> {
    let mut encoder = RangeEncoder::new(out);
    encoder.bit(MEMORYLESS, true);
    memoryless::code(&mut encoder, indices, len).ok()?;
    Some(encoder.finish())
}

/// All models that learn in a section, and memory for the columns of a part.
enum Models<'m> {
    Gaps(GapModels<'m>, &'m mut [u32]),
    Coordinates(CoordinateModels<'m>, &'m mut [u32]),
}

impl<'m> Models<'m> {
    fn new(adaptive: Adaptive, memory: &'m mut [u32]) -> Option<Self> {
        let words = match adaptive {
            Adaptive::Gaps => GAP_WORDS,
            Adaptive::Coordinates => coordinates::WORDS,
        };
        let (models, columns) = memory.split_at_mut_checked(words)?;
        Some(match adaptive {
            Adaptive::Gaps => Self::Gaps(GapModels::new(models)?, columns),
            Adaptive::Coordinates => Self::Coordinates(CoordinateModels::new(models)?, columns),
        })
    }

    /// Codes the positions of a part, at least one.
    fn code(
        &mut self,
        coder: &mut impl BitCoder,
        part: &Part,
        indices: &mut [u32],
    ) -> Result<(), DecodeError> {
        match self {
            Self::Gaps(models, columns) => {
                Gaps::new(part, Columns::new(columns, part), indices.len()).code(coder, models, indices)
            }
            Self::Coordinates(models, columns) => {
                Coordinates::new(columns, part, indices.len()).code(coder, models, indices)
            }
        }
    }
}
