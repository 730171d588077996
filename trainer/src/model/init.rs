//! Parameter tables and initial weights.

use crate::rng::{Draws, Purpose};

/// One parameter tensor: its name, its shape and how it begins.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) init: Init,
}

/// How the values of a tensor begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Init {
    /// All this value.
    Constant(f32),
    /// Normal with mean 0 and this deviation.
    Normal(f32),
    /// Uniform between minus and plus this.
    Uniform(f32),
}

impl Spec {
    pub(super) fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), init }
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Init {
    /// Keeps the size of activations through a layer that a rectifier follows: deviation sqrt(2 / fan_in).
    ///
    /// # Source
    ///
    /// He, Zhang, Ren, Sun, "Delving deep into rectifiers", arXiv:1502.01852, equation 10.
    pub(super) fn he(fan_in: usize) -> Self {
        Self::Normal((2.0 / fan_in as f32).sqrt())
    }
}

/// The initial values of all tensors, one after the other. Each tensor has a stream of its own, shared by all
/// workers.
pub(super) fn initial_values(specs: &[Spec], seed: u64) -> Vec<f32> {
    let mut values = Vec::with_capacity(specs.iter().map(Spec::len).sum());
    for (number, spec) in specs.iter().enumerate() {
        let mut draws = Draws::new(seed, Purpose::Weights, number as u64, 0);
        values.extend((0..spec.len()).map(|_| match spec.init {
            Init::Constant(value) => value,
            Init::Normal(deviation) => draws.normal_f32() * deviation,
            Init::Uniform(limit) => (2.0 * draws.uniform_f32() - 1.0) * limit,
        }));
    }
    values
}
