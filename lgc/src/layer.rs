//! One layer of the autoencoder: a convolution over positions, or its transpose.
//!
//! Activations have all channels of a position side by side, so what an output sees is one row: the
//! convolution is a matrix product whose rows overlap.

use crate::product::{Extent, Matrix, add_product, transposed};

/// A layer without padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    /// Channels in and out.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Whether it is a transposed convolution: outputs are then longer than inputs.
    pub(crate) is_up: bool,
}

impl Layer {
    /// A convolution.
    pub(crate) const fn down(from: usize, to: usize, kernel: usize, stride: usize) -> Self {
        Self { from, to, kernel, stride, is_up: false }
    }

    /// A transposed convolution.
    pub(crate) const fn up(from: usize, to: usize, kernel: usize, stride: usize) -> Self {
        Self { is_up: true, ..Self::down(from, to, kernel, stride) }
    }

    /// Number of its parameters: the weights, and then a bias for each channel. Weights of a convolution are
    /// in the order (offset in the kernel, channel in, channel out), those of a transposed one in the order
    /// (channel in, offset in the kernel, channel out).
    pub(crate) const fn params(&self) -> usize {
        self.weights() + self.to
    }

    const fn weights(&self) -> usize {
        self.from * self.to * self.kernel
    }

    /// Positions out, of so many in. `None` if these are too few.
    pub(crate) fn positions(&self, len: usize) -> Option<usize> {
        if self.is_up {
            Some(len.checked_sub(1)? * self.stride + self.kernel)
        } else {
            Some(len.checked_sub(self.kernel)? / self.stride + 1)
        }
    }

    /// About how many products each output adds up.
    pub(crate) fn fan_in(&self) -> usize {
        if self.is_up { self.from * self.kernel / self.stride } else { self.from * self.kernel }
    }

    /// The outputs.
    pub(crate) fn forward(&self, params: &[f32], input: &[f32]) -> Vec<f32> {
        self.apply(params, &params[self.weights()..], input)
    }

    /// The outputs without the biases: by how much they change when the input changes by this.
    pub(crate) fn forward_change(&self, params: &[f32], change: &[f32]) -> Vec<f32> {
        self.apply(params, &vec![0.0; self.to], change)
    }

    fn apply(&self, params: &[f32], biases: &[f32], input: &[f32]) -> Vec<f32> {
        let (weights, len) = (&params[..self.weights()], input.len() / self.from);
        let positions = self.positions(len).expect("enough positions");
        let mut out = biases.repeat(positions);
        if self.is_up {
            let mut windows = vec![0.0; len * self.kernel * self.to];
            let columns = self.kernel * self.to;
            let extent = Extent { rows: len, terms: self.from, columns };
            let (input, weights) = (Matrix::rows(input, self.from), Matrix::rows(weights, columns));
            add_product(input, weights, extent, &mut windows);
            self.fold(&windows, self.to, &mut out);
        } else {
            let extent = Extent { rows: positions, terms: self.kernel * self.from, columns: self.to };
            let weights = Matrix::rows(weights, self.to);
            add_product(self.windows(input, self.from), weights, extent, &mut out);
        }
        out
    }

    /// From the loss's gradient with respect to the outputs: adds the gradient with respect to the
    /// parameters to `grads`, and returns the one with respect to the input.
    pub(crate) fn backward(
        &self,
        params: &[f32],
        input: &[f32],
        outputs: &[f32],
        grads: &mut [f32],
    ) -> Vec<f32> {
        let (weights, len) = (&params[..self.weights()], input.len() / self.from);
        let (grads, biases) = grads.split_at_mut(self.weights());
        for position in outputs.chunks_exact(self.to) {
            biases.iter_mut().zip(position).for_each(|(sum, value)| *sum += value);
        }
        let mut inputs = vec![0.0; input.len()];
        if self.is_up {
            let (seen, columns) = (self.windows(outputs, self.to), self.kernel * self.to);
            let extent = Extent { rows: self.from, terms: len, columns };
            add_product(Matrix::rows(input, self.from).transposed(), seen, extent, grads);
            let extent = Extent { rows: len, terms: columns, columns: self.from };
            let back = transposed(weights, self.from);
            add_product(seen, Matrix::rows(&back, self.from), extent, &mut inputs);
        } else {
            let (rows, columns) = (outputs.len() / self.to, self.kernel * self.from);
            let outputs = Matrix::rows(outputs, self.to);
            let extent = Extent { rows: columns, terms: rows, columns: self.to };
            add_product(self.windows(input, self.from).transposed(), outputs, extent, grads);
            let mut windows = vec![0.0; rows * columns];
            let back = transposed(weights, columns);
            let extent = Extent { rows, terms: self.to, columns };
            add_product(outputs, Matrix::rows(&back, columns), extent, &mut windows);
            self.fold(&windows, self.from, &mut inputs);
        }
        inputs
    }

    /// What the kernel covers at each of its places, a row each.
    fn windows<'a>(&self, long: &'a [f32], channels: usize) -> Matrix<'a> {
        Matrix::rows(long, self.stride * channels)
    }

    /// Adds rows to where the kernel covers at each of its places.
    fn fold(&self, windows: &[f32], channels: usize, long: &mut [f32]) {
        for (place, window) in windows.chunks_exact(self.kernel * channels).enumerate() {
            let covered = &mut long[place * self.stride * channels..][..window.len()];
            covered.iter_mut().zip(window).for_each(|(sum, value)| *sum += value);
        }
    }
}
