//! The parameters that a network keeps.

use super::init::{Spec, initial_values};

/// All parameters of a network in one flat slice, with the names and shapes of its tensors.
pub struct Parameters {
    specs: Vec<Spec>,
    values: Vec<f32>,
}

impl Parameters {
    /// The initial values of these tensors.
    pub(super) fn new(specs: Vec<Spec>, seed: u64) -> Self {
        let values = initial_values(&specs, seed);
        Self { specs, values }
    }

    /// The tensors, in the order of the values.
    pub(super) fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// The values, tensor by tensor.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Each tensor with its values.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Spec, &[f32])> {
        let mut rest = self.values();
        self.specs.iter().map(move |spec| {
            let (values, tail) = rest.split_at(spec.len());
            rest = tail;
            (spec, values)
        })
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
