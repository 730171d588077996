//! The one loop of the autoencoder: a product of two matrices, added to a third.

use gradwire::arithmetic::vectorised;

/// A matrix in a slice, whose element (i, j) is at `i * row + j * column`. Rows may overlap: the inputs that
/// the outputs of a convolution see are such rows.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows that begin every `row` elements.
    pub(crate) fn rows(values: &'a [f32], row: usize) -> Self {
        Self { values, row, column: 1 }
    }

    /// The matrix whose columns are these rows.
    pub(crate) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}

/// Rows and columns of the result, and the terms of each sum.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) rows: usize,
    pub(crate) terms: usize,
    pub(crate) columns: usize,
}

/// Rows and columns of a tile: as many sums as the registers of AVX2 hold beside the factors.
const TILE_ROWS: usize = 6;
const TILE_COLUMNS: usize = 16;

/// Adds a·b to `sums`, whose rows have `extent.columns` elements. The columns of `b` lie side by side.
///
/// # Determinism
/// Each sum adds its terms one after the other, so its bits depend neither on the tiles nor on the machine.
pub(crate) fn add_product(a: Matrix<'_>, b: Matrix<'_>, extent: Extent, sums: &mut [f32]) {
    assert_eq!(b.column, 1, "the columns of the second factor lie side by side");
    vectorised(
        #[inline(always)]
        || {
            let rows_in_tiles = extent.rows - extent.rows % TILE_ROWS;
            for row in (0..rows_in_tiles).step_by(TILE_ROWS) {
                strip::<TILE_ROWS>(a, b, extent, row, sums);
            }
            for row in rows_in_tiles..extent.rows {
                strip::<1>(a, b, extent, row, sums);
            }
        },
    );
}

/// The tiles of `ROWS` rows.
#[inline(always)]
fn strip<const ROWS: usize>(a: Matrix<'_>, b: Matrix<'_>, extent: Extent, row: usize, sums: &mut [f32]) {
    let columns_in_tiles = extent.columns - extent.columns % TILE_COLUMNS;
    for column in (0..columns_in_tiles).step_by(TILE_COLUMNS) {
        tile::<ROWS, TILE_COLUMNS>(a, b, extent, [row, column], sums);
    }
    for column in columns_in_tiles..extent.columns {
        tile::<ROWS, 1>(a, b, extent, [row, column], sums);
    }
}

#[inline(always)]
fn tile<const ROWS: usize, const COLUMNS: usize>(
    a: Matrix<'_>,
    b: Matrix<'_>,
    extent: Extent,
    [row, column]: [usize; 2],
    sums: &mut [f32],
) {
    let at = |i: usize| (row + i) * extent.columns + column;
    let mut tile = [[0.0; COLUMNS]; ROWS];
    for (i, own) in tile.iter_mut().enumerate() {
        own.copy_from_slice(&sums[at(i)..][..COLUMNS]);
    }
    let left: [&[f32]; ROWS] = std::array::from_fn(|i| &a.values[(row + i) * a.row..]);
    for term in 0..extent.terms {
        let right = &b.values[term * b.row + column..][..COLUMNS];
        for (own, left) in tile.iter_mut().zip(left) {
            let factor = left[term * a.column];
            own.iter_mut().zip(right).for_each(|(sum, right)| *sum += factor * right);
        }
    }
    for (i, own) in tile.iter().enumerate() {
        sums[at(i)..][..COLUMNS].copy_from_slice(own);
    }
}

/// The matrix of `rows` rows with rows and columns exchanged, without gaps.
pub(crate) fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    (0..values.len()).map(|at| values[at % rows * columns + at / rows]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all shapes around a tile, with rows that overlap and with a transposed factor.
    #[test]
    fn every_sum_adds_its_terms_in_order() {
        let values: Vec<f32> = (0..4000).map(|at| (at * at % 101) as f32 * 0.37 - 17.0).collect();
        for rows in [1, 5, 6, 7, 13] {
            for columns in [1, 3, 15, 16, 17, 33] {
                for terms in [0, 1, 9] {
                    let extent = Extent { rows, terms, columns };
                    let overlapping = Matrix::rows(&values, terms.div_ceil(2));
                    let upright = Matrix::rows(&values[7..], rows + 2).transposed();
                    for a in [overlapping, upright] {
                        let b = Matrix::rows(&values[11..], columns + 1);
                        let mut sums = values[5..][..rows * columns].to_vec();
                        let mut expected = sums.clone();
                        for (at, sum) in expected.iter_mut().enumerate() {
                            let (i, j) = (at / columns, at % columns);
                            for t in 0..terms {
                                *sum += a.values[i * a.row + t * a.column] * b.values[t * b.row + j];
                            }
                        }
                        add_product(a, b, extent, &mut sums);
                        assert!(sums == expected, "{rows} x {terms} x {columns}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_transposed_matrix_has_its_rows_as_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
