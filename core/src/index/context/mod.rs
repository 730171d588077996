//! Gaps between positions under adaptive models, in a range coder.
//!
//! Positions cluster: whole tensors, rows and columns of a gradient are large together. So the entries of each tensor
//! are counted first, and each gap is coded by its number of digits under three models at once, which see how long the
//! gaps of this tensor are expected to be, how long the last ones were, and how far away the next column is in which
//! there was an entry before. The digits below the first are as good as random and coded as they are.
//!
//! Positions without such order would cost more than their number alone tells; for them there is a second way, one
//! probability for all coordinates. The first decision of a section tells the two apart.

mod columns;
mod counts;
mod gaps;
mod memoryless;
mod models;

use crate::entropy::range::{BitCoder, RangeDecoder, RangeEncoder};
use crate::error::DecodeError;
use crate::layout::Span;
use columns::Columns;
use counts::Counts;
use gaps::Gaps;
use models::Models;

/// Probability, out of 2¹⁶, that a section is memoryless.
const MEMORYLESS: u32 = 1 << 12;

/// Entries that a byte can hold at the most: no decision costs less than 1/512 of a bit.
const ENTRIES_PER_BYTE: usize = 1 << 12;

/// Words of working memory, for either side.
pub(super) fn scratch_words(len: usize) -> usize {
    models::WORDS + Columns::words(len)
}

/// A section above this many bytes is never written.
pub(super) fn max_section_bytes(k: usize, len: usize) -> Option<usize> {
    let digits = usize::BITS - (len / k.max(1)).leading_zeros();
    Some(k.checked_mul(digits as usize + 3)? / 8 + 16)
}

/// A section of `k` entries has this many bytes at the least.
pub(super) fn min_section_bytes(k: usize) -> usize {
    k.div_ceil(ENTRIES_PER_BYTE).saturating_sub(1)
}

/// Writes the section to the front of `out`; its length, or `None` if it does not fit. `indices` are what they were
/// before; `memory` has [`scratch_words`].
///
/// The adaptive form is kept unless it is longer than the memoryless one by more than a 64th part.
pub(super) fn write(
    indices: &mut [u32],
    span: Span<'_>,
    memory: &mut [u32],
    out: &mut [u8],
) -> Option<usize> {
    let room = out.len();
    let memoryless_bits = memoryless::bits(indices, span.len);
    let mut bytes = write_adaptive(indices, span, memory, out)?;
    if bytes as u64 * 8 > memoryless_bits + memoryless_bits / 64 {
        bytes = write_memoryless(indices, span.len, out)?;
    }
    (bytes <= room).then_some(bytes)
}

/// Bytes of the adaptive form, whether or not it fits `out`; so below.
fn write_adaptive(indices: &mut [u32], span: Span<'_>, memory: &mut [u32], out: &mut [u8]) -> Option<usize> {
    let mut encoder = RangeEncoder::new(out);
    encoder.bit(MEMORYLESS, false);
    adaptive(&mut encoder, indices, span, memory).ok()?;
    Some(encoder.finish())
}

fn write_memoryless(indices: &mut [u32], len: usize, out: &mut [u8]) -> Option<usize> {
    let mut encoder = RangeEncoder::new(out);
    encoder.bit(MEMORYLESS, true);
    memoryless::code(&mut encoder, indices, len).ok()?;
    Some(encoder.finish())
}

pub(super) fn read(
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
        adaptive(&mut decoder, indices, span, memory)
    }
}

/// Codes the positions tensor by tensor: how many it has, and their gaps.
fn adaptive(
    coder: &mut impl BitCoder,
    indices: &mut [u32],
    span: Span<'_>,
    memory: &mut [u32],
) -> Result<(), DecodeError> {
    let (models, columns) = memory.split_at_mut(models::WORDS);
    let Some(mut models) = Models::new(models) else {
        return Err(DecodeError::ScratchTooSmall { needed: models::WORDS });
    };
    let mut counts = Counts::default();
    let mut left = indices;
    for part in span.parts() {
        if left.is_empty() {
            break;
        }
        let own = left.partition_point(|&index| (index as usize) < part.end);
        let k = counts.code(coder, &mut models, &part, span.len, left.len(), own)?;
        let (own, others) = left.split_at_mut(k);
        if k > 0 {
            let columns = Columns::new(columns, &part);
            Gaps::new(&part, columns, k).code(coder, &mut models, own)?;
        }
        left = others;
    }
    Ok(())
}
