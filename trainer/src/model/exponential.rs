//! Exponential, logistic function and hyperbolic tangent of whole slices, in arithmetic that vectorises.

/// Beyond these the result would not be a normal number.
const RANGE: [f32; 2] = [-87.0, 88.0];

/// Adding it to a number below 2^22 leaves the nearest integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// ln 2 in two parts; the first has few bits, so that its products with small integers are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// e^x with a relative error below 2e-7; the argument is first clamped to −87…88. NaN stays NaN.
///
/// ```text
/// n = round(x / ln 2);  r = x − n·ln 2;  e^x = 2^n · (1 + r + r²·p(r))
/// ```
///
/// # Source
///
/// The polynomial of `expf` in the Cephes library, Stephen L. Moshier.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(RANGE[0], RANGE[1]);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + coefficient;
    }
    let power = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127) << 23;
    (p * r * r + r + 1.0) * f32::from_bits(power)
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub(super) fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, with an absolute error below 3e-7.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    2.0 * logistic(2.0 * x) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_exact_functions() {
        let (mut relative, mut absolute) = (0.0_f64, 0.0_f64);
        for step in -86_000..88_000 {
            let x = step as f32 * 1e-3;
            let exact = f64::from(x).exp();
            relative = relative.max((f64::from(exp(x)) / exact - 1.0).abs());
            absolute = absolute.max((f64::from(tanh(x)) - f64::from(x).tanh()).abs());
            absolute = absolute.max((f64::from(logistic(x)) - 1.0 / (1.0 + f64::from(-x).exp())).abs());
        }
        assert!(relative < 2e-7, "{relative:e}");
        assert!(absolute < 3e-7, "{absolute:e}");
    }

    #[test]
    fn what_is_far_out_is_finite_and_nan_stays() {
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::NEG_INFINITY) < 1e-37);
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [1.0, -1.0]);
        assert!([exp(f32::NAN), tanh(f32::NAN), logistic(f32::NAN)].iter().all(|value| value.is_nan()));
    }
}
