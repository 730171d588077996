//! Signs, a bit each.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::signs as scalar;

compile_for_each_isa! {
    /// Writes a bit a coordinate, eight a byte, the first in the lowest: 1 if it is below zero. Unused bits
    /// of the last byte are 0.
    pub(crate) fn pack_signs(isa, p: &[u32], out: &mut [u8]) = scalar::pack_signs;
}

compile_for_each_isa! {
    /// residual = p − sign · scale; returns the largest magnitude bits.
    pub(crate) fn keep_signs(isa, p: &[u32], scale: f32, residual: &mut [f32]) -> u32 = scalar::keep_signs;
}

compile_for_each_isa! {
    /// acc[i] += weight · (sign · scale) for the sign in bit i.
    pub(crate) fn add_signs(isa, signs: &[u8], scale: f32, weight: f32, acc: &mut [f32]) = scalar::add_signs;
}
