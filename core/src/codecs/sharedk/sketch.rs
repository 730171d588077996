//! The size of a count-sketch, and its hashes.

use crate::kernels::{self, Isa, MAX_SKETCH_ROWS, SKETCH_BLOCK};
use crate::rng::Stream;

/// Words of the keys of all rows.
pub(super) const KEY_WORDS: usize = 2 * MAX_SKETCH_ROWS;

/// The size of a count-sketch: its rows, and how many columns there are for each coordinate that is to be
/// found.
///
/// # Source
/// Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams (ICALP 2002). One hash serves 16
/// neighbours, which have cells of their own; any two others share a cell as likely as under hashes of their
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SketchSize {
    rows: u8,
    columns: u8,
}

impl SketchSize {
    /// The most rows.
    pub const MAX_ROWS: u8 = MAX_SKETCH_ROWS as u8;
    /// The size by default. With several candidates, one row finds about as much as several of as many cells.
    pub const DEFAULT: Self = Self { rows: 1, columns: 1 };

    /// `rows` from 1 to [`MAX_ROWS`](Self::MAX_ROWS), `columns` above 0, else `None`.
    #[must_use]
    pub fn new(rows: u8, columns: u8) -> Option<Self> {
        ((1..=Self::MAX_ROWS).contains(&rows) && columns > 0).then_some(Self { rows, columns })
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u8 {
        self.rows
    }

    /// Columns for each coordinate that is to be found.
    #[must_use]
    pub fn columns(&self) -> u8 {
        self.columns
    }

    /// Cells of the sketch in which `k` coordinates are to be found: the columns are whole blocks of 16.
    pub(super) fn cells(self, k: usize) -> usize {
        let columns = k.saturating_mul(usize::from(self.columns)).div_ceil(SKETCH_BLOCK).max(1);
        columns.saturating_mul(SKETCH_BLOCK).saturating_mul(usize::from(self.rows))
    }

    /// Writes the keys of the rows: draw j of the stream is that of row j.
    pub(super) fn draw_keys(self, stream: &Stream, keys: &mut [u32]) {
        for (row, key) in (0..).zip(keys.as_chunks_mut().0).take(usize::from(self.rows)) {
            let draw = stream.u64_at(row);
            *key = [draw as u32, (draw >> 32) as u32];
        }
    }

    fn keys(self, words: &[u32]) -> [u64; MAX_SKETCH_ROWS] {
        let mut keys = [0; MAX_SKETCH_ROWS];
        for (key, &[low, high]) in keys.iter_mut().zip(words.as_chunks().0) {
            *key = u64::from(low) | u64::from(high) << 32;
        }
        keys
    }

    /// Makes `table` the sketch of the values.
    pub(super) fn fill(self, p: &[u32], keys: &[u32], table: &mut [f32]) {
        table.fill(0.0);
        let columns = table.len() / usize::from(self.rows);
        for (row, key) in table.chunks_exact_mut(columns).zip(self.keys(keys)) {
            kernels::sketch::insert(Isa::best(), p, key, row);
        }
    }

    /// Writes what a sketch says of all values.
    pub(super) fn estimate(self, table: &[f32], keys: &[u32], estimates: &mut [u32]) {
        let keys = &self.keys(keys)[..usize::from(self.rows)];
        kernels::sketch::estimate(Isa::best(), table, keys, estimates);
    }
}
