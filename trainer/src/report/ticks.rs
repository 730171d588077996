//! Where a logarithmic axis has its labels: at 1, 2 and 5 times a power of ten, or fewer or more of them.

use std::ops::Range;

/// Labels of an axis, at most.
const MOST: usize = 6;

/// Labels of an axis, at least.
const LEAST: usize = 3;

/// The labels of an axis from above zero: from 3 to 6.
pub(super) fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let sets = [&[1.0, 2.0, 5.0][..], &[1.0, 5.0], &[1.0]].map(|digits| decades(range, digits, 1));
    let sparse = (2..700).map(|stride| decades(range, &[1.0], stride));
    let fits = |ticks: &Vec<f64>| ticks.len() <= MOST;
    let ticks = sets.into_iter().chain(sparse).find(fits).unwrap_or_default();
    if ticks.len() >= LEAST { ticks } else { even(range) }
}

/// These digits times every power of ten whose exponent `stride` divides, as far as they lie in the range.
fn decades(range: &Range<f64>, digits: &[f64], stride: i32) -> Vec<f64> {
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    let powers = (first..=last).filter(|power| power % stride == 0);
    // Parsed, so that 0.2 is 0.2 and not 2 times the nearest number to 0.1.
    let tick = |power, digit| format!("{digit}e{power}").parse::<f64>().unwrap_or(f64::NAN);
    let all = powers.flat_map(|power| digits.iter().map(move |&digit| tick(power, digit)));
    all.filter(|tick| range.contains(tick)).collect()
}

/// Multiples of the smallest 1, 2, 2.5 or 5 times a power of ten of which no more than [`MOST`] fit. Each of
/// these is at most twice the one before, so at least three fit.
fn even(range: &Range<f64>) -> Vec<f64> {
    let power = ((range.end - range.start) / MOST as f64).log10().floor() as i32;
    let steps =
        (power..=power + 2).flat_map(|power| [1.0, 2.0, 2.5, 5.0].map(|digit| digit * 10f64.powi(power)));
    let multiples = |step: f64| -> Vec<f64> {
        let (first, last) = ((range.start / step).ceil() as i64, (range.end / step).floor() as i64);
        (first..=last).map(|number| number as f64 * step).collect()
    };
    steps.map(multiples).find(|ticks| ticks.len() <= MOST).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_at_1_2_and_5_where_they_fit() {
        assert_eq!(log_ticks(&(150.0..1100.0)), [200.0, 500.0, 1000.0]);
        assert_eq!(log_ticks(&(0.15..11.0)), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log_ticks(&(1.01..600.0)), [5.0, 10.0, 50.0, 100.0, 500.0]);
        assert_eq!(log_ticks(&(0.9..2e4)), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert_eq!(log_ticks(&(0.5..2e9)), [1.0, 100.0, 1e4, 1e6, 1e8]);
        // No power of ten, and none of 2 or 5 times one: perplexities of one comparison.
        assert_eq!(log_ticks(&(211.0..271.0)), [220.0, 230.0, 240.0, 250.0, 260.0, 270.0]);
    }

    #[test]
    fn any_range_has_three_to_six_ticks_within_it() {
        for start in [1e-30, 3.7e-4, 0.099, 1.0, 2.0001, 77.0, 999.0, 5e9, 3e36] {
            for factor in
                [1.02, 1.1, 1.25, 1.6, 1.9, 2.5, 3.0, 4.9, 7.0, 12.0, 60.0, 99.0, 1e3, 1e5, 1e11, 1e30]
            {
                let range = start..start * factor;
                let ticks = log_ticks(&range);
                assert!((LEAST..=MOST).contains(&ticks.len()), "{range:?}: {ticks:?}");
                assert!(ticks.iter().all(|tick| range.contains(tick)), "{range:?}: {ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{range:?}: {ticks:?}");
            }
        }
    }
}
