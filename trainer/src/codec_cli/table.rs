//! Tables for people: columns aligned, numbers in a few digits.

use std::io::{self, Write};

use crate::terminal;

/// Rows of cells under column titles of one or two lines. The first column is aligned left, the others right.
#[derive(Clone, Debug)]
pub(super) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these titles; the second line, usually units, may be empty.
    pub(super) fn new(titles: &[(&str, &str)]) -> Self {
        let title = |&(upper, lower): &(&str, &str)| match lower {
            "" => upper.to_owned(),
            lower => format!("{upper}\n{lower}"),
        };
        Self { titles: titles.iter().map(title).collect(), rows: Vec::new() }
    }

    /// Appends a row, one cell a column; missing cells are empty.
    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the table, no wider than the terminal.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(terminal::table(&self.titles, &self.rows).as_bytes())
    }
}

/// A whole number with its digits in groups of three.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in `digits` significant digits; with an exponent if it is below a thousandth.
pub(crate) fn significant(number: f64, digits: u8) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let places = usize::from(digits.max(1)) - 1;
    // Rounded first: 0.9999 in three digits has one digit before the point, not none.
    let scientific = format!("{number:.places$e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<isize>().ok());
    match exponent {
        Some(exponent) if exponent >= -3 => {
            let decimals = places.saturating_add_signed(-exponent);
            format!("{number:.decimals$}")
        }
        _ => scientific,
    }
}

/// A number in `digits` significant digits, or `-` if there is none.
pub(super) fn optional(number: Option<f64>, digits: u8) -> String {
    number.map_or_else(|| "-".to_owned(), |number| significant(number, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_significant_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.000_123_4, "1.23e-4"),
            (0.012_34, "0.0123"),
            (0.9999, "1.00"),
            (1.234, "1.23"),
            (99.99, "100"),
            (1234.5, "1234"),
            (-0.5, "-0.500"),
        ] {
            assert_eq!(significant(number, 3), text);
        }
        assert_eq!(optional(None, 3), "-");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
