//! The content of a frame, and its distance from the gradient.

use gradwire::Frame;
use gradwire::format::UnitInfo;

/// Entries of a frame, and the bytes they take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entries {
    /// Entries with a value.
    pub(super) sent: usize,
    /// Bytes of positions, with everything needed to read them; none if no positions are written.
    pub(super) position_bytes: Option<usize>,
    /// Bytes of values or levels, the norms that scale them included.
    pub(super) value_bytes: usize,
}

impl Entries {
    /// Adds the numbers of a parsed frame.
    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        for info in frame.units().map(|unit| unit.info()) {
            let value_bytes = value_bytes(&info);
            self.sent += info.held;
            self.value_bytes += value_bytes;
            match info.index {
                // A unit of levels reports its norms in place of positions.
                Some((_, bytes)) if info.kind == "levels" => self.value_bytes += bytes,
                // Counts, lengths and coders included: everything except values.
                Some(_) => *self.position_bytes.get_or_insert(0) += info.body_bytes - value_bytes,
                None => {}
            }
        }
    }

    /// Bits of positions for each entry that is sent, where positions are written.
    pub(super) fn index_bits(&self) -> Option<f64> {
        bits_per(self.position_bytes?, self.sent)
    }

    /// Bits that the value of an entry takes.
    pub(super) fn value_bits(&self) -> Option<f64> {
        bits_per(self.value_bytes, self.sent)
    }
}

/// Bytes of the values of a unit. A body of another crate does not say what its parts are: all of it counts.
pub(super) fn value_bytes(info: &UnitInfo) -> usize {
    let whole = if info.index.is_none() { info.body_bytes } else { 0 };
    info.values.map_or(whole, |(_, bytes)| bytes)
}

/// Bits that each of `entries` takes of `bytes`; none if there are no entries.
pub(super) fn bits_per(bytes: usize, entries: usize) -> Option<f64> {
    (entries > 0).then(|| bytes as f64 * 8.0 / entries as f64)
}

/// How far two vectors are apart; sums in f64, coordinates ascending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Distance {
    /// ‖y − x‖² / ‖x‖²; none where x is zero and y is not.
    pub(super) nmse: Option<f64>,
    /// x·y / (‖x‖·‖y‖); none where one of them is zero.
    pub(super) cosine: Option<f64>,
}

impl Distance {
    /// The distance of `y` from `x`.
    pub(super) fn between(x: &[f32], y: &[f32]) -> Self {
        let (mut error, mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0, 0.0);
        for (&x, &y) in x.iter().zip(y) {
            let (x, y) = (f64::from(x), f64::from(y));
            error += (y - x) * (y - x);
            xx += x * x;
            yy += y * y;
            xy += x * y;
        }
        let nmse = if error == 0.0 { Some(0.0) } else { finite(error / xx) };
        Self { nmse, cosine: finite(xy / (xx.sqrt() * yy.sqrt())) }
    }
}

/// The number, if it is finite.
pub(super) fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_definition() {
        let distance = Distance::between(&[3.0, 4.0], &[3.0, 0.0]);
        assert_eq!(distance, Distance { nmse: Some(16.0 / 25.0), cosine: Some(9.0 / 15.0) });
    }

    #[test]
    fn zeros_have_no_direction() {
        assert_eq!(Distance::between(&[0.0], &[0.0]), Distance { nmse: Some(0.0), cosine: None });
        assert_eq!(Distance::between(&[0.0], &[1.0]), Distance { nmse: None, cosine: None });
        assert_eq!(Distance::between(&[1.0], &[0.0]), Distance { nmse: Some(1.0), cosine: None });
    }
}
