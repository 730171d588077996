//! Gradients that are too long.

use crate::kernels::{Isa, sum_of_squares_f32};

/// If the norm of the gradient exceeds `limit`, multiplies every element by limit/norm, rounded to f32.
/// Returns the norm before that. A gradient that is not finite stays as it is, and a codec then refuses it.
///
/// # Determinism
/// The sum of squares in f64, in the order of 32 strides: the same on every machine.
///
/// # Examples
/// ```
/// let mut grad = [3.0, -4.0];
/// assert_eq!(gradwire::arithmetic::clip_norm(&mut grad, 10.0), 5.0);
/// assert_eq!(gradwire::arithmetic::clip_norm(&mut grad, 2.5), 5.0);
/// assert_eq!(grad, [1.5, -2.0]);
/// ```
pub fn clip_norm(grad: &mut [f32], limit: f64) -> f64 {
    let norm = libm::sqrt(sum_of_squares_f32(Isa::best(), grad));
    if norm.is_finite() && norm > limit {
        let scale = (limit / norm) as f32;
        grad.iter_mut().for_each(|g| *g *= scale);
    }
    norm
}
