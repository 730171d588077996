//! The size of the sketch in which coordinates are sought.

use crate::codecs::sketch::Table;
use crate::kernels::MAX_SKETCH_ROWS;

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

    /// The sketch in which `k` coordinates are to be found.
    pub(super) fn table(self, k: usize) -> Table {
        Table::with_columns(self.rows, k.saturating_mul(usize::from(self.columns)))
    }
}
