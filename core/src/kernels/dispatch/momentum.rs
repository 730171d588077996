//! Steps of momentum.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::momentum as scalar;
use crate::momentum::Momentum;

compile_for_each_isa! {
    /// Replaces the gradient in `step` by the step that momentum will make of it.
    pub(crate) fn peek_momentum(isa, rule: Momentum, momentum: &[f32], step: &mut [f32]) = scalar::peek_momentum;
}

compile_for_each_isa! {
    /// The same, and the momentum moves on.
    pub(crate) fn advance_momentum(isa, rule: Momentum, momentum: &mut [f32], step: &mut [f32]) = scalar::advance_momentum;
}
