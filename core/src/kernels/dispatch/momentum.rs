//! Steps of momentum.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::momentum as scalar;
use crate::kernels::scalar::momentum::Largest;
use crate::momentum::Momentum;

compile_for_each_isa! {
    /// Replaces the gradient in `step` by the step that momentum will make of it.
    pub(crate) fn peek_momentum(isa, rule: Momentum, momentum: &[f32], step: &mut [f32]) = scalar::peek_momentum;
}

compile_for_each_isa! {
    /// Advances the momentum by the gradient and adds the step to the residual; returns the largest magnitude
    /// bits of both.
    pub(crate) fn add_steps(isa, rule: Momentum, momentum: &mut [f32], grad: &[f32], residual: &mut [f32]) -> Largest = scalar::add_steps;
}
