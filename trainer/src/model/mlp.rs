//! Fully connected layers with rectifiers between them.

use burn::tensor::activation::relu;
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor, TensorData};

use super::ModelError;
use super::autodiff::Network;
use super::init::{Init, Spec};
use super::weights::Weights;
use crate::data::{Batch, Task};
use crate::range::{RangeError, require};

/// No layer may be wider than this.
const MAX_WIDTH: usize = 1 << 16;

/// Sizes of a fully connected network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpConfig {
    /// Width of every layer between input and output.
    pub hidden: Vec<usize>,
}

impl MlpConfig {
    /// One layer of 128 for small images (64-128-10 for optdigits: 9,610 parameters), two of 512 and 256 for
    /// larger ones (784-512-256-10 for Fashion-MNIST: 535,818 parameters).
    pub fn suited_to(task: &Task) -> Self {
        match task {
            Task::Images { shape, .. } if shape.iter().product::<usize>() > 256 => {
                Self { hidden: vec![512, 256] }
            }
            _ => Self { hidden: vec![128] },
        }
    }
}

/// The network: image, hidden layers, classes.
pub(super) struct Mlp {
    image: [usize; 3],
    widths: Vec<usize>,
}

impl Mlp {
    pub(super) fn new(config: &MlpConfig, task: &Task) -> Result<Self, ModelError> {
        let (image, classes) = image_task("mlp", task)?;
        for &width in &config.hidden {
            require((1..=MAX_WIDTH).contains(&width), "hidden", width, format!("1 to {MAX_WIDTH}"))?;
        }
        let input = image.iter().product();
        let widths = [input].into_iter().chain(config.hidden.iter().copied()).chain([classes]).collect();
        Ok(Self { image, widths })
    }

    fn layers(&self) -> usize {
        self.widths.len() - 1
    }
}

impl Network for Mlp {
    fn specs(&self) -> Vec<Spec> {
        let layers = self.widths.windows(2).enumerate();
        layers.flat_map(|(n, pair)| linear_specs(&format!("layers.{n}"), pair[0], pair[1])).collect()
    }

    fn classes(&self) -> usize {
        self.widths[self.layers()]
    }

    fn check(&self, batch: &Batch) -> Result<(), String> {
        check_images(self.image, batch)
    }

    fn logits(&self, weights: &Weights<'_>, batch: &Batch, device: &Device) -> Tensor<2> {
        let mut x = images(batch, device).flatten(1, 3);
        for n in 0..self.layers() {
            x = if n == 0 { x } else { relu(x) };
            x = apply_linear(weights, &format!("layers.{n}"), x);
        }
        x
    }
}

/// Weight `[inputs, outputs]` and bias of a layer that a rectifier follows.
pub(super) fn linear_specs(name: &str, inputs: usize, outputs: usize) -> [Spec; 2] {
    [
        Spec::new(format!("{name}.weight"), &[inputs, outputs], Init::he(inputs)),
        Spec::new(format!("{name}.bias"), &[outputs], Init::Constant(0.0)),
    ]
}

/// `x · weight + bias`, over the last dimension.
pub(super) fn apply_linear<const D: usize>(weights: &Weights<'_>, name: &str, x: Tensor<D>) -> Tensor<D> {
    linear(x, weights.matrix(&format!("{name}.weight")), Some(weights.vector(&format!("{name}.bias"))))
}

/// Shape and classes of an image task.
pub(super) fn image_task(model: &str, task: &Task) -> Result<([usize; 3], usize), RangeError> {
    match task {
        Task::Images { shape, classes } => Ok((*shape, *classes)),
        Task::Tokens { .. } => Err(RangeError::new("model", model, "gpt or lstm, which read text")),
    }
}

/// The images of a batch that passed [`check_images`].
pub(super) fn images(batch: &Batch, device: &Device) -> Tensor<4> {
    match batch {
        Batch::Images { shape, features, .. } => {
            Tensor::from_data(TensorData::new(features.clone(), *shape), device)
        }
        Batch::Tokens { .. } => unreachable!("the batch was checked"),
    }
}

/// Whether a batch holds whole images of this shape.
pub(super) fn check_images(image: [usize; 3], batch: &Batch) -> Result<(), String> {
    match batch {
        Batch::Images { shape: [count, rest @ ..], features, labels } => {
            if *rest != image {
                Err(format!("images of {rest:?}, expected {image:?}"))
            } else if *count != labels.len() || features.len() != count * image.iter().product::<usize>() {
                Err("its parts have different lengths".to_owned())
            } else {
                Ok(())
            }
        }
        Batch::Tokens { .. } => Err("text, expected images".to_owned()),
    }
}
