//! Batch normalisation of channels that lie side by side, forward and backward.
//!
//! ```text
//! n = (x − mean) / sqrt(variance + ε);  y = n · gain + shift
//! dx = gain / sqrt(variance + ε) · (dy − mean of dy − n · mean of (dy · n))
//! ```
//!
//! # Source
//!
//! Ioffe, Szegedy, "Batch normalization", arXiv:1502.03167, section 3.

use gradwire::arithmetic::vectorised;

use super::NORM_EPSILON;

/// Rows whose values are added in `f32`; beyond them, sums are `f64`.
const ROWS_AT_ONCE: usize = 256;

/// The parameters of a normalisation.
pub(super) struct Norm<'a> {
    pub(super) gain: &'a [f32],
    pub(super) shift: &'a [f32],
}

/// Mean and variance of every channel. Those of the network are means over many batches.
pub(super) struct Moments {
    pub(super) mean: Vec<f32>,
    pub(super) variance: Vec<f32>,
}

/// What the backward pass needs of the forward pass.
pub(super) struct Trace {
    normalised: Vec<f32>,
    scale: Vec<f32>,
}

impl Moments {
    /// Those of the rows of `x`. The variance is the biased one.
    fn of(x: &[f32], channels: usize) -> Self {
        let count = (x.len() / channels) as f64;
        let mean_of = |sums: Vec<f64>| sums.into_iter().map(|sum| (sum / count) as f32).collect();
        let zeros = vec![0.0; channels];
        let mean: Vec<f32> = mean_of(sums([x, x], &zeros, |x, _, _| x));
        let variance = mean_of(sums([x, x], &mean, |x, _, mean| (x - mean) * (x - mean)));
        Self { mean, variance }
    }

    /// With the unbiased variance of so many rows.
    fn unbiased(mut self, rows: usize) -> Self {
        let factor = rows as f32 / (rows as f32 - 1.0).max(1.0);
        self.variance.iter_mut().for_each(|variance| *variance *= factor);
        self
    }

    /// 1 / sqrt(variance + ε).
    fn scale(&self) -> Vec<f32> {
        self.variance.iter().map(|variance| 1.0 / (variance + NORM_EPSILON).sqrt()).collect()
    }
}

impl Norm<'_> {
    /// Normalises with the moments of `x` itself. Returns them with the unbiased variance.
    pub(super) fn learn(&self, mut x: Vec<f32>) -> (Vec<f32>, Trace, Moments) {
        let moments = Moments::of(&x, self.gain.len());
        let scale = moments.scale();
        each(&mut x, [&moments.mean, &scale], |x, mean, scale| (x - mean) * scale);
        let mut out = x.clone();
        each(&mut out, [self.gain, self.shift], |n, gain, shift| n * gain + shift);
        let rows = x.len() / self.gain.len();
        (out, Trace { normalised: x, scale }, moments.unbiased(rows))
    }

    /// Normalises with these moments.
    pub(super) fn apply(&self, x: &mut [f32], moments: &Moments) {
        let scale = moments.scale();
        each(x, [&moments.mean, &scale], |x, mean, scale| (x - mean) * scale);
        each(x, [self.gain, self.shift], |n, gain, shift| n * gain + shift);
    }

    /// Turns the gradient of the result into that of `x`, and writes those of the parameters.
    pub(super) fn backward(&self, trace: &Trace, d: &mut [f32], d_gain: &mut [f32], d_shift: &mut [f32]) {
        let channels = self.gain.len();
        let count = (d.len() / channels) as f64;
        let normalised = &trace.normalised;
        let of_shift = sums([d, d], self.gain, |d, _, _| d);
        let of_gain = sums([d, normalised], self.gain, |d, n, _| d * n);
        let write = |to: &mut [f32], sums: &[f64]| {
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum as f32);
        };
        write(d_gain, &of_gain);
        write(d_shift, &of_shift);
        let means = |sums: &[f64]| sums.iter().map(|sum| (sum / count) as f32).collect::<Vec<f32>>();
        let [mean, slope] = [means(&of_shift), means(&of_gain)];
        let factor: Vec<f32> = self.gain.iter().zip(&trace.scale).map(|(gain, scale)| gain * scale).collect();
        vectorised(
            #[inline(always)]
            || {
                for (d, n) in d.chunks_exact_mut(channels).zip(normalised.chunks_exact(channels)) {
                    let of_channel = mean.iter().zip(&slope).zip(&factor);
                    for ((d, n), ((mean, slope), factor)) in d.iter_mut().zip(n).zip(of_channel) {
                        *d = (*d - mean - n * slope) * factor;
                    }
                }
            },
        );
    }
}

/// Sums over the rows of `a` and `b`, channel by channel.
fn sums([a, b]: [&[f32]; 2], of_channel: &[f32], term: impl Fn(f32, f32, f32) -> f32) -> Vec<f64> {
    let channels = of_channel.len();
    let (mut total, mut part) = (vec![0.0; channels], vec![0.0; channels]);
    vectorised(
        #[inline(always)]
        || {
            let parts = a.chunks(ROWS_AT_ONCE * channels).zip(b.chunks(ROWS_AT_ONCE * channels));
            for (a, b) in parts {
                part.fill(0.0_f32);
                for (a, b) in a.chunks_exact(channels).zip(b.chunks_exact(channels)) {
                    for (((sum, &a), &b), &of_channel) in part.iter_mut().zip(a).zip(b).zip(of_channel) {
                        *sum += term(a, b, of_channel);
                    }
                }
                total.iter_mut().zip(&part).for_each(|(total, &part)| *total += f64::from(part));
            }
        },
    );
    total
}

/// Applies a function to every value and two numbers of its channel.
fn each(x: &mut [f32], of_channel: [&[f32]; 2], with: impl Fn(f32, f32, f32) -> f32) {
    let [first, second] = of_channel;
    vectorised(
        #[inline(always)]
        || {
            for row in x.chunks_exact_mut(first.len()) {
                for ((x, &first), &second) in row.iter_mut().zip(first).zip(second) {
                    *x = with(*x, first, second);
                }
            }
        },
    );
}
