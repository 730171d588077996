//! 3×3 convolutions of images with a border of zeros, forward and backward, as products of matrices.
//!
//! ```text
//! patches = the 9 · inputs values around each place        rows: one per place of the output
//! out = patches · kernel                                   kernel: [row, column, input, output]
//! ```
//!
//! Channels lie side by side, so a row of a patch is one piece of memory: three places with all their
//! channels. Patches are made for some images at a time and never kept, because they take nine times the
//! memory of the images; the backward pass makes them again.

use gradwire::arithmetic::vectorised;

use super::super::matrix::{Matrix, add, add_product, matrix, product};

/// Places in a patch.
const PLACES: usize = 9;

/// Places of the output that are computed at once. Their patches stay in the processor's second cache.
const PLACES_AT_ONCE: usize = 1024;

/// Images one after the other, row by row, place by place; the channels of a place side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) images: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
}

impl Shape {
    /// Places of an image.
    pub(super) fn places(&self) -> usize {
        self.height * self.width
    }

    /// Values of an image.
    pub(super) fn image_len(&self) -> usize {
        self.places() * self.channels
    }

    /// Values of all images.
    pub(super) fn len(&self) -> usize {
        self.images * self.image_len()
    }
}

/// A convolution with its weights, for images of one shape.
pub(super) struct Convolution {
    input: Shape,
    output: Shape,
    kernel: Matrix,
    /// Where the rows of the patches begin in an image with its border: three for each place of the output.
    starts: Vec<usize>,
}

impl Convolution {
    /// The convolution with weights `[outputs, inputs, 3, 3]`. The images' height and width must be even if
    /// the stride is 2.
    pub(super) fn new(input: Shape, outputs: usize, stride: usize, weight: &[f32]) -> Self {
        let (height, width) = (input.height / stride, input.width / stride);
        let output = Shape { height, width, channels: outputs, ..input };
        let mut kernel = vec![0.0; weight.len()];
        kernel_order(input.channels, outputs).zip(weight).for_each(|(place, &value)| kernel[place] = value);
        let start = |y: usize, x: usize, row: usize| {
            ((y * stride + row) * (input.width + 2) + x * stride) * input.channels
        };
        let of_row = |y| (0..width).flat_map(move |x| (0..3).map(move |row| start(y, x, row)));
        let starts = (0..height).flat_map(of_row).collect();
        Self { input, output, kernel: matrix(kernel, outputs), starts }
    }

    /// Shape of what comes out.
    pub(super) fn output(&self) -> Shape {
        self.output
    }

    pub(super) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.output.len());
        for images in x.chunks(self.images_at_once() * self.input.image_len()) {
            out.extend_from_slice(&product(&self.patches(images), &self.kernel));
        }
        out
    }

    /// Returns the gradient of the input, computed from that of the output, and writes that of the weights.
    pub(super) fn backward(&self, x: &[f32], d_out: &[f32], d_weight: &mut [f32]) -> Vec<f32> {
        let kernel = self.kernel.clone().transpose();
        let mut d_kernel = vec![0.0; d_weight.len()];
        let mut dx = Vec::with_capacity(x.len());
        let at_once = self.images_at_once();
        let parts = d_out.chunks(at_once * self.output.image_len());
        for (images, d_out) in x.chunks(at_once * self.input.image_len()).zip(parts) {
            let d_out = matrix(d_out.to_vec(), self.output.channels);
            add_product(&mut d_kernel, &self.patches(images).transpose(), &d_out);
            self.add_up(&product(&d_out, &kernel), &mut dx);
        }
        let order = kernel_order(self.input.channels, self.output.channels);
        order.zip(d_weight).for_each(|(place, value)| *value = d_kernel[place]);
        dx
    }

    /// Adds the input to something of the output's shape: all of it, or every second row and column of it if
    /// the stride is 2. Channels that the input lacks get nothing.
    pub(super) fn add_shortcut(&self, x: &[f32], out: &mut [f32]) {
        self.shortcut(|input, output, len| add(&mut out[output..output + len], &x[input..input + len]));
    }

    /// Adds the gradient of the output to that of the input, where the shortcut leads.
    pub(super) fn add_shortcut_gradient(&self, d_out: &[f32], dx: &mut [f32]) {
        self.shortcut(|input, output, len| add(&mut dx[input..input + len], &d_out[output..output + len]));
    }

    /// Calls `join` with the beginnings of pieces of input and output, and their length.
    fn shortcut(&self, mut join: impl FnMut(usize, usize, usize)) {
        let (from, to) = (self.input, self.output);
        if from == to {
            return join(0, 0, from.len());
        }
        let stride = from.width / to.width;
        for output in 0..to.images * to.places() {
            let (y, x) = (output / to.width, output % to.width);
            join((y * stride * from.width + x * stride) * from.channels, output * to.channels, from.channels);
        }
    }

    fn images_at_once(&self) -> usize {
        (PLACES_AT_ONCE / self.output.places()).max(1)
    }

    /// The values under a row of a patch.
    fn row_len(&self) -> usize {
        3 * self.input.channels
    }

    /// Where the rows of an image begin in the image with its border.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let (width, channels) = (self.input.width, self.input.channels);
        (0..self.input.height).map(move |y| ((y + 1) * (width + 2) + 1) * channels)
    }

    /// Values of an image with its border.
    fn bordered_len(&self) -> usize {
        (self.input.height + 2) * (self.input.width + 2) * self.input.channels
    }

    fn patches(&self, images: &[f32]) -> Matrix {
        let (row_len, width) = (self.row_len(), self.input.width * self.input.channels);
        let mut bordered = vec![0.0; self.bordered_len()];
        let count = images.len() / self.input.image_len();
        let mut patches = Vec::with_capacity(count * self.starts.len() * row_len);
        for image in images.chunks_exact(self.input.image_len()) {
            for (at, row) in self.rows().zip(image.chunks_exact(width)) {
                bordered[at..at + width].copy_from_slice(row);
            }
            self.starts.iter().for_each(|&at| patches.extend_from_slice(&bordered[at..at + row_len]));
        }
        matrix(patches, PLACES * self.input.channels)
    }

    /// The sums of the gradients of patches, place by place: the other way round than [`Self::patches`].
    fn add_up(&self, d_patches: &[f32], dx: &mut Vec<f32>) {
        let (row_len, width) = (self.row_len(), self.input.width * self.input.channels);
        let mut bordered = vec![0.0; self.bordered_len()];
        for d_patches in d_patches.chunks_exact(self.starts.len() * row_len) {
            vectorised(
                #[inline(always)]
                || {
                    bordered.fill(0.0);
                    for (&at, row) in self.starts.iter().zip(d_patches.chunks_exact(row_len)) {
                        add(&mut bordered[at..at + row_len], row);
                    }
                },
            );
            self.rows().for_each(|at| dx.extend_from_slice(&bordered[at..at + width]));
        }
    }
}

/// For each weight `[output, input, row, column]`, its place in `[row, column, input, output]`.
fn kernel_order(inputs: usize, outputs: usize) -> impl Iterator<Item = usize> {
    let of_input = move |output, input| (0..PLACES).map(move |k| (k * inputs + input) * outputs + output);
    (0..outputs).flat_map(move |output| (0..inputs).flat_map(move |input| of_input(output, input)))
}
