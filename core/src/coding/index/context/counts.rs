//! How many entries each tensor has.

use super::models::CountModels;
use crate::coding::entropy::range::BitCoder;
use crate::error::DecodeError;
use crate::gradient::layout::Part;

/// Digits of a number.
pub(super) fn digits(value: u32) -> u32 {
    u32::BITS - value.leading_zeros()
}

/// Codes counts; remembers how many digits the last one had.
pub(super) struct Counts<'m> {
    models: CountModels<'m>,
    last: u32,
}

impl<'m> Counts<'m> {
    /// In [`COUNT_WORDS`](super::models::COUNT_WORDS) words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        Some(Self { models: CountModels::new(memory)?, last: 0 })
    }

    /// Codes how many of the `left` entries not yet coded are in `part`, of a unit of `len` elements: `count`
    /// of them. The last part has them all.
    pub(super) fn code(
        &mut self,
        coder: &mut impl BitCoder,
        part: &Part,
        len: usize,
        left: usize,
        count: usize,
    ) -> Result<usize, DecodeError> {
        let largest = left.min(part.len());
        let count = if part.end == len {
            left
        } else {
            let share = left as u64 * part.len() as u64 / (len - part.start) as u64;
            let share = self.last.min(2) * 16 + digits(share as u32).min(15);
            let size = digits(part.len() as u32).min(31);
            let max = digits(largest as u32);
            self.last = self.models.digits(coder, size as usize, share as usize, max, digits(count as u32));
            lower_digits(coder, self.last, count as u32) as usize
        };
        if count <= largest { Ok(count) } else { Err(DecodeError::IndexOutOfRange) }
    }
}

/// Codes the digits of a number after the first of its `digits`.
#[inline]
pub(super) fn lower_digits(coder: &mut impl BitCoder, digits: u32, value: u32) -> u32 {
    match digits {
        0 => 0,
        _ => 1 << (digits - 1) | coder.bits(digits - 1, value & ((1 << (digits - 1)) - 1)),
    }
}
