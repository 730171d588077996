//! A small convolutional network: two 3×3 convolutions, each with a rectifier and 2×2 maximum pooling, then
//! two fully connected layers.

use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor};

use super::ModelError;
use super::autodiff::Network;
use super::init::{Init, Spec};
use super::mlp::{apply_linear, check_images, image_task, images, linear_specs};
use super::weights::Weights;
use crate::data::{Batch, Task};
use crate::range::{RangeError, require};

/// No layer may be wider than this.
const MAX_WIDTH: usize = 1 << 13;

/// Sizes of a convolutional network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CnnConfig {
    /// Output channels of the two convolutions.
    pub channels: [usize; 2],
    /// Width of the layer between the second pooling and the output.
    pub hidden: usize,
}

impl CnnConfig {
    /// 16 and 32 channels and a layer of 64 for 8×8 images (13,706 parameters), 32 and 64 channels and a
    /// layer of 128 for larger ones (421,642 parameters for 1×28×28, 545,098 for 3×32×32).
    pub fn suited_to(task: &Task) -> Self {
        match task {
            Task::Images { shape: [_, height, width], .. } if height * width > 256 => {
                Self { channels: [32, 64], hidden: 128 }
            }
            _ => Self { channels: [16, 32], hidden: 64 },
        }
    }
}

/// The network: convolution, pooling, convolution, pooling, hidden layer, classes.
pub(super) struct Cnn {
    image: [usize; 3],
    channels: [usize; 2],
    hidden: usize,
    classes: usize,
}

impl Cnn {
    pub(super) fn new(config: &CnnConfig, task: &Task) -> Result<Self, ModelError> {
        let (image, classes) = image_task("cnn", task)?;
        let [_, height, width] = image;
        if height < 4 || width < 4 {
            let size = format!("cnn with {height}x{width} images");
            return Err(RangeError::new("model", size, "images of 4x4 or more for cnn, or mlp").into());
        }
        let CnnConfig { channels, hidden } = *config;
        for width in [channels[0], channels[1], hidden] {
            require(
                (1..=MAX_WIDTH).contains(&width),
                "channels or hidden",
                width,
                format!("1 to {MAX_WIDTH}"),
            )?;
        }
        Ok(Self { image, channels, hidden, classes })
    }

    /// Values of one image after the second pooling, which, like the first, drops an odd last row or column.
    fn pooled(&self) -> usize {
        let [_, height, width] = self.image;
        self.channels[1] * (height / 4) * (width / 4)
    }
}

impl Network for Cnn {
    fn specs(&self) -> Vec<Spec> {
        let [first, second] = self.channels;
        let convolutions = [("conv1", self.image[0], first), ("conv2", first, second)];
        let mut specs = Vec::new();
        for (name, inputs, outputs) in convolutions {
            let shape = [outputs, inputs, 3, 3];
            specs.push(Spec::new(format!("{name}.weight"), &shape, Init::he(9 * inputs)));
            specs.push(Spec::new(format!("{name}.bias"), &[outputs], Init::Constant(0.0)));
        }
        specs.extend(linear_specs("hidden", self.pooled(), self.hidden));
        specs.extend(linear_specs("output", self.hidden, self.classes));
        specs
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn check(&self, batch: &Batch) -> Result<(), String> {
        check_images(self.image, batch)
    }

    fn logits(&self, weights: &Weights<'_>, batch: &Batch, device: &Device) -> Tensor<2> {
        let mut x = images(batch, device);
        for name in ["conv1", "conv2"] {
            x = max_pool2d(relu(convolve(weights, name, x)), MaxPoolOptions::new([2, 2]));
        }
        let x = relu(apply_linear(weights, "hidden", x.flatten(1, 3)));
        apply_linear(weights, "output", x)
    }
}

/// 3×3 convolution with a border of zeros, so that the size stays.
fn convolve(weights: &Weights<'_>, name: &str, x: Tensor<4>) -> Tensor<4> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    conv2d(x, weights.kernel(&weight), Some(weights.vector(&bias)), options)
}
