//! The parameters of one step as tensors.

use burn::tensor::{Device, Gradients, Tensor, TensorData};

use super::init::Spec;
use super::{ModelError, Parameters};

/// The parameters as tensors, by name.
pub(super) struct Weights<'a> {
    specs: &'a [Spec],
    tensors: Vec<Ranked>,
}

/// A tensor of one of the ranks that parameters have.
enum Ranked {
    Vector(Tensor<1>),
    Matrix(Tensor<2>),
    Kernel(Tensor<4>),
}

impl<'a> Weights<'a> {
    /// Makes tensors of the flat slice; with an autodiff device they collect gradients.
    pub(super) fn new(params: &'a Parameters, device: &Device) -> Self {
        let tensors = params.parts().map(|(spec, values)| Ranked::new(values, &spec.shape, device));
        Self { specs: params.specs(), tensors: tensors.collect() }
    }

    /// The vector of this name.
    pub(super) fn vector(&self, name: &str) -> Tensor<1> {
        match self.find(name) {
            Ranked::Vector(tensor) => tensor.clone(),
            _ => panic!("parameter `{name}` is no vector"),
        }
    }

    /// The matrix of this name, `[in, out]`.
    pub(super) fn matrix(&self, name: &str) -> Tensor<2> {
        match self.find(name) {
            Ranked::Matrix(tensor) => tensor.clone(),
            _ => panic!("parameter `{name}` is no matrix"),
        }
    }

    /// The convolution kernel of this name, `[out, in, height, width]`.
    pub(super) fn kernel(&self, name: &str) -> Tensor<4> {
        match self.find(name) {
            Ranked::Kernel(tensor) => tensor.clone(),
            _ => panic!("parameter `{name}` is no kernel"),
        }
    }

    /// A network asks only for parameters of its own table, so a miss is a bug in that network.
    fn find(&self, name: &str) -> &Ranked {
        match self.specs.iter().position(|spec| spec.name == name) {
            Some(index) => &self.tensors[index],
            None => panic!("no parameter `{name}`"),
        }
    }

    /// Writes every gradient into its place of the flat slice.
    ///
    /// All are read before the first is written, so on an error the slice is as it was.
    pub(super) fn read_gradients(
        &self,
        mut gradients: Gradients,
        flat: &mut [f32],
    ) -> Result<(), ModelError> {
        let missing = |spec: &Spec| ModelError::Gradient(spec.name.clone());
        let mut taken = Vec::with_capacity(self.specs.len());
        for (spec, tensor) in self.specs.iter().zip(&self.tensors) {
            taken.push(tensor.take_gradient(&mut gradients).ok_or_else(|| missing(spec))?);
        }
        let mut values = Vec::with_capacity(taken.len());
        for (spec, data) in self.specs.iter().zip(&taken) {
            let slice = data.as_slice::<f32>().ok().filter(|slice| slice.len() == spec.len());
            values.push(slice.ok_or_else(|| missing(spec))?);
        }
        let mut rest = flat;
        for slice in values {
            let (here, tail) = rest.split_at_mut(slice.len());
            here.copy_from_slice(slice);
            rest = tail;
        }
        Ok(())
    }
}

impl Ranked {
    fn new(values: &[f32], shape: &[usize], device: &Device) -> Self {
        match shape.len() {
            1 => Self::Vector(leaf(values, shape, device)),
            2 => Self::Matrix(leaf(values, shape, device)),
            4 => Self::Kernel(leaf(values, shape, device)),
            rank => panic!("no parameter has {rank} dimensions"),
        }
    }

    fn take_gradient(&self, gradients: &mut Gradients) -> Option<TensorData> {
        match self {
            Self::Vector(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
            Self::Matrix(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
            Self::Kernel(tensor) => tensor.grad_remove(gradients).map(Tensor::into_data),
        }
    }
}

fn leaf<const D: usize>(values: &[f32], shape: &[usize], device: &Device) -> Tensor<D> {
    let tensor = Tensor::from_data(TensorData::new(values.to_vec(), shape), device);
    if device.is_autodiff() { tensor.require_grad() } else { tensor }
}
