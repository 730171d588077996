//! The residual network of 20 layers for small images, with batch normalisation.
//!
//! ```text
//! x = relu(norm(conv(image, 16 channels)))
//! three stages of 16, 32, 64 channels, three blocks each:
//!     x = relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))
//! scores = mean over all places of x · weight + bias
//! ```
//!
//! The first convolution of the second and of the third stage has a stride of 2. Where the number of channels
//! changes, the shortcut takes every second row and column and adds channels of zeros: it has no parameters
//! (option A of the paper), which gives 269,722 for 32×32 colours and ten classes.
//!
//! # Normalisation
//!
//! In training, mean and variance are those of the worker's own share of the batch, as in PyTorch's
//! `DistributedDataParallel`. Each worker keeps running means of both, which are no parameters: no gradient
//! moves them and no codec sees them. Before one of the workers evaluates, all take the mean over the
//! workers, so the result does not depend on who evaluates. A checkpoint has those of every worker.
//!
//! # Source
//!
//! He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv:1512.03385, section 4.2.

use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, linear};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};

use super::autodiff::{check_targets, mean_loss, score};
use super::init::{Init, Spec, initial_values};
use super::mlp::{check_images, image_task, images, linear_specs};
use super::weights::Weights;
use super::{Model, ModelError, Score};
use crate::data::{Batch, Task};
use crate::range::RangeError;

/// Channels of the stages.
const STAGES: [usize; 3] = [16, 32, 64];
/// Blocks of a stage.
const BLOCKS: usize = 3;
/// Keeps normalisation from dividing by zero.
pub const NORM_EPSILON: f64 = 1e-5;
/// Share of a batch in the running statistics.
pub const NORM_SHARE: f32 = 0.1;

/// Settings of the network beside the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResNetConfig {
    /// Whether training images are moved and mirrored at random.
    pub augment: bool,
}

/// The network with its parameters and running statistics.
pub(super) struct ResNet {
    image: [usize; 3],
    classes: usize,
    specs: Vec<Spec>,
    params: Vec<f32>,
    /// The means and then the variances of every normalisation, in the order of the forward pass.
    running: Vec<f32>,
}

/// Where mean and variance come from.
enum Statistics<'a> {
    /// From the batch, and recorded here: mean and unbiased variance of each normalisation.
    Batch(Vec<[Tensor<1>; 2]>),
    /// From the running statistics: those that the forward pass has not used yet.
    Running(&'a [f32]),
}

/// One forward pass.
struct Pass<'a> {
    weights: &'a Weights<'a>,
    device: &'a Device,
    statistics: Statistics<'a>,
}

impl ResNet {
    pub(super) fn new(task: &Task, seed: u64) -> Result<Self, ModelError> {
        let (image, classes) = image_task("resnet20", task)?;
        let [_, height, width] = image;
        if [height, width].iter().any(|size| *size < 8 || !size.is_multiple_of(4)) {
            let given = format!("resnet20 with {height}x{width} images");
            return Err(RangeError::new("model", given, "heights and widths of 8, 12, 16, …").into());
        }
        let specs = specs(image[0], classes);
        let params = initial_values(&specs, seed);
        let running =
            norms().flat_map(|channels| [vec![0.0; channels], vec![1.0; channels]]).flatten().collect();
        Ok(Self { image, classes, specs, params, running })
    }

    fn check(&self, batch: &Batch) -> Result<(), ModelError> {
        check_targets(batch, self.classes)?;
        check_images(self.image, batch).map_err(ModelError::Batch)
    }

    /// Moves the running statistics towards those of a batch.
    fn follow(&mut self, batch: Vec<[Tensor<1>; 2]>) {
        let mut rest = self.running.as_mut_slice();
        for values in batch.into_iter().flatten() {
            let values = values.into_data_as::<f32>();
            let values = values.as_slice::<f32>().expect("converted to f32");
            let (here, tail) = rest.split_at_mut(values.len());
            here.iter_mut().zip(values).for_each(|(kept, new)| *kept += NORM_SHARE * (new - *kept));
            rest = tail;
        }
    }
}

impl Model for ResNet {
    fn layout(&self) -> Vec<(String, Vec<usize>)> {
        self.specs.iter().map(|spec| (spec.name.clone(), spec.shape.clone())).collect()
    }

    fn len(&self) -> usize {
        self.params.len()
    }

    fn params(&self, out: &mut [f32]) {
        out.copy_from_slice(&self.params);
    }

    fn set_params(&mut self, params: &[f32]) {
        self.params.copy_from_slice(params);
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        assert_eq!(grad.len(), self.params.len(), "a gradient is as long as the parameters");
        self.check(batch)?;
        let device = Device::flex().autodiff();
        let weights = Weights::new(&self.specs, &self.params, &device);
        let mut pass = Pass { weights: &weights, device: &device, statistics: Statistics::Batch(Vec::new()) };
        let loss = mean_loss(pass.logits(batch), batch, &device);
        let statistics = pass.statistics;
        weights.read_gradients(loss.backward(), grad)?;
        if let Statistics::Batch(statistics) = statistics {
            self.follow(statistics);
        }
        Ok(loss.into_scalar())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.check(batch)?;
        let device = Device::flex();
        let weights = Weights::new(&self.specs, &self.params, &device);
        let statistics = Statistics::Running(&self.running);
        let logits = Pass { weights: &weights, device: &device, statistics }.logits(batch);
        Ok(score(logits, batch, &device))
    }

    fn carried(&self) -> Vec<f32> {
        self.running.clone()
    }

    fn carry(&mut self, carried: &[f32]) -> Result<(), String> {
        if carried.len() != self.running.len() {
            return Err(format!("{} running statistics instead of {}", carried.len(), self.running.len()));
        }
        self.running.copy_from_slice(carried);
        Ok(())
    }

    fn is_carried_averaged(&self) -> bool {
        true
    }
}

impl Pass<'_> {
    fn logits(&mut self, batch: &Batch) -> Tensor<2> {
        let mut x = relu(self.convolve_and_norm("first", images(batch, self.device), 1));
        for (stage, block) in blocks() {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("stages.{stage}.{block}");
            let inner = relu(self.convolve_and_norm(&format!("{name}.first"), x.clone(), stride));
            let inner = self.convolve_and_norm(&format!("{name}.second"), inner, 1);
            x = relu(self.shortcut(x, stride) + inner);
        }
        let [images, channels, height, width] = x.dims();
        let means = x.reshape([images, channels, height * width]).mean_dim(2).reshape([images, channels]);
        let (weight, bias) = (self.weights.matrix("output.weight"), self.weights.vector("output.bias"));
        linear(means, weight, Some(bias))
    }

    fn convolve_and_norm(&mut self, name: &str, x: Tensor<4>, stride: usize) -> Tensor<4> {
        let options = ConvOptions::new([stride, stride], [1, 1], [1, 1], 1);
        let x = conv2d(x, self.weights.kernel(&format!("{name}.weight")), None, options);
        self.norm(&format!("{name}.norm"), x)
    }

    /// Every channel with mean 0 and variance 1, then a gain and a shift of its own.
    fn norm(&mut self, name: &str, x: Tensor<4>) -> Tensor<4> {
        let [images, channels, height, width] = x.dims();
        let as_image = |vector: Tensor<1>| vector.reshape([1, channels, 1, 1]);
        let [gain, shift] = ["gain", "shift"].map(|part| self.weights.vector(&format!("{name}.{part}")));
        let (centred, variance) = match &mut self.statistics {
            Statistics::Batch(noted) => {
                let mean = mean_of_channels(x.clone());
                let centred = x - as_image(mean.clone());
                let variance = mean_of_channels(centred.clone() * centred.clone());
                let count = (images * height * width) as f32;
                noted.push([
                    mean.detach(),
                    variance.clone().detach().mul_scalar(count / (count - 1.0).max(1.0)),
                ]);
                (centred, variance)
            }
            Statistics::Running(rest) => {
                let [mean, variance] = [(), ()].map(|()| {
                    let (here, tail) = rest.split_at(channels);
                    *rest = tail;
                    Tensor::<1>::from_data(TensorData::new(here.to_vec(), [channels]), self.device)
                });
                (x - as_image(mean), variance)
            }
        };
        let scale = gain / variance.add_scalar(NORM_EPSILON).sqrt();
        centred * as_image(scale) + as_image(shift)
    }

    /// The shortcut of a block: its input, or every second row and column of it with as many channels of
    /// zeros.
    fn shortcut(&self, x: Tensor<4>, stride: usize) -> Tensor<4> {
        if stride == 1 {
            return x;
        }
        let [images, channels, height, width] = x.dims();
        let halves = x.reshape([images, channels, height / 2, 2, width / 2, 2]);
        let kept = halves.narrow(3, 0, 1).narrow(5, 0, 1).reshape([images, channels, height / 2, width / 2]);
        let zeros = Tensor::zeros([images, channels, height / 2, width / 2], self.device);
        Tensor::cat(vec![kept, zeros], 1)
    }
}

/// The mean of every channel over images and places.
fn mean_of_channels(x: Tensor<4>) -> Tensor<1> {
    let [images, channels, height, width] = x.dims();
    let of_image = x.reshape([images, channels, height * width]).mean_dim(2).reshape([images, channels]);
    of_image.mean_dim(0).reshape([channels])
}

/// Stage and number of every block.
fn blocks() -> impl Iterator<Item = (usize, usize)> {
    (0..STAGES.len()).flat_map(|stage| (0..BLOCKS).map(move |block| (stage, block)))
}

/// Channels of every normalisation, in the order of the forward pass.
fn norms() -> impl Iterator<Item = usize> {
    std::iter::once(STAGES[0]).chain(blocks().flat_map(|(stage, _)| [STAGES[stage]; 2]))
}

fn specs(colours: usize, classes: usize) -> Vec<Spec> {
    let mut specs = convolution_specs("first", colours, STAGES[0]);
    let mut inputs = STAGES[0];
    for (stage, block) in blocks() {
        for (part, inputs) in [("first", inputs), ("second", STAGES[stage])] {
            specs.extend(convolution_specs(&format!("stages.{stage}.{block}.{part}"), inputs, STAGES[stage]));
        }
        inputs = STAGES[stage];
    }
    specs.extend(linear_specs("output", inputs, classes));
    specs
}

/// A convolution without a bias, which the normalisation would take away, and the normalisation.
fn convolution_specs(name: &str, inputs: usize, outputs: usize) -> Vec<Spec> {
    let norm = [("gain", 1.0), ("shift", 0.0)];
    let norm =
        norm.map(|(part, value)| Spec::new(format!("{name}.norm.{part}"), &[outputs], Init::Constant(value)));
    let weight = Spec::new(format!("{name}.weight"), &[outputs, inputs, 3, 3], Init::he(9 * inputs));
    std::iter::once(weight).chain(norm).collect()
}
