//! One decision for each coordinate, whether it has an entry, and before them one for each row, whether it
//! has any.

use crate::coding::entropy::logistic::log;
use crate::coding::entropy::mixer::{LearningWeights, Prior, Word, decide, decide_alone, seen};
use crate::coding::entropy::range::BitCoder;
use crate::error::DecodeError;
use crate::gradient::layout::Part;

/// Lengths that a row of a tensor can have; everything else is cut into rows of [`PLAIN_ROW`].
const MIN_ROW: usize = 8;
const MAX_ROW: usize = 1 << 16;
const PLAIN_ROW: usize = 64;

/// Number of cases that each model distinguishes. The first model sees how many entries the column had, how
/// dense the last coordinates were, and whether the last one had an entry. The second sees how long ago the
/// last entry was, and how many rows ago the column had one. The third sees what the last row with entries
/// has in this column, and how often this row was unlike it, and like it. The model of rows sees whether the
/// last rows had entries, and how many entries are expected in this row.
const BY_DENSITY: usize = 8 * 16 * 2;
const BY_DISTANCE: usize = 16 * 32;
const BY_ROW: usize = 4 * 4 * 8;
const BY_ROWS: usize = 8 * EXPECTED;

/// Initial P(a row has entries), out of 2¹⁶, by the digits of 16 times the expected number of entries: about
/// 1 − exp(−number).
const ROW_HAS_ENTRIES: [u32; EXPECTED] = [1300, 5500, 10_600, 19_500, 33_200, 49_600, 61_700, 65_300, 65_400];
const EXPECTED: usize = 9;

/// Words of the models.
pub(super) const WORDS: usize = BY_DENSITY + BY_DISTANCE + BY_ROW + BY_ROWS;

/// The running mean of entries has sixteen binary places, and forgets a 32nd part at each coordinate.
const ONE: u32 = 1 << 16;
const FORGET: u32 = 5;

/// Larger distances to the last entry are treated alike.
const MOST_SINCE: u32 = 1023;

/// Rows since the last entry of a column, capped at this. In a column without an entry, the row of the last
/// entry is [`NEVER`], which reaches the cap.
const LONG_AGO: u32 = 16;
const NEVER: u32 = 1 << 31;

/// All models that learn in a section.
pub(super) struct CoordinateModels<'m> {
    words: &'m mut [Word; BY_DENSITY + BY_DISTANCE + BY_ROW],
    by_rows: &'m mut [Word; BY_ROWS],
    weights: LearningWeights<8>,
}

impl<'m> CoordinateModels<'m> {
    /// Models that have seen nothing yet, in [`WORDS`] words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (words, memory) = memory.split_first_chunk_mut()?;
        let (by_rows, _) = memory.split_first_chunk_mut()?;
        words.fill(0);
        *by_rows = core::array::from_fn(|case| seen(ROW_HAS_ENTRIES[case % EXPECTED], 1));
        Some(Self { words, by_rows, weights: Default::default() })
    }
}

/// Words of the columns of a unit of `len` elements.
pub(super) fn column_words(len: usize) -> usize {
    2 * MAX_ROW.min(len / 2).max(PLAIN_ROW)
}

/// What the models see while they process the coordinates of a part.
pub(super) struct Coordinates<'m> {
    /// Two words for each column: eight times the number of its entries, plus the digits of that number; and
    /// the row of its last entry, counted among the rows with entries, or [`NEVER`].
    columns: &'m mut [[u32; 2]],
    /// Column of the next coordinate.
    column: usize,
    next: u32,
    /// Coordinates of the part not yet passed, and its entries among them.
    span: u32,
    left: u32,
    /// Rows begun, and how many of them have entries; whether the last three had any.
    begun: u32,
    full: u32,
    last_rows: u32,
    recent: u32,
    /// Coordinates since the last entry.
    since: u32,
}

impl<'m> Coordinates<'m> {
    /// For a part with `k` > 0 entries. `memory` has [`column_words`].
    pub(super) fn new(memory: &'m mut [u32], part: &Part, k: usize) -> Self {
        let len = part.len();
        let row = part.row.filter(|&row| (MIN_ROW..=MAX_ROW).contains(&row) && row <= len / 2);
        let columns = &mut memory.as_chunks_mut().0[..row.unwrap_or(PLAIN_ROW)];
        columns.fill([0, NEVER]);
        Self {
            columns,
            column: if row.is_some() { part.into_row } else { 0 },
            next: part.start as u32,
            span: len as u32,
            left: k as u32,
            begun: 0,
            full: 0,
            last_rows: 0,
            recent: ((k as u64 * u64::from(ONE)) / len as u64) as u32,
            since: 0,
        }
    }

    /// Codes the positions, which are all positions of the part. It stays out of line so that the loop has
    /// the registers.
    #[inline(never)]
    pub(super) fn code(
        mut self,
        coder: &mut impl BitCoder,
        models: &mut CoordinateModels<'_>,
        mut indices: &mut [u32],
    ) -> Result<(), DecodeError> {
        while let Some(&first) = indices.first() {
            let row = ((self.columns.len() - self.column) as u32).min(self.span);
            self.begun += 1;
            let can_be_empty = self.left <= self.span - row;
            let before = self.left;
            if can_be_empty && !self.has_entries(coder, models, row, first.wrapping_sub(self.next) < row) {
                self.pass(row);
            } else {
                self.row(coder, models, row, indices)?;
            }
            let entries = before - self.left;
            self.last_rows = self.last_rows << 1 | u32::from(entries > 0);
            self.full += u32::from(entries > 0);
            indices = &mut indices[entries as usize..];
            self.column = 0;
        }
        Ok(())
    }

    /// Codes whether the next `row` coordinates have entries.
    fn has_entries(
        &self,
        coder: &mut impl BitCoder,
        models: &mut CoordinateModels<'_>,
        row: u32,
        bit: bool,
    ) -> bool {
        let expected = 16 * u64::from(self.left) * u64::from(row) / u64::from(self.span);
        let expected = (64 - expected.leading_zeros() as usize).min(EXPECTED - 1);
        decide_alone(coder, &mut models.by_rows[self.last_rows as usize % 8 * EXPECTED + expected], bit)
    }

    /// Passes a row without entries.
    fn pass(&mut self, row: u32) {
        self.next += row;
        self.span -= row;
        self.since += row;
        self.recent >>= 2;
    }

    /// Codes the coordinates of a row; the first of `indices` are in it.
    fn row(
        &mut self,
        coder: &mut impl BitCoder,
        models: &mut CoordinateModels<'_>,
        row: u32,
        indices: &mut [u32],
    ) -> Result<(), DecodeError> {
        // Rows without entries are passed at once, so the others are denser.
        let denser = log(self.begun) - log(self.full + 1);
        let mut expected = prior(self.left, self.span, denser);
        let Self { mut next, mut span, mut left, mut recent, mut since, full, .. } = *self;
        let first_row = u32::from(full == 0) * 2;
        let (mut like, mut like_digits, mut unlike) = (0u32, 0u32, 0u32);
        let mut indices = indices.iter_mut();
        let mut index = indices.next();
        for column in &mut self.columns[self.column..][..row as usize] {
            let Some(position) = &mut index else { break };
            let [seen, last] = *column;
            let ago = full.wrapping_sub(last).min(LONG_AGO);
            let above = u32::from(ago == 0);
            let case = first_row | above;
            let by_density = (seen % 8 * 16 + digits_of(recent >> 7)) * 2 + u32::from(since == 0);
            let by_distance = digits_of(since.min(MOST_SINCE)) * 32 + ago;
            let by_row = case * 32 + unlike * 8 + like_digits;
            let numbers = [
                by_density as usize % BY_DENSITY,
                BY_DENSITY + by_distance as usize % BY_DISTANCE,
                BY_DENSITY + BY_DISTANCE + by_row as usize % BY_ROW,
            ];
            let set = case * 2 + u32::from(seen > 0);
            let bit = decide(
                coder,
                expected,
                models.words,
                numbers,
                &mut models.weights,
                set as usize,
                **position == next,
            );
            recent -= recent >> FORGET;
            span -= 1;
            since += 1;
            unlike = (unlike + (u32::from(bit) ^ above)).min(3);
            if bit {
                **position = next;
                index = indices.next();
                let count = seen / 8 + 1;
                *column = [(count * 8) | up_to(7, count), full + 1];
                like += above;
                like_digits = up_to(7, like);
                recent += ONE >> FORGET;
                since = 0;
                left -= 1;
                expected = prior(left, span, denser);
            }
            if left > span {
                return Err(DecodeError::IndexOutOfRange);
            }
            next += 1;
        }
        (self.next, self.span, self.left) = (next, span, left);
        (self.recent, self.since) = (recent, since);
        Ok(())
    }
}

/// Digits of the numbers below 1024.
static DIGITS: [u8; 1 << 10] = {
    let (mut digits, mut value) = ([0; 1 << 10], 1);
    while value < digits.len() {
        digits[value] = value.ilog2() as u8 + 1;
        value += 1;
    }
    digits
};

/// Digits of a number below 1024.
#[inline(always)]
fn digits_of(value: u32) -> u32 {
    u32::from(DIGITS[value as usize % DIGITS.len()])
}

/// Digits of a number, at most `most`, and ten at most.
#[inline(always)]
fn up_to(most: u32, value: u32) -> u32 {
    digits_of(value.min((1 << most) - 1))
}

/// The prior for `left` entries among `span` coordinates, with `denser` added to the logarithm of its odds.
fn prior(left: u32, span: u32, denser: i32) -> Prior {
    Prior::new(log(left) - log(span - left) + denser)
}
