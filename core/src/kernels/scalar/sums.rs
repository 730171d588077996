//! Sums and maxima over all elements.

use crate::kernels::scalar::floats::MAGNITUDE;

#[inline(always)]
pub(in crate::kernels) fn add_assign(residual: &mut [f32], grad: &[f32]) -> u32 {
    let mut max = 0;
    for (residual, grad) in residual.iter_mut().zip(grad) {
        *residual += grad;
        max = max.max(residual.to_bits() & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(in crate::kernels) fn add_to(residual: &[f32], grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for ((p, residual), grad) in p.iter_mut().zip(residual).zip(grad) {
        *p = (residual + grad).to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(in crate::kernels) fn copy_to(grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for (p, grad) in p.iter_mut().zip(grad) {
        *p = grad.to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(in crate::kernels) fn max_magnitude(p: &[u32]) -> u32 {
    p.iter().fold(0, |max, &bits| max.max(bits & MAGNITUDE))
}

/// Eight strided partial sums. Blocks added to them begin at a multiple of eight.
pub(crate) type Strides = [f64; 8];

/// Halves are added to halves: 0+4, 1+5, 2+6, 3+7; 0+2, 1+3; 0+1.
pub(crate) fn total_of([a, b, c, d, e, f, g, h]: Strides) -> f64 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[inline(always)]
pub(in crate::kernels) fn add_squares(p: &[u32], sums: &mut Strides) {
    add_strided(p, sums, |&bits| square(f32::from_bits(bits)));
}

#[inline(always)]
pub(in crate::kernels) fn add_values(p: &[u32], sums: &mut Strides) {
    add_strided(p, sums, |&bits| f64::from(f32::from_bits(bits)));
}

#[inline(always)]
pub(in crate::kernels) fn sum_of_squares_f32(values: &[f32]) -> f64 {
    let mut sums = [0.0; WIDE_STRIDES];
    add_strided(values, &mut sums, |&value| square(value));
    let (wide, narrow) = (sums.as_chunks::<8>().0, [0.0; 8]);
    total_of(wide.iter().fold(narrow, |total, sums| core::array::from_fn(|i| total[i] + sums[i])))
}

/// Strides of long sums. They add to four vectors at a time, so that no sum waits for the one before.
const WIDE_STRIDES: usize = 32;

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

#[inline(always)]
fn add_strided<T, const STRIDES: usize>(
    elements: &[T],
    sums: &mut [f64; STRIDES],
    value: impl Fn(&T) -> f64,
) {
    let (chunks, tail) = elements.as_chunks::<STRIDES>();
    for chunk in chunks {
        for (sum, element) in sums.iter_mut().zip(chunk) {
            *sum += value(element);
        }
    }
    for (sum, element) in sums.iter_mut().zip(tail) {
        *sum += value(element);
    }
}

#[inline(always)]
pub(in crate::kernels) fn divide(values: &mut [f32], divisor: f32) -> bool {
    // The reciprocal of a power of two is exact, so the product equals the quotient, in a fraction of its
    // time.
    let is_power_of_two = divisor >= 1.0 && divisor.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    if is_power_of_two {
        let factor = divisor.recip();
        change_each(values, |value| value * factor)
    } else {
        change_each(values, |value| value / divisor)
    }
}

#[inline(always)]
fn change_each(values: &mut [f32], change: impl Fn(f32) -> f32) -> bool {
    values.iter_mut().fold(true, |are_finite, value| {
        *value = change(*value);
        are_finite & value.is_finite()
    })
}

#[inline(always)]
pub(in crate::kernels) fn are_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |are_finite, value| are_finite & value.is_finite())
}
