//! Products of matrices that lie row by row in vectors, by the kernels of the tensor library.

use burn::tensor::{Device, Tensor, TensorData};

/// A matrix for products. A transposed one is a view; no number is copied.
pub(super) type Matrix = Tensor<2>;

/// Takes the vector over as a matrix of so many columns.
///
/// # Panics
///
/// If the length is not a multiple of `columns`.
pub(super) fn matrix(values: Vec<f32>, columns: usize) -> Matrix {
    assert!(values.len().is_multiple_of(columns), "{} values in rows of {columns}", values.len());
    let rows = values.len() / columns;
    Tensor::from_data(TensorData::new(values, [rows, columns]), &Device::flex())
}

/// The numbers of a matrix, row by row.
pub(super) fn values(matrix: Matrix) -> Vec<f32> {
    matrix.into_data().try_into_vec().expect("the backend computes in f32")
}

/// `a · b`, row by row.
pub(super) fn product(a: &Matrix, b: &Matrix) -> Vec<f32> {
    values(a.clone().matmul(b.clone()))
}

/// Adds `a · b` to `sum`.
pub(super) fn add_product(sum: &mut [f32], a: &Matrix, b: &Matrix) {
    add(sum, &product(a, b));
}

/// Adds `values` to `sum`, number by number.
pub(super) fn add(sum: &mut [f32], values: &[f32]) {
    assert_eq!(sum.len(), values.len(), "sums of different lengths");
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Adds each of the rows to the row `sum`.
pub(super) fn add_rows(sum: &mut [f32], rows: &[f32]) {
    rows.chunks_exact(sum.len()).for_each(|row| add(sum, row));
}
