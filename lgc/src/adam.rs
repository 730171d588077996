//! The optimizer of the autoencoder.

use gradwire::arithmetic::vectorised;

/// Adam with decays of 0.9 and 0.999.
///
/// # Source
/// Kingma and Ba (arXiv 1412.6980), algorithm 1.
#[derive(Debug)]
pub struct Adam<'s> {
    /// Running means of gradients and of their squares, zero before the first step.
    pub means: &'s mut [f32],
    /// See `means`.
    pub squares: &'s mut [f32],
}

const DECAY: f32 = 0.9;
const SQUARES_DECAY: f32 = 0.999;
const EPSILON: f32 = 1e-8;

impl Adam<'_> {
    /// Changes the parameters by the step number `step`, from 1, at this rate.
    ///
    /// # Determinism
    /// Only operations that IEEE 754 defines, in one order.
    pub fn step(&mut self, params: &mut [f32], grads: &[f32], step: u32, rate: f32) {
        let [start, squares_start] = [DECAY, SQUARES_DECAY].map(|decay| 1.0 - power(decay, step));
        let (means, squares) = (&mut *self.means, &mut *self.squares);
        vectorised(
            #[inline(always)]
            || {
                for (((param, grad), mean), square) in params.iter_mut().zip(grads).zip(means).zip(squares) {
                    *mean = DECAY * *mean + (1.0 - DECAY) * grad;
                    *square = SQUARES_DECAY * *square + (1.0 - SQUARES_DECAY) * (grad * grad);
                    *param -= rate * (*mean / start) / ((*square / squares_start).sqrt() + EPSILON);
                }
            },
        );
    }
}

/// base to the power of n, by squaring: the same on every machine.
fn power(base: f32, n: u32) -> f32 {
    let (mut product, mut square, mut rest) = (1.0, base, n);
    while rest > 0 {
        if rest % 2 == 1 {
            product *= square;
        }
        square *= square;
        rest /= 2;
    }
    product
}
