//! Tables for people: columns aligned, numbers in a few digits.

use std::io::{self, Write};

/// Rows of cells under column titles of one or two lines. The first column is aligned left, the others right.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these titles; the second line, usually units, may be empty.
    pub(super) fn new(titles: &[(&str, &str)]) -> Self {
        let upper = titles.iter().map(|title| title.0.to_owned()).collect();
        let lower: Vec<String> = titles.iter().map(|title| title.1.to_owned()).collect();
        let has_lower = lower.iter().any(|title| !title.is_empty());
        Self { rows: if has_lower { vec![upper, lower] } else { vec![upper] } }
    }

    /// Appends a row, one cell a column.
    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the table.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let padding = " ".repeat(width - width_of(cell));
                line += &if column == 0 { format!("{cell}{padding}") } else { format!("  {padding}{cell}") };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn width_of(cell: &str) -> usize {
    cell.chars().count()
}

/// A whole number with its digits in groups of three.
pub(super) fn grouped(number: usize) -> String {
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

/// A number in `digits` significant digits; with an exponent where it is below a thousandth.
pub(super) fn significant(number: f64, digits: u8) -> String {
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

/// A number in `digits` significant digits, or `-` where there is none.
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

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("codec", ""), ("size", "bytes")]);
        table.push(vec!["none".to_owned(), "4".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "codec   size\n       bytes\nnone       4\n");
    }
}
