//! One forward pass through the network, and the backward pass.

use super::super::init::Spec;
use super::super::matrix::{Matrix, add_product, add_rows, matrix, product};
use super::super::parameters::Parameters;
use super::super::softmax;
use super::convolution::{Convolution, Shape};
use super::norm::{Moments, Norm, Trace};
use super::{STAGES, blocks, norms};
use crate::data::Batch;

/// The parameters as layers, for batches of one size.
pub(super) struct Network<'a> {
    specs: &'a [Spec],
    layers: Vec<Layer<'a>>,
    weight: Matrix,
    bias: &'a [f32],
}

/// A convolution and its normalisation.
struct Layer<'a> {
    convolution: Convolution,
    norm: Norm<'a>,
}

/// What the backward pass needs of a block.
struct BlockTrace {
    /// Between the two layers, behind the rectifier.
    inner: Vec<f32>,
    norms: [Trace; 2],
}

impl<'a> Network<'a> {
    /// The network for so many images `[channels, height, width]`.
    pub(super) fn new(params: &'a Parameters, image: [usize; 3], images: usize) -> Self {
        let [channels, height, width] = image;
        let mut shape = Shape { images, height, width, channels };
        let mut parts = params.parts().map(|(_, values)| values);
        let mut take = || parts.next().expect("three for each layer, and two");
        let mut layers = Vec::new();
        for (outputs, stride) in norms().zip(strides()) {
            let convolution = Convolution::new(shape, outputs, stride, take());
            shape = convolution.output();
            layers.push(Layer { convolution, norm: Norm { gain: take(), shift: take() } });
        }
        let (weight, bias) = (take(), take());
        Self { specs: params.specs(), layers, weight: matrix(weight.to_vec(), bias.len()), bias }
    }

    /// Scores `[images, classes]`, with these statistics of each normalisation.
    pub(super) fn predict(&self, batch: &Batch, statistics: &[Moments]) -> Matrix {
        let (first, blocks) = self.layers.split_first().expect("20 layers");
        let (of_first, of_blocks) = statistics.split_first().expect("one for each layer");
        let mut x = first.apply(&channels_last(batch), of_first);
        rectify(&mut x);
        for (layers, statistics) in blocks.chunks_exact(2).zip(of_blocks.chunks_exact(2)) {
            let mut inner = layers[0].apply(&x, &statistics[0]);
            rectify(&mut inner);
            let mut out = layers[1].apply(&inner, &statistics[1]);
            layers[0].convolution.add_shortcut(&x, &mut out);
            rectify(&mut out);
            x = out;
        }
        matrix(self.scores(&self.means(&x)), self.bias.len())
    }

    /// Writes the gradient of the mean cross-entropy. Returns the loss, and the statistics of each
    /// normalisation.
    pub(super) fn learn(&self, batch: &Batch, mut grad: &mut [f32]) -> (f64, Vec<Moments>) {
        let images = channels_last(batch);
        let (first, blocks) = self.layers.split_first().expect("20 layers");
        let (mut x, first_trace, moments) = first.learn(&images);
        rectify(&mut x);
        let (mut statistics, mut traces, mut activations) = (vec![moments], Vec::new(), vec![x]);
        for layers in blocks.chunks_exact(2) {
            let x = activations.last().expect("the first layer's");
            let (mut inner, first, of_first) = layers[0].learn(x);
            rectify(&mut inner);
            let (mut out, second, of_second) = layers[1].learn(&inner);
            layers[0].convolution.add_shortcut(x, &mut out);
            rectify(&mut out);
            statistics.extend([of_first, of_second]);
            traces.push(BlockTrace { inner, norms: [first, second] });
            activations.push(out);
        }

        let parts = self.specs.iter().map(|spec| grad.split_off_mut(..spec.len()));
        let mut gradients: Vec<_> = parts.map(|part| part.expect("as long as the specs say")).collect();
        let x = activations.pop().expect("the last block's");
        let (loss, mut dx) = self.learn_scores(&x, batch.targets(), &mut gradients);
        let mut out = x;
        for (layers, trace) in blocks.chunks_exact(2).zip(&traces).rev() {
            let x = activations.pop().expect("a block's input");
            keep_positive(&mut dx, &out);
            let mut d = layers[1].backward(&trace.inner, &trace.norms[1], dx.clone(), &mut gradients);
            keep_positive(&mut d, &trace.inner);
            let mut d = layers[0].backward(&x, &trace.norms[0], d, &mut gradients);
            layers[0].convolution.add_shortcut_gradient(&dx, &mut d);
            (dx, out) = (d, x);
        }
        keep_positive(&mut dx, &out);
        first.backward(&images, &first_trace, dx, &mut gradients);
        (loss, statistics)
    }

    /// The mean of every channel of the last block, `[images, channels]`.
    fn means(&self, x: &[f32]) -> Vec<f32> {
        let shape = self.last_shape();
        let share = 1.0 / shape.places() as f32;
        let mut means = vec![0.0; shape.images * shape.channels];
        for (mean, image) in means.chunks_exact_mut(shape.channels).zip(x.chunks_exact(shape.image_len())) {
            add_rows(mean, image);
            mean.iter_mut().for_each(|mean| *mean *= share);
        }
        means
    }

    fn last_shape(&self) -> Shape {
        self.layers.last().expect("20 layers").convolution.output()
    }

    fn scores(&self, means: &[f32]) -> Vec<f32> {
        let mut scores: Vec<f32> = means.chunks_exact(STAGES[2]).flat_map(|_| self.bias).copied().collect();
        add_product(&mut scores, &matrix(means.to_vec(), STAGES[2]), &self.weight);
        scores
    }

    /// Mean cross-entropy, and the gradient of the last block. Writes the last two gradients and takes them
    /// off.
    fn learn_scores(&self, x: &[f32], targets: &[u32], gradients: &mut Vec<&mut [f32]>) -> (f64, Vec<f32>) {
        let [d_bias, d_weight] = [(); 2].map(|()| gradients.pop().expect("the scores'"));
        let (shape, classes) = (self.last_shape(), self.bias.len());
        let means = self.means(x);
        let mut scores = self.scores(&means);
        let share = 1.0 / targets.len() as f32;
        let rows = scores.chunks_exact_mut(classes).zip(targets);
        let loss: f64 = rows.map(|(scores, &target)| softmax::gradient(scores, target, share)).sum();
        d_bias.fill(0.0);
        add_rows(d_bias, &scores);
        let d_scores = matrix(scores, classes);
        d_weight.copy_from_slice(&product(&matrix(means, shape.channels).transpose(), &d_scores));
        let d_means = product(&d_scores, &self.weight.clone().transpose());
        let share_of_place = 1.0 / shape.places() as f32;
        let mut dx = Vec::with_capacity(x.len());
        for d_mean in d_means.chunks_exact(shape.channels) {
            let row: Vec<f32> = d_mean.iter().map(|d| d * share_of_place).collect();
            (0..shape.places()).for_each(|_| dx.extend_from_slice(&row));
        }
        (loss * f64::from(share), dx)
    }
}

impl Layer<'_> {
    fn apply(&self, x: &[f32], statistics: &Moments) -> Vec<f32> {
        let mut out = self.convolution.forward(x);
        self.norm.apply(&mut out, statistics);
        out
    }

    fn learn(&self, x: &[f32]) -> (Vec<f32>, Trace, Moments) {
        self.norm.learn(self.convolution.forward(x))
    }

    /// Returns the gradient of the input. Writes the last three gradients of parameters and takes them off.
    fn backward(
        &self,
        x: &[f32],
        trace: &Trace,
        mut d: Vec<f32>,
        gradients: &mut Vec<&mut [f32]>,
    ) -> Vec<f32> {
        let [shift, gain, weight] = [(); 3].map(|()| gradients.pop().expect("the layer's"));
        self.norm.backward(trace, &mut d, gain, shift);
        self.convolution.backward(x, &d, weight)
    }
}

/// Strides of the layers, in the order of the forward pass.
fn strides() -> impl Iterator<Item = usize> {
    let of_block = |(stage, block)| [if stage > 0 && block == 0 { 2 } else { 1 }, 1];
    std::iter::once(1).chain(blocks().flat_map(of_block))
}

/// The images of a checked batch, with the channels of a place side by side.
fn channels_last(batch: &Batch) -> Vec<f32> {
    let Batch::Images { shape: [_, channels, height, width], features, .. } = batch else {
        unreachable!("the batch was checked")
    };
    let places = height * width;
    let of_image = |image: &[f32]| -> Vec<f32> {
        (0..places).flat_map(|at| (0..*channels).map(move |channel| image[channel * places + at])).collect()
    };
    features.chunks_exact(channels * places).flat_map(of_image).collect()
}

fn rectify(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

/// The gradient behind a rectifier turns into the one before it.
fn keep_positive(d: &mut [f32], out: &[f32]) {
    d.iter_mut().zip(out).for_each(|(d, &out)| *d = if out > 0.0 { *d } else { 0.0 });
}
