//! Sums and maxima over all elements.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::sums as scalar;
use crate::kernels::scalar::sums::Strides;

compile_for_each_isa! {
    /// Adds the gradient to the residual, residual[i] = fl(residual[i] + gradient[i]); returns the largest
    /// magnitude bits.
    pub(crate) fn add_assign(isa, residual: &mut [f32], grad: &[f32]) -> u32 = scalar::add_assign;
}

compile_for_each_isa! {
    /// Writes the bits of p = fl(residual + gradient) to `p`; returns the largest magnitude bits.
    pub(crate) fn add_to(isa, residual: &[f32], grad: &[f32], p: &mut [u32]) -> u32 = scalar::add_to;
}

compile_for_each_isa! {
    /// Writes the bits of the gradient to `p`; returns the largest magnitude bits.
    pub(crate) fn copy_to(isa, grad: &[f32], p: &mut [u32]) -> u32 = scalar::copy_to;
}

compile_for_each_isa! {
    /// The largest magnitude bits; 0 for no elements.
    pub(crate) fn max_magnitude(isa, p: &[u32]) -> u32 = scalar::max_magnitude;
}

compile_for_each_isa! {
    /// Adds squares in f64 to eight strided partial sums, whose total is [`scalar::total_of`].
    pub(crate) fn add_squares(isa, p: &[u32], sums: &mut Strides) = scalar::add_squares;
}

compile_for_each_isa! {
    /// Adds values in f64 to eight strided partial sums, whose total is [`scalar::total_of`].
    pub(crate) fn add_values(isa, p: &[u32], sums: &mut Strides) = scalar::add_values;
}

compile_for_each_isa! {
    /// Sum of squares in f64: 32 strided partial sums. The four whose strides are equal modulo 8 are added
    /// up, then all as [`scalar::total_of`].
    pub(crate) fn sum_of_squares_f32(isa, values: &[f32]) -> f64 = scalar::sum_of_squares_f32;
}

compile_for_each_isa! {
    /// Divides every value; returns whether all quotients are finite.
    pub(crate) fn divide(isa, values: &mut [f32], divisor: f32) -> bool = scalar::divide;
}

compile_for_each_isa! {
    /// Whether no value is NaN or infinite.
    pub(crate) fn are_finite(isa, values: &[f32]) -> bool = scalar::are_finite;
}
