//! What the letters of a map stand for.

use super::grid::{Cell, Choice};
use super::predict::Route;
use super::show::number;

/// Pairs of a codec, by its number, and an exchange that some cell takes; each has a letter.
pub(super) struct Legend(Vec<(usize, Route)>);

impl Legend {
    /// Of these cells, in the order of their codecs.
    pub(super) fn of(cells: &[Cell]) -> Self {
        let mut pairs: Vec<_> = cells.iter().filter_map(pair).collect();
        pairs.sort_unstable();
        pairs.dedup();
        Self(pairs)
    }

    /// What a cell of a map says: the letter of what it takes, and how many times as fast a step is.
    pub(super) fn label(&self, cell: &Cell) -> String {
        let taken = pair(cell).and_then(|pair| self.0.binary_search(&pair).ok());
        let times = number(cell.speed_up);
        match (taken, cell.choice) {
            (Some(place), _) => format!("{} {times}", letter(place)),
            (None, Choice::Bf16) => format!("bf16 {times}"),
            (None, _) => String::from("dense"),
        }
    }

    /// A line for each letter. All `cells` have the same codecs.
    pub(super) fn lines(&self, cells: &[Cell]) -> Vec<String> {
        let line = |(place, (codec, exchange)): (usize, &(usize, Route))| {
            let codec = cells.first().map_or("", |cell| &cell.codecs[*codec].codec);
            format!("{}: {codec} by {}", letter(place), exchange.name())
        };
        self.0.iter().enumerate().map(line).collect()
    }
}

fn pair(cell: &Cell) -> Option<(usize, Route)> {
    match cell.choice {
        Choice::Codec(codec) => Some((codec, cell.exchange)),
        Choice::Dense | Choice::Bf16 => None,
    }
}

fn letter(place: usize) -> String {
    let letter = |digit: usize| char::from(b'A' + (digit % 26) as u8);
    match place / 26 {
        0 => letter(place).to_string(),
        more => format!("{}{}", letter(more - 1), letter(place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_short() {
        assert_eq!([0, 25, 26, 53].map(letter), ["A", "Z", "AA", "BB"]);
    }
}
