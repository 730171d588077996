//! Numbers as people read them: three digits and a unit.

/// A rate with three digits.
pub(super) fn bits_per_second(gbps: f64) -> String {
    scaled(gbps * 1e9, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")], "bit/s")
}

/// From here on a number is shown with an exponent: only runs that diverge have such.
const LARGE: f64 = 1e6;

/// A number of this size with an exponent, or nothing for a smaller one.
pub(crate) fn scientific(value: f64) -> Option<String> {
    (value.is_finite() && value.abs() >= LARGE).then(|| format!("{value:.1e}"))
}

/// A number with so many decimals, however large it is.
pub(crate) fn decimal(value: f64, decimals: usize) -> String {
    scientific(value).unwrap_or_else(|| format!("{value:.decimals$}"))
}

/// A ratio with three digits.
pub(crate) fn ratio_text(ratio: f64) -> String {
    if ratio >= 99.95 {
        format!("{ratio:.0}x")
    } else if ratio >= 9.995 {
        format!("{ratio:.1}x")
    } else {
        format!("{ratio:.2}x")
    }
}

/// Bytes with three digits, in powers of 1000.
pub(crate) fn bytes(bytes: f64) -> String {
    scaled(bytes, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// A time with three digits.
pub(crate) fn duration(seconds: f64) -> String {
    scaled(seconds * 1e9, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs")], "ns")
}

fn scaled(value: f64, units: &[(f64, &str)], smallest: &str) -> String {
    match units.iter().find(|(size, _)| value >= 0.9995 * size) {
        Some((size, unit)) => {
            let value = value / size;
            let decimals = if value >= 99.95 {
                0
            } else if value >= 9.995 {
                1
            } else {
                2
            };
            format!("{value:.decimals$} {unit}")
        }
        None => format!("{value:.0} {smallest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_few_digits() {
        assert_eq!(
            [2.5, 999_999.0, 1e36, -3.21e7].map(|x| decimal(x, 2)),
            ["2.50", "999999.00", "1.0e36", "-3.2e7"]
        );
        assert_eq!([f64::NAN, f64::INFINITY].map(|x| decimal(x, 2)), ["NaN", "inf"]);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(
            [0.0, 999.0, 999.9, 1e3, 12_345.0, 123_456_789.0].map(bytes),
            ["0 B", "999 B", "1.00 kB", "1.00 kB", "12.3 kB", "123 MB"]
        );
        assert_eq!([0.0, 5e-7, 1.5e-3, 2.0].map(duration), ["0 ns", "500 ns", "1.50 ms", "2.00 s"]);
        assert_eq!([1.0, 76.06, 160.4].map(ratio_text), ["1.00x", "76.1x", "160x"]);
    }
}
