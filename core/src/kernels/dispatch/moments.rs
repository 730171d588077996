//! Moments and products of magnitudes.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::moments as scalar;
use crate::kernels::scalar::moments::{MomentSums, STRIDES};

compile_for_each_isa! {
    /// Adds |p| − threshold for every element whose magnitude bits are at least `least`, element i to stride
    /// i mod 8.
    pub(crate) fn add_moments(isa, p: &[u32], least: u32, threshold: f64, sums: &mut MomentSums) = scalar::add_moments;
}

compile_for_each_isa! {
    /// [`add_moments`] of all magnitudes that are not zero, with the same bits.
    pub(crate) fn add_magnitudes(isa, p: &[u32], sums: &mut MomentSums) = scalar::add_magnitudes;
}

compile_for_each_isa! {
    /// [`add_magnitudes`] without the squares.
    pub(crate) fn sum_magnitudes(isa, p: &[u32], sums: &mut MomentSums) = scalar::sum_magnitudes;
}

compile_for_each_isa! {
    /// Multiplies every magnitude that is not zero into the products of the strides, mantissas and exponents
    /// apart.
    pub(crate) fn multiply_magnitudes(isa, p: &[u32], mantissas: &mut [f64; STRIDES], exponents: &mut [i64; STRIDES]) = scalar::multiply_magnitudes;
}
