//! SIDCo: thresholds from fitted distributions, and stages that adapt.

use super::encode::{billionths, count, largest};
use gradwire::Density;
use gradwire::codecs::{Fit, Sidco};
use gradwire::state::UnitState;

/// Eight strided sums and their tree.
fn strided(values: impl Iterator<Item = (usize, f64)>) -> f64 {
    let mut q = [0.0f64; 8];
    values.for_each(|(i, value)| q[i % 8] += value);
    tree(q)
}

fn tree(q: [f64; 8]) -> f64 {
    ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]))
}

/// Number, mean and unbiased variance of the excesses over the threshold, each with its position in the unit.
fn moments(excesses: &[(usize, f64)]) -> (usize, f64, f64) {
    let n = excesses.len();
    let sum = strided(excesses.iter().copied());
    let squares = strided(excesses.iter().map(|&(i, x)| (i, x * x)));
    let mean = if n == 0 { 0.0 } else { sum / n as f64 };
    let variance = if n < 2 { 0.0 } else { (squares - sum * mean) / (n - 1) as f64 };
    (n, mean, variance)
}

/// Mantissa in [1, 2) and exponent.
fn parts(value: f64) -> (f64, i64) {
    let exponent = (value.to_bits() >> 52) as i64 - 1023;
    (f64::from_bits(value.to_bits() & ((1 << 52) - 1) | 1023 << 52), exponent)
}

/// Sum of the logarithms: products of mantissas by stride, made normal after every 1024 elements, and
/// exponents.
fn logarithms(p: &[f32]) -> f64 {
    let (mut product, mut exponents) = ([1.0f64; 8], 0i64);
    for block in p.chunks(1024) {
        for (i, value) in block.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            let (mantissa, exponent) = parts(f64::from(value.abs()));
            product[i % 8] *= mantissa;
            exponents += exponent;
        }
        for product in &mut product {
            let (mantissa, exponent) = parts(*product);
            *product = mantissa;
            exponents += exponent;
        }
    }
    exponents as f64 * std::f64::consts::LN_2 + tree(product.map(libm::log))
}

fn exponential(mean: f64, share: f64) -> f64 {
    -mean * libm::log(share)
}

fn pareto(mean: f64, variance: f64, share: f64) -> f64 {
    let ratio = mean * mean / variance;
    if !(0.0..f64::INFINITY).contains(&ratio) {
        return mean;
    }
    let (shape, scale) = (0.5 * (1.0 - ratio), 0.5 * mean * (ratio + 1.0));
    if shape.abs() < 1e-6 {
        exponential(scale, share)
    } else {
        scale / shape * (libm::pow(share, -shape) - 1.0)
    }
}

fn gamma(mean: f64, mean_log: f64, share: f64) -> f64 {
    let s = libm::log(mean) - mean_log;
    let shape = (3.0 - s + libm::sqrt((s - 3.0) * (s - 3.0) + 24.0 * s)) / (12.0 * s);
    if !(0.0 < shape && shape <= 100.0) {
        return mean;
    }
    let wanted = libm::log(share);
    let log_gamma = libm::lgamma(shape);
    let mut x = f64::max(-wanted - log_gamma, 0.5 * shape);
    for _ in 0..24 {
        let tail = log_tail(shape, log_gamma, x);
        let slope = libm::exp(tail - ((shape - 1.0) * libm::log(x) - x - log_gamma));
        x = f64::max(x + (tail - wanted) * slope, 0.125 * x);
    }
    mean / shape * x
}

/// ln Q(a, x): a series below a + 1, a continued fraction (Lentz) from there on.
fn log_tail(a: f64, log_gamma: f64, x: f64) -> f64 {
    let front = a * libm::log(x) - x - log_gamma;
    if x < a + 1.0 {
        let mut terms = vec![1.0 / a];
        let mut sum = 1.0 / a;
        while terms.len() <= 500 {
            let term = terms[terms.len() - 1] * (x / (a + terms.len() as f64));
            terms.push(term);
            sum += term;
            if term < sum * f64::EPSILON {
                break;
            }
        }
        return libm::log1p(-f64::min(libm::exp(front) * sum, 1.0 - f64::EPSILON));
    }
    let (mut b, mut c) = (x + 1.0 - a, f64::INFINITY);
    let mut d = 1.0 / b;
    let mut fraction = d;
    for i in 1..=500 {
        let numerator = f64::from(i) * (a - f64::from(i));
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        fraction *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    front + libm::log(fraction)
}

/// The threshold that about k elements exceed.
fn threshold(fit: Fit, p: &[f32], k: usize, stages: u32) -> f64 {
    let above = |threshold: f64| -> Vec<(usize, f64)> {
        let magnitudes = p.iter().map(|value| f64::from(value.abs())).enumerate();
        magnitudes.filter(|&(_, x)| x > threshold).map(|(i, x)| (i, x - threshold)).collect()
    };
    let (n, mean, variance) = moments(&above(0.0));
    if n <= k {
        return 0.0;
    }
    let share = k as f64 / n as f64;
    let several = stages > 1 && share < 0.25;
    let first = if several { 0.25 } else { share };
    let mut threshold = match fit {
        Fit::Exponential => exponential(mean, first),
        Fit::Gamma => gamma(mean, logarithms(p) / n as f64, first),
        _ => pareto(mean, variance, first),
    };
    if several {
        let later = libm::pow(share / 0.25, 1.0 / f64::from(stages - 1));
        for _ in 1..stages {
            let (n, mean, variance) = moments(&above(threshold));
            if n < 2 {
                break;
            }
            threshold += match fit {
                Fit::Exponential => exponential(mean, later),
                _ => pareto(mean, variance, later),
            };
        }
    }
    threshold
}

/// ⌈log2(1/density)⌉, 1 at the least.
fn most_stages(density: Density) -> u32 {
    let mut stages = 1;
    while billionths(density) << stages < 1_000_000_000 {
        stages += 1;
    }
    stages
}

/// The state after a step that left `ratio` times what was wanted.
fn adapt(words: [u32; 4], stages: u32, ratio: f32, most: u32) -> [u32; 4] {
    let (falling, steps) = (words[0] >> 8 & 1, words[1] % 5 + 1);
    let before = f32::from_bits(words[2]);
    let ratios = if before.is_finite() { before } else { 0.0 } + ratio;
    if steps < 5 {
        return [stages - 1 + 256 * falling, steps, ratios.to_bits(), 0];
    }
    let mean = ratios / 5.0;
    if (0.8..=1.2).contains(&mean) {
        return [stages - 1 + 256 * falling, 0, 0, 0];
    }
    let (stages, falling) = match (falling, stages) {
        _ if most == 1 => (1, 1 - falling),
        (0, stages) if stages == most => (most - 1, 1),
        (0, stages) => (stages + 1, 0),
        (_, 1) => (2, 0),
        (_, stages) => (stages - 1, 1),
    };
    [stages - 1 + 256 * falling, 0, 0, 0]
}

/// Positions of what is sent, before the value coder, and the state after.
#[must_use]
pub fn select(sidco: &Sidco, state: UnitState, p: &[f32]) -> (Vec<usize>, UnitState) {
    if p.is_empty() {
        return (Vec::new(), state);
    }
    let (k, most) = (count(sidco.density(), p.len()), most_stages(sidco.density()));
    let adapting = ((state.words()[0] & 0xff) + 1).min(most);
    let mut threshold =
        threshold(sidco.fit(), p, k, sidco.stages().map_or(adapting, std::num::NonZeroU32::get));
    let exceeding = |threshold: f64| -> Vec<usize> {
        (0..p.len()).filter(|&i| f64::from(p[i].abs()) > threshold).collect()
    };
    let bounded = |exceeding: Vec<usize>| if exceeding.len() > 2 * k { largest(p, k) } else { exceeding };
    let first = exceeding(threshold);
    let ratio = if first.len() > 2 * k { 2.0 } else { first.len() as f32 / k as f32 };
    let mut selected = bounded(first);
    for _ in 0..4 {
        if 2 * selected.len() < k {
            threshold *= 0.7;
            selected = bounded(exceeding(threshold));
        }
    }
    if sidco.is_capped() && selected.len() > k {
        selected = largest(p, k);
    }
    (selected, UnitState::from_words(adapt(state.words(), adapting, ratio, most)))
}
