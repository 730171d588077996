//! Numbers of the command line that have a range.

use std::num::NonZeroUsize;

use crate::range::number_where;
pub(super) use crate::range::positive;

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    number_where(text, |number| number >= 0.0, "that is not negative")
}

pub(super) fn at_least_one(text: &str) -> Result<f64, String> {
    number_where(text, |number| number >= 1.0, "of at least 1")
}

pub(super) fn per_cent(text: &str) -> Result<f64, String> {
    number_where(text, |number| (0.0..100.0).contains(&number), "from 0 to below 100")
}

/// A whole number, which k, M or G may follow.
pub(super) fn count(text: &str) -> Result<NonZeroUsize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let count = digits.parse::<f64>().ok().map(|number| (number * unit).round());
    // A fraction that the unit does not make whole was rounded.
    let is_count = |count: &f64| (1.0..=1e12).contains(count) && (unit > 1.0 || !digits.contains('.'));
    let count = count.filter(is_count).and_then(|count| NonZeroUsize::new(count as usize));
    count.ok_or_else(|| "expected a number such as 1000, 3.1M or 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        let counts = ["1000", "3.1M", "4.653200M", "25k", "1G"].map(|text| count(text).unwrap().get());
        assert_eq!(counts, [1000, 3_100_000, 4_653_200, 25_000, 1_000_000_000]);
        for wrong in ["", "M", "0", "-1", "1.5", "1e99", "2T", "nan"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert!(positive("0").is_err() && not_negative("0").is_ok() && not_negative("-1").is_err());
        assert!(at_least_one("0.9").is_err() && per_cent("100").is_err() && positive("inf").is_err());
    }
}
