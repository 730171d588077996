//! The columns of a matrix that had an entry before.

use crate::gradient::layout::Part;

/// Columns of the widest matrix whose columns are remembered.
const MAX_WIDTH: usize = 1 << 16;

/// One bit a column, and a summary: one bit for each word of these, which is set if the word is not 0.
pub(super) struct Columns<'m> {
    words: &'m mut [u32],
    summary: &'m mut [u32],
    width: u32,
}

/// Words of the columns and of their summary, for matrices of up to `width` columns.
fn split(width: usize) -> (usize, usize) {
    (width.div_ceil(32), width.div_ceil(32 * 32))
}

impl<'m> Columns<'m> {
    /// Words of memory for the matrices of a unit of `len` elements; a matrix of one row needs none.
    pub(super) fn words(len: usize) -> usize {
        let (words, summary) = split(MAX_WIDTH.min(len / 2));
        words + summary
    }

    /// An empty set of columns of `part`; `None` if it is not a matrix, or has only one row.
    pub(super) fn new(memory: &'m mut [u32], part: &Part) -> Option<Self> {
        let width =
            part.width.filter(|&width| (1..=MAX_WIDTH).contains(&width) && width <= part.len() / 2)?;
        let (words, summary) = split(width);
        let (words, memory) = memory.split_at_mut(words);
        let summary = &mut memory[..summary];
        words.fill(0);
        summary.fill(0);
        Some(Self { words, summary, width: width as u32 })
    }

    pub(super) fn width(&self) -> u32 {
        self.width
    }

    pub(super) fn insert(&mut self, column: u32) {
        self.words[column as usize / 32] |= 1 << (column % 32);
        self.summary[column as usize / 1024] |= 1 << (column / 32 % 32);
    }

    /// The first column from `column` on.
    #[inline]
    fn next(&self, column: u32) -> Option<u32> {
        let word = column as usize / 32;
        let here = self.words[word] & u32::MAX << (column % 32);
        if here != 0 {
            return Some(word as u32 * 32 + here.trailing_zeros());
        }
        let word = first_bit(self.summary, word + 1)?;
        Some(word as u32 * 32 + self.words[word].trailing_zeros())
    }

    /// The number of coordinates from `column` to the next such column, in this row or the next.
    #[inline]
    pub(super) fn distance(&self, column: u32) -> Option<u32> {
        match self.next(column) {
            Some(next) => Some(next - column),
            None => Some(self.width - column + self.next(0)?),
        }
    }
}

/// The first bit that is set in `words`, from bit `from` on.
fn first_bit(words: &[u32], from: usize) -> Option<usize> {
    let start = from / 32;
    let mut mask = u32::MAX << (from % 32);
    for (i, &word) in words.iter().enumerate().skip(start) {
        if word & mask != 0 {
            return Some(i * 32 + (word & mask).trailing_zeros() as usize);
        }
        mask = u32::MAX;
    }
    None
}
