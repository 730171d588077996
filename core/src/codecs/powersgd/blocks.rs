//! Which parts of a unit are matrices, and where their factors are stored.

use super::PowerSgd;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use core::ops::Range;

/// The factors of one matrix: P of rows × rank, Q of cols × rank, column after column.
#[derive(Clone, Debug)]
pub(super) struct Factors {
    pub(super) rows: usize,
    pub(super) cols: usize,
    rank: usize,
    /// Where Q is stored among the factors of the unit.
    pub(super) q: Range<usize>,
}

impl Factors {
    /// The factors of a tensor of this shape, if compressing it pays: `shape[0]` rows, all other dimensions
    /// as columns.
    pub(super) fn of(codec: &PowerSgd, shape: &[usize]) -> Option<Self> {
        let &[rows, _, ..] = shape else { return None };
        let len = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        let cols = len.checked_div(rows)?;
        let rank = usize::from(codec.rank).min(rows).min(cols);
        // Wide: rank, sum and rate are below 2⁸, 2⁶⁵ and 2³².
        let factors = rank as u128 * (rows as u128 + cols as u128);
        let is_worth_it = factors * u128::from(codec.min_rate) < len as u128;
        is_worth_it.then_some(Self { rows, cols, rank, q: 0..rank * cols })
    }

    pub(super) fn q_len(&self) -> usize {
        self.q.len()
    }
}

/// A matrix that is compressed, or a tensor, or a part of one, that is sent whole.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Its coordinates in the unit.
    pub(super) range: Range<usize>,
    /// Its elements in the first payload: P, or all of its coordinates.
    pub(super) first: Range<usize>,
    pub(super) factors: Option<Factors>,
}

/// The tensors of a unit, in order.
#[derive(Clone)]
pub(super) struct Blocks<'l> {
    codec: PowerSgd,
    layout: &'l LayoutRef<'l>,
    unit: Unit,
    is_whole: bool,
    tensor: usize,
    first: usize,
    q: usize,
}

impl<'l> Blocks<'l> {
    pub(super) fn new(codec: PowerSgd, layout: &'l LayoutRef<'l>, unit: Unit, is_whole: bool) -> Self {
        Self { codec, layout, unit, is_whole, tensor: 0, first: 0, q: 0 }
    }

    /// Elements of the Q of all matrices.
    pub(super) fn q_len(self) -> usize {
        self.matrices().map(|(_, factors)| factors.q_len()).sum()
    }

    /// The tensors that are compressed.
    pub(super) fn matrices(self) -> impl Iterator<Item = (Block, Factors)> {
        self.filter_map(|mut block| block.factors.take().map(|factors| (block, factors)))
    }

    fn block(&mut self, tensor: &TensorRef<'_>) -> Option<Block> {
        let whole = tensor.offset..tensor.offset + tensor.checked_len()?;
        let unit = self.unit.range();
        let (start, end) = (whole.start.max(unit.start), whole.end.min(unit.end));
        if start >= end {
            return None;
        }
        let is_matrix = !self.is_whole && (start..end) == whole;
        let factors = if is_matrix { Factors::of(&self.codec, tensor.shape) } else { None };
        let sent = factors.as_ref().map_or(end - start, |factors| factors.rank * factors.rows);
        let factors = factors.map(|factors| Factors { q: self.q..self.q + factors.q_len(), ..factors });
        self.q = factors.as_ref().map_or(self.q, |factors| factors.q.end);
        let first = self.first..self.first + sent;
        self.first = first.end;
        Some(Block { range: start - unit.start..end - unit.start, first, factors })
    }
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let layout = self.layout;
        loop {
            let tensor = layout.tensor(self.tensor)?;
            self.tensor += 1;
            if let Some(block) = self.block(&tensor) {
                return Some(block);
            }
        }
    }
}
