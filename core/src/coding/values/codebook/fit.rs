//! Magnitudes fitted to those of a unit.

use super::{Codebook, MAX_MAGNITUDES, midpoint};
use crate::built::Full;
use crate::kernels::scalar::MAGNITUDE;
use half::bf16;

/// Bins of the histogram that a fit works on.
const BINS: usize = 512;

/// Words of scratch memory that a fit needs: three a bin.
pub(crate) const FIT_WORDS: usize = 3 * BINS;

/// Refinements of the fit; the squared error moves by less than 1 % after these.
const LLOYD_ROUNDS: u32 = 24;

/// A histogram of magnitudes over their float bits, which are a piecewise linear logarithm, the same on every
/// platform. Bins never cross a power of two, so the floats in one bin are evenly spaced and their mean
/// follows from integers.
pub(super) struct Histogram<'s> {
    low: u32,
    high: u32,
    shift: u32,
    /// For each bin: the number of its values, and the sum of the bits below `shift`, lower and upper half.
    bins: &'s mut [[u32; 3]],
}

impl<'s> Histogram<'s> {
    /// Counts values, given as their bits; `words` has [`FIT_WORDS`] elements.
    pub(super) fn new(values: &[u32], words: &'s mut [u32]) -> Self {
        let (low, high) = values
            .iter()
            .map(|bits| bits & MAGNITUDE)
            .fold((u32::MAX, 0), |(low, high), bits| (low.min(bits), high.max(bits)));
        let (low, high) = (low.min(high), high);
        let fits = |shift: &u32| (high >> shift) - (low >> shift) < BINS as u32;
        // Bins of 22 bits are few enough for all possible magnitudes.
        let shift = (0..22).find(fits).unwrap_or(22);
        let (bins, _) = words[..FIT_WORDS].as_chunks_mut();
        bins.fill([0; 3]);
        let mut histogram = Self { low, high, shift, bins };
        values.iter().for_each(|bits| histogram.count(bits & MAGNITUDE));
        histogram
    }

    fn count(&mut self, bits: u32) {
        let below = bits & ((1 << self.shift) - 1);
        let bin = self.bin(bits);
        let [count, lower, upper] = &mut self.bins[bin];
        *count += 1;
        let (sum, carry) = lower.overflowing_add(below);
        *lower = sum;
        *upper += u32::from(carry);
    }

    /// The bin of a magnitude between the smallest and the largest.
    pub(super) fn bin(&self, bits: u32) -> usize {
        ((bits >> self.shift) - (self.low >> self.shift)) as usize % BINS
    }

    /// Bits of the smallest magnitude that may be in a bin.
    fn start(&self, bin: usize) -> u32 {
        ((self.low >> self.shift) + bin as u32) << self.shift
    }

    /// The smallest magnitude.
    pub(super) fn low(&self) -> f32 {
        f32::from_bits(self.low)
    }

    /// Moves number and mean of every bin that has values to the front; returns how many bins that are.
    fn gather_points(&mut self) -> usize {
        let mut points = 0;
        for bin in 0..BINS {
            let [count, lower, upper] = self.bins[bin];
            if count > 0 {
                let start = self.start(bin);
                // Subnormals are spaced like the smallest normal numbers.
                let exponent = (start >> 23).max(1);
                let spacing = f64::from_bits(u64::from(exponent + 1023 - 150) << 52);
                let sum = u64::from(upper) << 32 | u64::from(lower);
                let mean = f64::from(f32::from_bits(start)) + sum as f64 / f64::from(count) * spacing;
                let bits = mean.to_bits();
                self.bins[points] = [count, bits as u32, (bits >> 32) as u32];
                points += 1;
            }
        }
        points
    }

    /// Number and mean of a bin after [`gather_points`](Self::gather_points).
    fn point(&self, i: usize) -> (f64, f64) {
        let [count, lower, upper] = self.bins[i];
        (f64::from(count), f64::from_bits(u64::from(upper) << 32 | u64::from(lower)))
    }

    /// Lloyd's iteration from magnitudes spaced evenly in the logarithm, on the means of the bins. Uses up
    /// the histogram.
    ///
    /// # Determinism
    /// Counts are integers; sums are f64, in ascending order; centroids are rounded to bfloat16 at the end.
    ///
    /// # Source
    /// Lloyd, Least squares quantization in PCM (IEEE Transactions on Information Theory 28, 1982), method I.
    pub(super) fn fit(&mut self, full: Full, log2: u32) -> Codebook {
        let mut book = Codebook { magnitudes: [0.0; MAX_MAGNITUDES], log2, full };
        let points = self.gather_points();
        let magnitudes = &mut book.magnitudes[..1 << log2];
        start(magnitudes, self.low, self.high);
        for _ in 0..LLOYD_ROUNDS {
            self.refine(points, magnitudes);
        }
        settle(magnitudes, self.low());
        book
    }

    /// The same, but with the first magnitude at the nearest bfloat16 not above the smallest value, and the
    /// last at the nearest not below the largest, so that every value has a magnitude on either side. No
    /// magnitude is 0, so the first is at least the smallest bfloat16. `log2` is not 0, and no value is above
    /// the largest bfloat16.
    pub(super) fn fit_covering(&mut self, full: Full, log2: u32) -> Codebook {
        let mut book = Codebook { magnitudes: [0.0; MAX_MAGNITUDES], log2, full };
        let first = bf16::from_bits(((self.low >> 16) as u16).max(1)).to_f32();
        let last = bf16::from_bits(self.high.div_ceil(1 << 16).max(1) as u16).to_f32();
        let points = self.gather_points();
        let magnitudes = &mut book.magnitudes[..1 << log2];
        start(magnitudes, self.low, self.high);
        for _ in 0..LLOYD_ROUNDS {
            pin(magnitudes, first, last);
            self.refine(points, magnitudes);
        }
        pin(magnitudes, first, last);
        let mut floor = first;
        for magnitude in magnitudes {
            floor = bf16::from_f32(*magnitude).to_f32().clamp(floor, last);
            *magnitude = floor;
        }
        book
    }

    /// Moves every magnitude to the mean of the values nearest to it. A magnitude without values stays.
    fn refine(&self, points: usize, magnitudes: &mut [f32]) {
        let mut next = 0;
        for i in 0..magnitudes.len() {
            let upper = match magnitudes.get(i + 1) {
                Some(&above) => f64::from(midpoint(magnitudes[i], above)),
                None => f64::INFINITY,
            };
            let (mut sum, mut count) = (0.0, 0.0);
            while next < points && self.point(next).1 < upper {
                let (weight, mean) = self.point(next);
                sum += weight * mean;
                count += weight;
                next += 1;
            }
            if count > 0.0 {
                magnitudes[i] = (sum / count) as f32;
            }
        }
    }
}

/// Spaces the magnitudes evenly between `low` and `high` as integers.
fn start(magnitudes: &mut [f32], low: u32, high: u32) {
    let count = magnitudes.len() as u64;
    for (i, magnitude) in magnitudes.iter_mut().enumerate() {
        let offset = u64::from(high - low) * (2 * i as u64 + 1) / (2 * count);
        *magnitude = f32::from_bits(low + offset as u32);
    }
}

fn pin(magnitudes: &mut [f32], first: f32, last: f32) {
    if let [low, .., high] = magnitudes {
        (*low, *high) = (first, last);
    }
}

/// Rounds to bfloat16 as the wire needs, keeps the order, and of several magnitudes keeps the smallest within
/// twice the smallest value. So every value has a magnitude at which its error is exact and no larger than
/// the value. A single magnitude stays the mean: one small value would make it small for all.
fn settle(magnitudes: &mut [f32], low: f32) {
    let mut floor = bf16::from_bits(1);
    let is_one = magnitudes.len() == 1;
    for (i, magnitude) in magnitudes.iter_mut().enumerate() {
        let mut rounded = bf16::from_f32(*magnitude);
        if !rounded.is_finite() {
            rounded = bf16::MAX;
        }
        if i == 0 && !is_one && rounded.to_f32() > 2.0 * low {
            // Towards zero.
            rounded = bf16::from_bits(((2.0 * low).to_bits() >> 16) as u16);
        }
        floor = if rounded > floor { rounded } else { floor };
        *magnitude = floor.to_f32();
    }
}

/// For each bin of a histogram, how many borders between magnitudes every value of the bin has below it.
pub(super) struct Cells {
    borders: [u32; MAX_MAGNITUDES],
    len: usize,
    first: [u8; BINS],
}

impl Cells {
    /// The cells of the magnitudes of `book` over the bins of `histogram`.
    pub(super) fn new(book: &Codebook, histogram: &Histogram<'_>) -> Self {
        let magnitudes = book.magnitudes();
        let (mut borders, len) = ([0; MAX_MAGNITUDES], magnitudes.len() - 1);
        for (border, pair) in borders.iter_mut().zip(magnitudes.windows(2)) {
            *border = midpoint(pair[0], pair[1]).to_bits();
        }
        let mut first = [0; BINS];
        let mut below = 0;
        for (bin, first) in first.iter_mut().enumerate() {
            while below < len && borders[below] <= histogram.start(bin) {
                below += 1;
            }
            *first = below as u8;
        }
        Self { borders, len, first }
    }

    /// The number of borders that are not above a magnitude of this bin.
    #[inline]
    pub(super) fn of(&self, bin: usize, bits: u32) -> usize {
        let mut cell = usize::from(self.first[bin]);
        while cell < self.len && self.borders[cell] <= bits {
            cell += 1;
        }
        cell
    }
}
