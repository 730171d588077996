//! Moments and products of magnitudes.

use crate::kernels::scalar::floats::MAGNITUDE;

/// Strides of f64 sums.
pub(crate) const STRIDES: usize = 8;

/// Number, sum and sum of squares of the amounts by which magnitudes exceed a threshold, in strides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MomentSums {
    pub(crate) count: [u64; STRIDES],
    pub(crate) sum: [f64; STRIDES],
    pub(crate) squares: [f64; STRIDES],
}

impl MomentSums {
    /// Adds the number of elements counted in each stride. It is below 2³² at a time, because counting is
    /// cheap in lanes as wide as the elements.
    #[inline(always)]
    fn counting(mut self, count: &[u32; STRIDES]) -> Self {
        self.count.iter_mut().zip(count).for_each(|(sum, &more)| *sum += u64::from(more));
        self
    }
}

#[inline(always)]
pub(in crate::kernels) fn add_moments(p: &[u32], least: u32, threshold: f64, sums: &mut MomentSums) {
    // Local copies stay in registers while the loop runs. Compilers vectorise loops over lanes, but not
    // closures.
    let (mut all, mut count) = (*sums, [0; STRIDES]);
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        add_chunk(chunk, least, threshold, &mut all, &mut count);
    }
    let mut last = [0; STRIDES];
    last[..tail.len()].copy_from_slice(tail);
    // A magnitude of zero never counts.
    add_chunk(&last, least, threshold, &mut all, &mut count);
    *sums = all.counting(&count);
}

#[inline(always)]
fn add_chunk(
    chunk: &[u32; STRIDES],
    least: u32,
    threshold: f64,
    sums: &mut MomentSums,
    count: &mut [u32; STRIDES],
) {
    for lane in 0..STRIDES {
        let magnitude = chunk[lane] & MAGNITUDE;
        let counts = magnitude >= least;
        let excess = if counts { f64::from(f32::from_bits(magnitude)) - threshold } else { 0.0 };
        count[lane] += u32::from(counts);
        sums.sum[lane] += excess;
        sums.squares[lane] += excess * excess;
    }
}

/// [`add_moments`] of all magnitudes that are not zero, with the same bits: a zero adds nothing to a sum.
#[inline(always)]
pub(in crate::kernels) fn add_magnitudes(p: &[u32], sums: &mut MomentSums) {
    let (mut all, mut count) = (*sums, [0; STRIDES]);
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        add_values(chunk, &mut all, &mut count);
    }
    let mut last = [0; STRIDES];
    last[..tail.len()].copy_from_slice(tail);
    add_values(&last, &mut all, &mut count);
    *sums = all.counting(&count);
}

#[inline(always)]
fn add_values(chunk: &[u32; STRIDES], sums: &mut MomentSums, count: &mut [u32; STRIDES]) {
    for lane in 0..STRIDES {
        let magnitude = chunk[lane] & MAGNITUDE;
        let value = f64::from(f32::from_bits(magnitude));
        count[lane] += u32::from(magnitude != 0);
        sums.sum[lane] += value;
        sums.squares[lane] += value * value;
    }
}

/// [`add_magnitudes`] without the squares.
#[inline(always)]
pub(in crate::kernels) fn sum_magnitudes(p: &[u32], sums: &mut MomentSums) {
    let (mut sum, mut count) = (sums.sum, [0; STRIDES]);
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        sum_values(chunk, &mut sum, &mut count);
    }
    let mut last = [0; STRIDES];
    last[..tail.len()].copy_from_slice(tail);
    sum_values(&last, &mut sum, &mut count);
    *sums = MomentSums { sum, ..*sums }.counting(&count);
}

#[inline(always)]
fn sum_values(chunk: &[u32; STRIDES], sum: &mut [f64; STRIDES], count: &mut [u32; STRIDES]) {
    for lane in 0..STRIDES {
        let magnitude = chunk[lane] & MAGNITUDE;
        count[lane] += u32::from(magnitude != 0);
        sum[lane] += f64::from(f32::from_bits(magnitude));
    }
}

/// [`add_moments`] of the elements at these positions only, all of which count. It adds to each sum what
/// `add_moments` would add, in the same order.
pub(crate) fn add_moments_at(positions: &[u32], values: &[u32], threshold: f64, sums: &mut MomentSums) {
    // Side by side, so that one vector holds both sums of a stride.
    let mut both: [[f64; 2]; STRIDES] = core::array::from_fn(|i| [sums.sum[i], sums.squares[i]]);
    for (&position, &bits) in positions.iter().zip(values) {
        let excess = f64::from(f32::from_bits(bits & MAGNITUDE)) - threshold;
        let both = &mut both[position as usize % STRIDES];
        *both = [both[0] + excess, both[1] + excess * excess];
    }
    sums.sum = both.map(|[sum, _]| sum);
    sums.squares = both.map(|[_, squares]| squares);
    // Only the total over all strides matters.
    sums.count[0] += positions.len() as u64;
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
    let mut all = (*mantissas, *exponents);
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        multiply_chunk(chunk, &mut all.0, &mut all.1);
    }
    let mut last = [0; STRIDES];
    last[..tail.len()].copy_from_slice(tail);
    // A magnitude of zero multiplies by 1.
    multiply_chunk(&last, &mut all.0, &mut all.1);
    (*mantissas, *exponents) = all;
}

#[inline(always)]
fn multiply_chunk(chunk: &[u32; STRIDES], mantissas: &mut [f64; STRIDES], exponents: &mut [i64; STRIDES]) {
    for lane in 0..STRIDES {
        let magnitude = chunk[lane] & MAGNITUDE;
        // Every f32 above 0 is a normal f64.
        let value = if magnitude == 0 { 1.0 } else { f64::from(f32::from_bits(magnitude)) };
        let (mantissa, exponent) = mantissa_and_exponent(value);
        mantissas[lane] *= mantissa;
        exponents[lane] += exponent;
    }
}
