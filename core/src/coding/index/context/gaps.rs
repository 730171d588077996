//! The gaps between the entries of one tensor.

use super::columns::Columns;
use super::counts::digits;
use super::models::{CASES, GapModels, Known};
use crate::coding::entropy::range::BitCoder;
use crate::error::DecodeError;
use crate::gradient::layout::Part;

/// The entry is in the next column that had an entry before.
const AT_COLUMN: u32 = 0;

/// More digits than this are counted one by one. A symbol s below this stands for a gap of s − 1 digits.
const MANY_DIGITS: u32 = 15;

/// The running mean of the digits of gaps has four binary places.
const PLACES: u32 = 4;

/// What the models see while they process the entries of a part.
pub(super) struct Gaps<'m> {
    columns: Option<Columns<'m>>,
    /// Column of the next coordinate.
    column: u32,
    /// Coordinates of the part not yet passed.
    span: u32,
    next: u32,
    left: u32,
    recent: u32,
}

impl<'m> Gaps<'m> {
    /// For a part with `k` > 0 entries.
    pub(super) fn new(part: &Part, columns: Option<Columns<'m>>, k: usize) -> Self {
        let width = columns.as_ref().map_or(1, Columns::width);
        Self {
            columns,
            column: part.into_row as u32 % width,
            span: part.len() as u32,
            next: part.start as u32,
            left: k as u32,
            recent: digits((part.len() / k) as u32) << PLACES,
        }
    }

    /// Codes the positions, which are all of the part's.
    pub(super) fn code(
        mut self,
        coder: &mut impl BitCoder,
        models: &mut GapModels<'_>,
        indices: &mut [u32],
    ) -> Result<(), DecodeError> {
        for index in indices {
            let gap = self.gap(coder, models, index.wrapping_sub(self.next))?;
            *index = self.next + gap;
            self.pass(gap);
        }
        Ok(())
    }

    #[inline]
    fn gap(
        &self,
        coder: &mut impl BitCoder,
        models: &mut GapModels<'_>,
        gap: u32,
    ) -> Result<u32, DecodeError> {
        let distance = self.columns.as_ref().and_then(|columns| columns.distance(self.column));
        let distance = distance.filter(|&distance| distance < self.span);
        let symbol = match distance {
            Some(distance) if distance == gap => AT_COLUMN,
            _ => (digits(gap) + 1).min(MANY_DIGITS),
        };
        let symbol = models.symbol(coder, self.known(distance), symbol);
        let gap = match symbol {
            AT_COLUMN => distance.ok_or(DecodeError::IndexOutOfRange)?,
            _ => {
                let digits = self.all_digits(coder, symbol, gap);
                of_digits(coder, models, digits, gap)
            }
        };
        // Every entry after this one needs a coordinate.
        if gap <= self.span - self.left { Ok(gap) } else { Err(DecodeError::IndexOutOfRange) }
    }

    #[inline]
    fn known(&self, distance: Option<u32>) -> Known {
        let expected = digits(self.span) + 1 - digits(self.left);
        let recent = (self.recent + (1 << (PLACES - 1))) >> PLACES;
        Known {
            expected: (expected as usize).min(CASES - 1),
            column: distance.map_or(CASES - 1, |distance| (digits(distance) as usize).min(CASES - 2)),
            recent: (recent as usize).min(CASES - 1),
        }
    }

    /// The number of digits of a gap: those beyond what a symbol expresses are counted one by one.
    #[inline]
    fn all_digits(&self, coder: &mut impl BitCoder, symbol: u32, gap: u32) -> u32 {
        let mut all = symbol - 1;
        if symbol == MANY_DIGITS {
            while all < digits(self.span) && coder.bit(1 << 15, digits(gap) > all) {
                all += 1;
            }
        }
        all
    }

    /// Moves past an entry.
    #[inline]
    fn pass(&mut self, gap: u32) {
        if let Some(columns) = &mut self.columns {
            let mut column = self.column + gap;
            if column >= columns.width() {
                column %= columns.width();
            }
            columns.insert(column);
            self.column = if column + 1 == columns.width() { 0 } else { column + 1 };
        }
        self.recent = (self.recent + (digits(gap) << PLACES)) >> 1;
        self.next += gap + 1;
        self.span -= gap + 1;
        self.left -= 1;
    }
}

/// Codes a gap of `digits` digits: the second is predictable to some degree, the others are not.
#[inline]
fn of_digits(coder: &mut impl BitCoder, models: &mut GapModels<'_>, digits: u32, gap: u32) -> u32 {
    if digits < 2 {
        return digits;
    }
    let others = digits - 2;
    let second = models.second_digit(coder, digits, gap >> others & 1 == 1);
    (2 | u32::from(second)) << others | coder.bits(others, gap & ((1 << others) - 1))
}
