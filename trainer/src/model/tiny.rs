//! Numbers that are too small to matter.

/// 2^−80. Products of such a number with weights and gradients are soon subnormal, and a product of matrices
/// takes ten times as long where many of its numbers are.
const TINY: f32 = 1.0 / (1_u128 << 80) as f32;

/// The number; zero if it is below 2^−80 in magnitude. NaN stays NaN.
#[inline(always)]
pub(super) fn zero_if_tiny(value: f32) -> f32 {
    if value.abs() < TINY { 0.0 } else { value }
}
