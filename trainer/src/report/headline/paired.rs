//! How much a codec differs from dense training, by pairs of runs with the same seed.

use super::is_text;
use crate::compare::{Entry, Spread};
use crate::record::Summary;
use crate::report::numbers::decimal;

/// A loss of accuracy that matters, in points; at least what one test example is worth.
const POINTS: f64 = 1.0;

/// A loss of perplexity that matters, as a share of dense training's.
const PERPLEXITY: f64 = 0.01;

/// Mean difference of the pairs, codec less dense training, with its 95 % interval: Student's t times the
/// standard error of the differences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct Paired {
    /// In points of accuracy, or in perplexity.
    mean: f64,
    /// Half the width of the interval, at least what one test example is worth.
    half: f64,
    /// The loss that matters.
    margin: f64,
    pairs: usize,
    is_text: bool,
}

/// What the interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It reaches no loss, and excludes one that matters.
    Kept,
    /// It excludes that nothing was lost.
    Lost,
    /// Neither.
    Unclear,
}

impl Paired {
    /// None if fewer than two seeds are in both rows.
    pub(super) fn of(entry: &Entry, dense: &Entry) -> Option<Self> {
        let is_text = is_text(dense);
        let quality = |run: &Summary| match is_text {
            true => run.perplexity.unwrap_or(f64::NAN),
            false => 100.0 * run.accuracy,
        };
        let pairs = entry.outcomes.iter().filter_map(|run| {
            let same = dense.outcomes.iter().find(|other| other.summary.seed == run.summary.seed)?;
            Some(quality(&run.summary) - quality(&same.summary))
        });
        let differences: Vec<f64> = pairs.collect();
        let pairs = differences.len();
        let Spread { mean, deviation } = Spread::of(differences.into_iter());
        let example = if is_text { 0.0 } else { 100.0 * dense.spread(|run| run.accuracy_resolution).mean };
        let margin = if is_text { PERPLEXITY * dense.spread(quality).mean } else { POINTS.max(example) };
        let half = (student(pairs.checked_sub(1).filter(|&free| free > 0)?) * deviation
            / (pairs as f64).sqrt())
        .max(example);
        mean.is_finite().then_some(Self { mean, half, margin, pairs, is_text })
    }

    pub(super) fn verdict(self) -> Verdict {
        let loss = if self.is_text { self.mean } else { -self.mean };
        match (loss - self.half > 0.0, loss + self.half <= self.margin) {
            (true, _) => Verdict::Lost,
            (false, true) => Verdict::Kept,
            (false, false) => Verdict::Unclear,
        }
    }

    /// The difference and its interval, for a cell of a table.
    pub(in crate::report) fn short(self) -> String {
        match self.is_text {
            true => format!("{} ± {}", signed(self.mean, 3), decimal(self.half, 3)),
            false => format!("{} ± {:.2}", signed(self.mean, 2), self.half),
        }
    }

    /// The difference in words: its unit, its interval, and how many pairs there are.
    pub(super) fn text(self) -> String {
        let (decimals, unit) = if self.is_text { (3, "") } else { (2, " points") };
        let number = |value| signed(value, decimals);
        format!(
            "{}{unit} (95 % interval {} to {}, by {} pairs of equal seeds; {:.decimals$}{unit} would matter)",
            number(self.mean),
            number(self.mean - self.half),
            number(self.mean + self.half),
            self.pairs,
            self.margin
        )
    }
}

/// A number with its sign; none for zero.
fn signed(value: f64, decimals: usize) -> String {
    let text = decimal(value.abs(), decimals);
    let is_zero = text.chars().all(|digit| matches!(digit, '0' | '.'));
    let sign = if is_zero {
        ""
    } else if value < 0.0 {
        "−"
    } else {
        "+"
    };
    format!("{sign}{text}")
}

/// Student's t with so many degrees of freedom, beyond which 2.5 % lie on either side.
fn student(free: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788,
        2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
        2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    ];
    const NORMAL: f64 = 1.959_964;
    // Fisher's expansion in 1 / free, to its second term.
    let tail = |free: f64| {
        let (z, cube, fifth) = (NORMAL, NORMAL.powi(3), NORMAL.powi(5));
        z + (cube + z) / (4.0 * free) + (5.0 * fifth + 16.0 * cube + 3.0 * z) / (96.0 * free * free)
    };
    TABLE.get(free.wrapping_sub(1)).copied().unwrap_or_else(|| tail(free as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::fixture;

    fn entry(codec: &str, quality: &[f64]) -> Entry {
        fixture::entry(codec, 0.1, quality, 9)
    }

    #[test]
    fn the_interval_is_that_of_students_t() {
        // Published quantiles.
        for (free, expected) in [(1, 12.706), (4, 2.776), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)]
        {
            assert!((student(free) - expected).abs() < 6e-4, "{free}: {}", student(free));
        }
        assert!((2..2000).all(|free| student(free) < student(free - 1)));
        // Differences of −1, −2 and −3 points: mean −2, standard error 1/√3.
        let dense = entry("none", &[0.90, 0.92, 0.94]);
        let paired = Paired::of(&entry("topk", &[0.89, 0.90, 0.91]), &dense).unwrap();
        assert!((paired.mean + 2.0).abs() < 1e-9 && (paired.half - 4.3027 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(paired.short(), "−2.00 ± 2.48");
    }

    #[test]
    fn an_interval_is_no_narrower_than_one_example_and_zero_has_no_sign() {
        let same = Paired::of(&entry("topk", &[0.9, 0.8]), &entry("none", &[0.9, 0.8])).unwrap();
        assert_eq!((same.short().as_str(), same.verdict()), ("0.00 ± 0.10", Verdict::Kept));
        let text = Paired::of(&entry("topk", &[5.0, 6.0]), &entry("none", &[4.0, 5.0])).unwrap();
        assert_eq!((text.short().as_str(), text.verdict()), ("+1.000 ± 0.000", Verdict::Lost));
        assert_eq!(Paired::of(&entry("topk", &[0.9]), &entry("none", &[0.9])), None);
    }
}
