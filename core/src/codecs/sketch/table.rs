//! The cells of a count-sketch, and their hashes.

use crate::kernels::{self, Isa, MAX_SKETCH_ROWS, SKETCH_BLOCK};
use crate::rng::Stream;

/// Words of the keys of all rows.
pub(crate) const KEY_WORDS: usize = 2 * MAX_SKETCH_ROWS;

/// Rows of equally many columns. Each row hashes by a key of its own.
///
/// # Source
/// Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams (ICALP 2002). One hash serves 16
/// neighbours, which have cells of their own; any two others share a cell as likely as under hashes of their
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    rows: usize,
    columns: usize,
}

impl Table {
    /// Whole blocks of columns, at least one: as many as hold `columns`.
    pub(crate) fn with_columns(rows: u8, columns: usize) -> Self {
        let blocks = columns.div_ceil(SKETCH_BLOCK).max(1);
        Self { rows: rows.into(), columns: blocks.saturating_mul(SKETCH_BLOCK) }
    }

    /// Whole blocks of columns, at least one: no more than `cells` hold.
    pub(crate) fn with_cells(rows: u8, cells: usize) -> Self {
        Self::with_columns(rows, cells / Self::least(rows) * SKETCH_BLOCK)
    }

    /// Cells of the smallest table.
    pub(crate) fn least(rows: u8) -> usize {
        usize::from(rows) * SKETCH_BLOCK
    }

    /// Cells of all rows.
    pub(crate) fn cells(self) -> usize {
        self.columns.saturating_mul(self.rows)
    }

    /// Writes the keys of the rows: draw j of the stream is that of row j.
    pub(crate) fn draw_keys(self, stream: &Stream, keys: &mut [u32]) {
        for (row, key) in (0..).zip(keys.as_chunks_mut().0).take(self.rows) {
            let draw = stream.u64_at(row);
            *key = [draw as u32, (draw >> 32) as u32];
        }
    }

    fn keys(words: &[u32]) -> [u64; MAX_SKETCH_ROWS] {
        let mut keys = [0; MAX_SKETCH_ROWS];
        for (key, &[low, high]) in keys.iter_mut().zip(words.as_chunks().0) {
            *key = u64::from(low) | u64::from(high) << 32;
        }
        keys
    }

    /// Makes `cells` the sketch of the values.
    pub(crate) fn fill(self, p: &[u32], keys: &[u32], cells: &mut [f32]) {
        cells.fill(0.0);
        kernels::sketch::insert(Isa::best(), p, &Self::keys(keys)[..self.rows], cells);
    }

    /// Writes what a sketch says of all values: the lower median over the rows.
    pub(crate) fn estimate(self, cells: &[f32], keys: &[u32], estimates: &mut [u32]) {
        let keys = &Self::keys(keys)[..self.rows];
        kernels::sketch::estimate(Isa::best(), cells, keys, estimates);
    }

    /// Empties the cells of a coordinate.
    pub(crate) fn forget(self, index: usize, keys: &[u32], cells: &mut [f32]) {
        for (row, key) in cells.chunks_exact_mut(self.columns).zip(Self::keys(keys)) {
            row[kernels::sketch_cell(key, index, self.columns)] = 0.0;
        }
    }
}
