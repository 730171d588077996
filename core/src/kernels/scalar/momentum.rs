//! Steps of momentum.

use crate::momentum::Momentum;

#[inline(always)]
pub(in crate::kernels) fn peek_momentum(rule: Momentum, momentum: &[f32], step: &mut [f32]) {
    step.iter_mut().zip(momentum).for_each(|(step, &momentum)| *step = rule.apply(momentum, *step).1);
}

#[inline(always)]
pub(in crate::kernels) fn advance_momentum(rule: Momentum, momentum: &mut [f32], step: &mut [f32]) {
    for (step, momentum) in step.iter_mut().zip(momentum) {
        (*momentum, *step) = rule.apply(*momentum, *step);
    }
}
