//! Where a logarithmic axis has its labels: at powers of ten, then at 5 and 2 times one, where there is room.

use std::ops::Range;

/// Labels of an axis, at least.
const LEAST: usize = 3;

/// Labels of an axis of which nothing but its range is known, at most.
const MOST: usize = 6;

/// The labels of an axis from above zero, in ascending order: at least three. Those of decades are at least
/// the share `room` of the axis apart.
pub(super) fn log_ticks(range: &Range<f64>, room: f64) -> Vec<f64> {
    let place = |tick: f64| (tick / range.start).ln() / (range.end / range.start).ln();
    let mut kept: Vec<f64> = Vec::new();
    let mut keep = |ticks: Vec<f64>| {
        for tick in ticks {
            if kept.iter().all(|other| (place(*other) - place(tick)).abs() >= room) {
                kept.push(tick);
            }
        }
        kept.len()
    };
    let found = [1.0, 5.0, 2.0].map(|digit| keep(decades(range, digit)));
    if found[2] < LEAST {
        kept = spaced(even(range), place, room);
    }
    kept.sort_by(f64::total_cmp);
    kept
}

/// This digit times every power of ten, as far as it lies in the range.
fn decades(range: &Range<f64>, digit: f64) -> Vec<f64> {
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    // Parsed, so that 0.2 is 0.2 and not 2 times the nearest number to 0.1.
    let tick = |power| format!("{digit}e{power}").parse::<f64>().unwrap_or(f64::NAN);
    (first..=last).map(tick).filter(|tick| range.contains(tick)).collect()
}

/// All of these ticks or every second one, whichever have room; the fewer, if neither have.
fn spaced(ticks: Vec<f64>, place: impl Fn(f64) -> f64, room: f64) -> Vec<f64> {
    let every = |stride: usize| ticks.iter().copied().step_by(stride).collect::<Vec<f64>>();
    let fits = |ticks: &Vec<f64>| ticks.windows(2).all(|pair| place(pair[1]) - place(pair[0]) >= room);
    let mut enough = (1..=2).map(every).filter(|ticks| ticks.len() >= LEAST);
    enough.clone().find(fits).or_else(|| enough.next_back()).unwrap_or(ticks.clone())
}

/// Multiples of the smallest 1, 2, 2.5 or 5 times a power of ten of which no more than [`MOST`] fit. Each of
/// these is at most twice the one before, so at least three fit.
fn even(range: &Range<f64>) -> Vec<f64> {
    let power = ((range.end - range.start) / MOST as f64).log10().floor() as i32;
    let steps =
        (power..=power + 2).flat_map(|power| [1.0, 2.0, 2.5, 5.0].map(|digit| digit * 10f64.powi(power)));
    let multiples = |step: f64| -> Vec<f64> {
        let (first, last) = ((range.start / step).ceil() as i64, (range.end / step).floor() as i64);
        (first..=last).map(|number| number as f64 * step).filter(|tick| range.contains(tick)).collect()
    };
    steps.map(multiples).find(|ticks| ticks.len() <= MOST).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_at_1_5_and_2_where_there_is_room() {
        assert_eq!(log_ticks(&(150.0..1100.0), 0.1), [200.0, 500.0, 1000.0]);
        assert_eq!(log_ticks(&(0.15..11.0), 0.1), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log_ticks(&(0.9..2e4), 0.1), [1.0, 10.0, 100.0, 1e3, 1e4]);
        // Words are wider than they are high: bytes of one comparison.
        assert_eq!(log_ticks(&(7e6..9e8), 0.19), [1e7, 1e8, 5e8]);
        // No power of ten, and none of 2 or 5 times one: perplexities of one comparison.
        assert_eq!(log_ticks(&(211.0..271.0), 0.1), [220.0, 230.0, 240.0, 250.0, 260.0, 270.0]);
        assert_eq!(log_ticks(&(211.0..271.0), 0.19), [220.0, 240.0, 260.0]);
    }

    #[test]
    fn any_range_has_three_ticks_within_it_and_those_of_decades_have_room() {
        for start in [1e-30, 3.7e-4, 0.099, 1.0, 2.0001, 77.0, 999.0, 5e9, 3e36] {
            for factor in
                [1.02, 1.1, 1.25, 1.6, 1.9, 2.5, 3.0, 4.9, 7.0, 12.0, 60.0, 99.0, 1e3, 1e5, 1e11, 1e30]
            {
                for room in [0.1, 0.19] {
                    let range = start..start * factor;
                    let ticks = log_ticks(&range, room);
                    assert!((LEAST..=11).contains(&ticks.len()), "{range:?}: {ticks:?}");
                    assert!(ticks.iter().all(|tick| range.contains(tick)), "{range:?}: {ticks:?}");
                    let apart = |pair: &[f64]| (pair[1] / pair[0]).ln() / factor.ln();
                    assert!(ticks.windows(2).all(|pair| apart(pair) > 0.05), "{range:?}: {ticks:?}");
                }
            }
        }
    }
}
