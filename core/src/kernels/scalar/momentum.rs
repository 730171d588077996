//! Steps of momentum.

use crate::kernels::scalar::floats::MAGNITUDE;
use crate::momentum::Momentum;

#[inline(always)]
pub(in crate::kernels) fn peek_momentum(rule: Momentum, momentum: &[f32], step: &mut [f32]) {
    step.iter_mut().zip(momentum).for_each(|(step, &momentum)| *step = rule.apply(momentum, *step).1);
}

#[inline(always)]
pub(in crate::kernels) fn add_steps(
    rule: Momentum,
    momentum: &mut [f32],
    grad: &[f32],
    residual: &mut [f32],
) -> Largest {
    let mut largest = Largest::default();
    for ((residual, momentum), &grad) in residual.iter_mut().zip(momentum).zip(grad) {
        let step;
        (*momentum, step) = rule.apply(*momentum, grad);
        *residual += step;
        largest.momentum = largest.momentum.max(momentum.to_bits() & MAGNITUDE);
        largest.residual = largest.residual.max(residual.to_bits() & MAGNITUDE);
    }
    largest
}

/// Largest magnitude bits of the values written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Largest {
    pub(crate) momentum: u32,
    pub(crate) residual: u32,
}
