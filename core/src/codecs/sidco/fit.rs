//! Thresholds from fitted distributions.

use super::moments::Moments;

/// The distribution that is fitted to magnitudes: the key `fit=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fit {
    /// Exponential: magnitudes of a Laplace distribution.
    Exponential,
    /// Gamma, of a double gamma distribution, in the first stage; generalised Pareto in the later ones.
    Gamma,
    /// Generalised Pareto, by moments.
    #[default]
    Pareto,
}

/// Below this shape a generalised Pareto distribution is treated as its limit, the exponential one.
const SMALLEST_SHAPE: f64 = 1e-6;

/// A gamma distribution of a larger shape is treated as its mean, because its magnitudes hardly differ.
const LARGEST_SHAPE: f64 = 100.0;

/// The value that a share `delta` of an exponential distribution exceeds.
///
/// # Source
/// Abdelmoniem et al.: SIDCo (MLSys 2021), corollary 1.1.
pub(super) fn exponential(mean: f64, delta: f64) -> f64 {
    -mean * libm::log(delta)
}

/// The same for a generalised Pareto distribution fitted by moments; the mean if there is no variance.
///
/// # Source
/// The same, corollary 1.3 and lemma 2.
pub(super) fn pareto(moments: &Moments, delta: f64) -> f64 {
    let Moments { mean, variance, .. } = *moments;
    let ratio = mean * mean / variance;
    if !ratio.is_finite() || ratio < 0.0 {
        return mean;
    }
    let shape = 0.5 * (1.0 - ratio);
    let scale = 0.5 * mean * (ratio + 1.0);
    if shape.abs() < SMALLEST_SHAPE {
        return exponential(scale, delta);
    }
    scale / shape * (libm::pow(delta, -shape) - 1.0)
}

/// The same for a gamma distribution with this mean and this mean of logarithms. Minka's closed form gives
/// its shape.
///
/// # Source
/// The same, corollary 1.2, but with the quantile itself instead of its approximation.
pub(super) fn gamma(mean: f64, mean_logarithm: f64, delta: f64) -> f64 {
    let s = libm::log(mean) - mean_logarithm;
    let shape = (3.0 - s + libm::sqrt((s - 3.0) * (s - 3.0) + 24.0 * s)) / (12.0 * s);
    if !(shape > 0.0 && shape <= LARGEST_SHAPE) {
        return mean;
    }
    mean / shape * gamma_quantile(shape, libm::log(delta))
}

/// Newton steps on the logarithm of the tail; it is nearly straight, so few are needed.
const NEWTON_STEPS: usize = 24;

/// The x at which the upper tail Q(shape, x) has the logarithm `log_tail`, below 0.
fn gamma_quantile(shape: f64, log_tail: f64) -> f64 {
    let log_gamma = libm::lgamma(shape);
    let mut x = (-log_tail - log_gamma).max(0.5 * shape);
    for _ in 0..NEWTON_STEPS {
        let tail = log_upper_tail(shape, log_gamma, x);
        let log_density = (shape - 1.0) * libm::log(x) - x - log_gamma;
        // A step never reaches zero or goes below it.
        x = (x + (tail - log_tail) * libm::exp(tail - log_density)).max(0.125 * x);
    }
    x
}

/// The most terms of a series or a continued fraction.
const TERMS: usize = 500;

/// ln Q(a, x), the logarithm of the regularised upper incomplete gamma function.
///
/// # Source
/// NIST Digital Library of Mathematical Functions, 8.11.4 (series) and 8.9.2 (continued fraction, by Lentz's
/// method).
fn log_upper_tail(a: f64, log_gamma: f64, x: f64) -> f64 {
    let log_front = a * libm::log(x) - x - log_gamma;
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for i in 1..=TERMS {
            term *= x / (a + i as f64);
            sum += term;
            if term < sum * f64::EPSILON {
                break;
            }
        }
        return libm::log1p(-(libm::exp(log_front) * sum).min(1.0 - f64::EPSILON));
    }
    let mut b = x + 1.0 - a;
    let mut d = 1.0 / b;
    let (mut c, mut fraction) = (f64::INFINITY, d);
    for i in 1..=TERMS {
        let i = i as f64;
        let numerator = i * (a - i);
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        fraction *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    log_front + libm::log(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_threshold_comes_out() {
        assert!((exponential(2.0, libm::exp(-3.0)) - 6.0).abs() < 1e-12);
        // Variance = mean²: the shape is 0, the limit.
        let moments = Moments { count: 9, mean: 2.0, variance: 4.0 };
        assert_eq!(pareto(&moments, 0.1), exponential(2.0, 0.1));
        for ratio in [0.999_999, 1.000_001, 0.999_99, 1.000_01] {
            let near = Moments { variance: 4.0 * ratio, ..moments };
            assert!((pareto(&near, 0.1) / exponential(2.0, 0.1) - 1.0).abs() < 1e-4);
        }
        assert_eq!(pareto(&Moments { variance: 0.0, ..moments }, 0.1), 2.0);
    }

    /// A generalised Pareto distribution of shape ξ and scale β has tail (1 + ξx/β)^(−1/ξ).
    #[test]
    fn pareto_thresholds_leave_their_share() {
        for (shape, scale) in [(0.3, 1.0), (-0.4, 2.0), (0.1, 1e-6)] {
            let mean = scale / (1.0 - shape);
            let variance = scale * scale / ((1.0 - shape) * (1.0 - shape) * (1.0 - 2.0 * shape));
            for delta in [0.25, 0.01, 1e-6] {
                let x = pareto(&Moments { count: 9, mean, variance }, delta);
                let tail = libm::pow(1.0 + shape * x / scale, -1.0 / shape);
                assert!((tail / delta - 1.0).abs() < 1e-9, "shape {shape}: {tail} for {delta}");
            }
        }
    }

    #[test]
    fn gamma_quantiles_leave_their_share() {
        for shape in [0.05, 0.2, 0.5, 1.0, 1.7, 5.0, 20.0, 100.0] {
            for delta in [0.5, 0.25, 0.1, 0.01, 1e-4, 1e-9] {
                let x = gamma_quantile(shape, libm::log(delta));
                let tail = log_upper_tail(shape, libm::lgamma(shape), x);
                assert!((tail - libm::log(delta)).abs() < 1e-6, "shape {shape}, {delta}: x {x}, tail {tail}");
            }
        }
        // Shape 1 is the exponential distribution.
        assert!((gamma_quantile(1.0, -3.0) - 3.0).abs() < 1e-12);
        // Shape 1/2: Q(1/2, x) = erfc(√x).
        let x = gamma_quantile(0.5, libm::log(0.01));
        assert!((libm::erfc(libm::sqrt(x)) - 0.01).abs() < 1e-12);
    }

    #[test]
    fn degenerate_fits_are_the_mean() {
        assert_eq!(gamma(3.0, libm::log(3.0), 0.1), 3.0);
        assert_eq!(gamma(3.0, f64::NAN, 0.1), 3.0);
    }
}
