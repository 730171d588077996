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

pub(super) fn cosine(text: &str) -> Result<f64, String> {
    number_where(text, |number| number > 0.0 && number <= 1.0, "above 0 and at most 1")
}

/// A whole number, which k, M, B or G may follow.
pub(super) fn count(text: &str) -> Result<NonZeroUsize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'B' | 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok().map(|number| number * unit);
    // Decimal fractions times a unit are whole but for their last digits.
    let is_whole = |number: &f64| (number - number.round()).abs() <= 1e-12 * number;
    let number = number.filter(|number| (1.0..=1e12).contains(number) && is_whole(number));
    let count = number.and_then(|number| NonZeroUsize::new(number.round() as usize));
    count.ok_or_else(|| "expected a whole number such as 1000, 2.5e7, 3.1M or 7B".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        let counts = ["1000", "3.1M", "4.653200M", "25k", "1G"].map(|text| count(text).unwrap().get());
        assert_eq!(counts, [1000, 3_100_000, 4_653_200, 25_000, 1_000_000_000]);
        let counts = ["7B", "2.5e7", "1e3", "0.35B", "1.1e1M"].map(|text| count(text).unwrap().get());
        assert_eq!(counts, [7_000_000_000, 25_000_000, 1000, 350_000_000, 11_000_000]);
        for wrong in ["", "M", "B", "0", "-1", "1.5", "2.55e1", "1e99", "2T", "nan", "inf", "1e-4k"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert!(positive("0").is_err() && not_negative("0").is_ok() && not_negative("-1").is_err());
        assert!(
            cosine("0").is_err() && cosine("1.01").is_err() && cosine("1").is_ok() && cosine("nan").is_err()
        );
        assert!(at_least_one("0.9").is_err() && per_cent("100").is_err() && positive("inf").is_err());
    }
}
