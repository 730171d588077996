//! Moments and products of magnitudes.

use crate::kernels::scalar::floats::MAGNITUDE;

/// Strides of f64 sums.
pub(crate) const STRIDES: usize = 8;

/// Number, sum and sum of squares of what exceeds a threshold, in strides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MomentSums {
    pub(crate) count: [u64; STRIDES],
    pub(crate) sum: [f64; STRIDES],
    pub(crate) squares: [f64; STRIDES],
}

#[inline(always)]
pub(in crate::kernels) fn add_moments(p: &[u32], least: u32, threshold: f64, sums: &mut MomentSums) {
    let mut add = |lane: usize, bits: u32| {
        let magnitude = bits & MAGNITUDE;
        let counts = magnitude >= least;
        let excess = if counts { f64::from(f32::from_bits(magnitude)) - threshold } else { 0.0 };
        sums.count[lane] += u64::from(counts);
        sums.sum[lane] += excess;
        sums.squares[lane] += excess * excess;
    };
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        chunk.iter().enumerate().for_each(|(lane, &bits)| add(lane, bits));
    }
    tail.iter().enumerate().for_each(|(lane, &bits)| add(lane, bits));
}

/// Mantissa in [1, 2) and exponent of a normal float above 0.
#[inline(always)]
pub(crate) fn mantissa_and_exponent(value: f64) -> (f64, i64) {
    let bits = value.to_bits();
    (f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52), (bits >> 52) as i64 - 1023)
}

#[inline(always)]
pub(in crate::kernels) fn multiply_magnitudes(
    p: &[u32],
    mantissas: &mut [f64; STRIDES],
    exponents: &mut [i64; STRIDES],
) {
    let mut multiply = |lane: usize, bits: u32| {
        let magnitude = bits & MAGNITUDE;
        // Every f32 above 0 is a normal f64.
        let value = if magnitude == 0 { 1.0 } else { f64::from(f32::from_bits(magnitude)) };
        let (mantissa, exponent) = mantissa_and_exponent(value);
        mantissas[lane] *= mantissa;
        exponents[lane] += exponent;
    };
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        chunk.iter().enumerate().for_each(|(lane, &bits)| multiply(lane, bits));
    }
    tail.iter().enumerate().for_each(|(lane, &bits)| multiply(lane, bits));
}
