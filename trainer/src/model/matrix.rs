//! Products of matrices that lie row by row in vectors, by the kernels of the tensor library.

use core::ops::{Deref, DerefMut};

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

/// The numbers of a product, row by row, where the tensor library wrote them. A vector would be a copy.
pub(super) struct Product(TensorData);

impl Product {
    /// The product as a factor of another one.
    pub(super) fn into_matrix(self) -> Matrix {
        Tensor::from_data(self.0, &Device::flex())
    }
}

impl Deref for Product {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_slice().expect("the backend computes in f32")
    }
}

impl DerefMut for Product {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.as_mut_slice().expect("the backend computes in f32")
    }
}

/// `a · b`.
pub(super) fn product(a: &Matrix, b: &Matrix) -> Product {
    Product(a.clone().matmul(b.clone()).into_data())
}

/// Adds `a · b` to `sum`.
pub(super) fn add_product(sum: &mut [f32], a: &Matrix, b: &Matrix) {
    add(sum, &product(a, b));
}

/// Adds `values` to `sum`, number by number.
#[inline(always)]
pub(super) fn add(sum: &mut [f32], values: &[f32]) {
    assert_eq!(sum.len(), values.len(), "sums of different lengths");
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Adds each of the rows to the row `sum`.
pub(super) fn add_rows(sum: &mut [f32], rows: &[f32]) {
    rows.chunks_exact(sum.len()).for_each(|row| add(sum, row));
}
