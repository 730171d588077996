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

mod convolution;
mod norm;
mod pass;

use burn::tensor::Device;

use super::autodiff::{check_targets, score};
use super::init::{Init, Spec};
use super::mlp::{check_images, image_task, linear_specs};
use super::{Model, ModelError, Parameters, Score};
use crate::data::{Batch, Task};
use crate::range::RangeError;
use norm::Moments;
use pass::Network;

/// Channels of the stages.
const STAGES: [usize; 3] = [16, 32, 64];
/// Blocks of a stage.
const BLOCKS: usize = 3;
/// Keeps normalisation from dividing by zero.
pub const NORM_EPSILON: f32 = 1e-5;
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
    params: Parameters,
    /// The means and then the variances of every normalisation, in the order of the forward pass.
    running: Vec<f32>,
}

impl ResNet {
    pub(super) fn new(task: &Task, seed: u64) -> Result<Self, ModelError> {
        let (image, classes) = image_task("resnet20", task)?;
        let [_, height, width] = image;
        if [height, width].iter().any(|size| *size < 8 || !size.is_multiple_of(4)) {
            let given = format!("resnet20 with {height}x{width} images");
            return Err(RangeError::new("model", given, "heights and widths of 8, 12, 16, …").into());
        }
        let params = Parameters::new(specs(image[0], classes), seed);
        let running =
            norms().flat_map(|channels| [vec![0.0; channels], vec![1.0; channels]]).flatten().collect();
        Ok(Self { image, classes, params, running })
    }

    fn check(&self, batch: &Batch) -> Result<(), ModelError> {
        check_targets(batch, self.classes)?;
        check_images(self.image, batch).map_err(ModelError::Batch)
    }

    /// Moves the running statistics towards those of a batch.
    fn follow(&mut self, batch: &[Moments]) {
        let new = batch.iter().flat_map(|Moments { mean, variance }| mean.iter().chain(variance));
        self.running.iter_mut().zip(new).for_each(|(kept, new)| *kept += NORM_SHARE * (new - *kept));
    }

    /// The running statistics of every normalisation.
    fn running(&self) -> Vec<Moments> {
        let mut rest = self.running.as_slice();
        let moments = norms().map(|channels| {
            let (here, tail) = rest.split_at(2 * channels);
            rest = tail;
            let [mean, variance] = [&here[..channels], &here[channels..]].map(<[f32]>::to_vec);
            Moments { mean, variance }
        });
        moments.collect()
    }
}

impl Model for ResNet {
    fn parameters(&self) -> &Parameters {
        &self.params
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.params
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        assert_eq!(grad.len(), self.len(), "a gradient is as long as the parameters");
        self.check(batch)?;
        let network = Network::new(&self.params, self.image, batch.predictions());
        let (loss, moments) = network.learn(batch, grad);
        self.follow(&moments);
        Ok(loss as f32)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.check(batch)?;
        let network = Network::new(&self.params, self.image, batch.predictions());
        Ok(score(network.predict(batch, &self.running()), batch, &Device::flex()))
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
