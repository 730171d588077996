//! The result in a sentence: which codec saves most bytes and is as good as dense training.
//!
//! A codec is *within the spread* of dense training if its mean is worse than dense training's by at most a
//! tolerance, which the sentence states. The tolerance is the standard deviation of dense training over its
//! seeds, but at least the worth of one test example. One seed has no deviation: the tolerance is then one
//! standard error of dense training's accuracy, as of a share of that many test examples, and for text 1 % of
//! its perplexity.

use crate::compare::{Broken, Comparison, Entry};
use crate::config::RunConfig;
use crate::report::table::ratio_text;

/// Of perplexity, if a single seed gives no spread.
const PERPLEXITY_TOLERANCE: f64 = 0.01;

/// What a comparison found for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// Whether the codec is within the spread of dense training; if none is, this is the codec that came
    /// nearest.
    pub is_within: bool,
    /// The codec, with settings of its own.
    pub label: String,
    /// How many times fewer bytes it moved: `38.2x`.
    pub saved: String,
    /// Its quality, and what that is measured by: `97.1 % test accuracy`.
    pub quality: String,
    /// The dense row that it is compared with: the best with the same momentum, if there is one.
    pub dense: String,
    /// Its quality.
    pub dense_quality: String,
    /// How much worse still counts as equal, and why so much.
    pub tolerance: String,
}

/// One for each model, number of workers, batch and length with a dense row and a codec that moves fewer
/// bytes.
pub fn headlines(comparison: &Comparison) -> Vec<Headline> {
    let finished = || comparison.entries.iter().filter(|entry| !entry.outcomes.is_empty());
    let mut models: Vec<&Entry> = Vec::new();
    for entry in finished() {
        if !models.iter().any(|other| trains_as(other, entry)) {
            models.push(entry);
        }
    }
    let of =
        |model: &&Entry| of_rows(&finished().filter(|entry| trains_as(model, entry)).collect::<Vec<_>>());
    models.iter().filter_map(of).collect()
}

/// Whether two rows train the same model with as many workers, on as many examples. Otherwise bytes and
/// quality differ for other reasons than the codec.
fn trains_as(a: &Entry, b: &Entry) -> bool {
    let what = |config: &RunConfig| (config.data.clone(), config.model.clone(), config.hidden.clone());
    let how_much = |config: &RunConfig| (config.workers, config.batch, config.epochs, config.steps);
    what(&a.config) == what(&b.config) && how_much(&a.config) == how_much(&b.config)
}

fn of_rows(rows: &[&Entry]) -> Option<Headline> {
    let codecs = rows.iter().filter(|entry| !entry.is_dense() && has_no_failure(entry));
    let compared = codecs.filter_map(|entry| Compared::of(entry, yardstick(entry, rows)?));
    let compared: Vec<Compared<'_>> = compared.filter(|row| row.saved > 1.0).collect();
    let within = compared.iter().filter(|row| row.loss <= row.tolerance.value);
    let best = within.max_by(|a, b| a.saved.total_cmp(&b.saved));
    let shown = best.or_else(|| compared.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)))?;
    Some(Headline {
        is_within: best.is_some(),
        label: shown.entry.label.clone(),
        saved: ratio_text(shown.saved),
        quality: Measure::of(shown.entry).text,
        dense: shown.dense.label.clone(),
        dense_quality: Measure::of(shown.dense).text,
        tolerance: shown.tolerance.why.clone(),
    })
}

/// A codec and its yardstick.
struct Compared<'a> {
    entry: &'a Entry,
    dense: &'a Entry,
    saved: f64,
    /// How much worse than dense training.
    loss: f64,
    tolerance: Tolerance,
}

impl<'a> Compared<'a> {
    fn of(entry: &'a Entry, dense: &'a Entry) -> Option<Self> {
        let loss = Measure::of(entry).badness - Measure::of(dense).badness;
        let tolerance = Tolerance::of(dense);
        loss.is_finite().then(|| Self { entry, dense, saved: saved(dense, entry), loss, tolerance })
    }
}

/// The best dense row with the momentum that the codec trains with or, if there is none, the best of all.
fn yardstick<'a>(entry: &Entry, rows: &[&'a Entry]) -> Option<&'a Entry> {
    let dense = || rows.iter().copied().filter(|entry| entry.is_dense());
    let best = |a: &&Entry, b: &&Entry| Measure::of(a).badness.total_cmp(&Measure::of(b).badness);
    dense().filter(|other| momentum(other) == momentum(entry)).min_by(best).or_else(|| dense().min_by(best))
}

/// The codec's momentum, or else the optimizer's.
fn momentum(entry: &Entry) -> Option<f32> {
    let own = entry.config.spec().ok().and_then(|spec| spec.codec.momentum());
    own.map(|own| own.factor()).or(entry.config.momentum.map(|momentum| momentum as f32))
}

/// A seed that diverged or failed is no success, however good the others are.
fn has_no_failure(entry: &Entry) -> bool {
    entry.broken.iter().all(Broken::is_open)
}

/// Bytes of dense training over those of a codec.
fn saved(dense: &Entry, entry: &Entry) -> f64 {
    let bytes = |entry: &Entry| entry.spread(|run| (run.bytes_up + run.bytes_down) as f64).mean;
    bytes(dense) / bytes(entry)
}

/// How good a row is.
struct Measure {
    /// Less is better: perplexity, or the points of accuracy that are missing.
    badness: f64,
    text: String,
}

impl Measure {
    fn of(entry: &Entry) -> Self {
        if is_text(entry) {
            let perplexity = entry.spread(|run| run.perplexity.unwrap_or(f64::NAN)).mean;
            return Self { badness: perplexity, text: format!("test perplexity {perplexity:.3}") };
        }
        let accuracy = 100.0 * entry.spread(|run| run.accuracy).mean;
        Self { badness: 100.0 - accuracy, text: format!("{accuracy:.1} % test accuracy") }
    }
}

fn is_text(entry: &Entry) -> bool {
    entry.outcomes.iter().any(|run| run.summary.perplexity.is_some())
}

/// How much worse than dense training still counts as equal.
struct Tolerance {
    value: f64,
    why: String,
}

impl Tolerance {
    fn of(dense: &Entry) -> Self {
        let seeds = dense.outcomes.len();
        if is_text(dense) {
            let perplexity = dense.spread(|run| run.perplexity.unwrap_or(f64::NAN));
            if seeds > 1 {
                let value = perplexity.deviation;
                let why = format!("{value:.3} (the standard deviation of dense training over {seeds} seeds)");
                return Self { value, why };
            }
            let value = PERPLEXITY_TOLERANCE * perplexity.mean;
            let why =
                format!("{value:.3} (1 % of dense training's perplexity, because one seed shows no spread)");
            return Self { value, why };
        }
        let accuracy = dense.spread(|run| run.accuracy);
        let example = dense.spread(|run| run.accuracy_resolution).mean;
        let (share, source) = if seeds > 1 {
            (accuracy.deviation, format!("the standard deviation of dense training over {seeds} seeds"))
        } else {
            let error = (accuracy.mean * (1.0 - accuracy.mean) * example).sqrt();
            (
                error,
                "the standard error of dense training's accuracy, because one seed shows no spread"
                    .to_owned(),
            )
        };
        let source = if share >= example { source } else { "what one test example is worth".to_owned() };
        let value = 100.0 * share.max(example);
        Self { value, why: format!("{value:.2} points ({source})") }
    }
}

/// Some words of the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// As they are.
    Plain(&'a str),
    /// The spelling of a codec.
    Code(&'a str),
    /// What matters most.
    Strong(&'a str),
}

impl Headline {
    /// The sentence, in pieces.
    pub fn pieces(&self) -> Vec<Piece<'_>> {
        use Piece::{Code, Plain, Strong};
        let (codec, dense) = (Code(&self.label), Code(&self.dense));
        let (saved, quality) = (Strong(&self.saved), Strong(&self.quality));
        let (dense_quality, tolerance) = (Plain(&self.dense_quality), Plain(&self.tolerance));
        let moved = [Plain(" moved "), saved, Plain(" fewer bytes ")];
        if self.is_within {
            let reached = [Plain(") and reached "), quality, Plain(", dense training "), dense_quality];
            let limit = [Plain(": not worse by more than "), tolerance, Plain(".")];
            let than = [Plain("than dense training ("), dense];
            return [&[codec][..], &moved, &than, &reached, &limit].concat();
        }
        let none = [Plain("No codec came within "), tolerance, Plain(" of dense training ("), dense];
        let nearest = [Plain("), with "), dense_quality, Plain(". The nearest, "), codec, Plain(",")];
        [&none[..], &nearest, &moved, &[Plain("and reached "), quality, Plain(".")]].concat()
    }

    /// The sentence, without markup.
    pub fn text(&self) -> String {
        let words = |piece: &Piece<'_>| match *piece {
            Piece::Plain(text) | Piece::Code(text) | Piece::Strong(text) => text.to_owned(),
        };
        self.pieces().iter().map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Why, fixture};

    /// Accuracy or perplexity of every seed, and the bytes of each.
    fn entry(codec: &str, quality: &[f64], bytes: u64) -> Entry {
        fixture::entry(codec, 0.1, quality, bytes)
    }

    fn headline(entries: Vec<Entry>) -> Option<Headline> {
        let config = entries[0].config.clone();
        let comparison = Comparison { entries, config, params: 1, steps: 5, seeds: 1, is_text: false };
        let mut all = headlines(&comparison);
        assert!(all.len() <= 1);
        all.pop()
    }

    fn praised(entries: Vec<Entry>) -> Option<String> {
        headline(entries).filter(|headline| headline.is_within).map(|headline| headline.label)
    }

    #[test]
    fn the_smallest_codec_within_the_spread_is_praised_not_the_smallest_of_all() {
        let dense = || entry("none", &[0.960, 0.970, 0.980], 1000);
        let rows = || vec![dense(), entry("topk:density=0.001", &[0.367; 3], 4)];
        let found = headline(rows()).unwrap();
        assert!(!found.is_within, "{found:?}");
        assert_eq!(
            (found.dense_quality.as_str(), found.quality.as_str()),
            ("97.0 % test accuracy", "36.7 % test accuracy")
        );
        let text = found.text();
        assert!(
            text.starts_with("No codec came within 1.00 points (the standard")
                && text.ends_with("reached 36.7 % test accuracy."),
            "{text}"
        );
        let near =
            [rows(), vec![entry("qsgd", &[0.961; 3], 250), entry("topk:density=0.1", &[0.972; 3], 400)]]
                .concat();
        assert_eq!(praised(near.clone()).unwrap(), "qsgd");
        assert!(
            headline(near).unwrap().text().starts_with("qsgd moved 4.00x fewer bytes than dense training")
        );
        // One deviation is a point: 96 %.
        assert_eq!(praised(vec![dense(), entry("qsgd", &[0.959; 3], 250)]), None);
    }

    #[test]
    fn one_seed_has_the_tolerance_of_its_test_examples_and_text_one_percent() {
        // A standard error of 0.9 points over 1000 examples at 90 %.
        let dense = || entry("none", &[0.9], 1000);
        assert_eq!(praised(vec![dense(), entry("qsgd", &[0.892], 250)]).as_deref(), Some("qsgd"));
        assert_eq!(praised(vec![dense(), entry("qsgd", &[0.889], 250)]), None);
        let text = || entry("none", &[5.0], 1000);
        assert_eq!(praised(vec![text(), entry("qsgd", &[5.04], 250)]).as_deref(), Some("qsgd"));
        assert_eq!(praised(vec![text(), entry("qsgd", &[5.06], 250)]), None);
        let text = || entry("none", &[5.0, 5.2], 1000);
        let found = headline(vec![text(), entry("qsgd", &[5.2, 5.2], 250)]).unwrap();
        assert!(found.is_within && found.tolerance.starts_with("0.141 (the standard deviation"), "{found:?}");
    }

    #[test]
    fn a_codec_is_compared_with_dense_training_of_its_momentum() {
        let mut fast = entry("none", &[0.95], 1000);
        fast.config.momentum = Some(0.9);
        let rows = |codec| vec![entry("none", &[0.90], 1000), fast.clone(), codec];
        assert_eq!(praised(rows(entry("qsgd", &[0.90], 250))).as_deref(), Some("qsgd"));
        assert_eq!(praised(rows(entry("dgc", &[0.91], 250))), None, "it owns a momentum of 0.9");
        assert_eq!(praised(rows(entry("dgc", &[0.95], 250))).as_deref(), Some("dgc"));
    }

    #[test]
    fn rows_of_other_workers_batches_or_lengths_are_no_yardstick() {
        let dense = || entry("none", &[0.95], 1000);
        let rows = |change: fn(&mut RunConfig)| {
            let mut codec = entry("qsgd", &[0.95], 250);
            change(&mut codec.config);
            vec![dense(), codec]
        };
        assert!(praised(rows(|_| {})).is_some());
        assert_eq!(headline(rows(|config| config.workers = 2)), None);
        assert_eq!(headline(rows(|config| config.batch = 64)), None);
        assert_eq!(headline(rows(|config| config.steps = Some(150))), None);
    }

    #[test]
    fn the_best_dense_row_is_the_yardstick_and_seeds_that_failed_count() {
        let dense = [entry("none", &[0.9], 1000), entry("none", &[0.95], 1000)];
        let rows = |codec| [dense.to_vec(), vec![codec]].concat();
        assert_eq!(praised(rows(entry("qsgd", &[0.91], 250))), None);
        assert_eq!(praised(rows(entry("qsgd", &[0.95], 2500))), None, "more bytes");
        let mut lucky = entry("qsgd", &[0.95], 250);
        assert!(praised(rows(lucky.clone())).is_some());
        lucky.broken.push(Broken { seed: 2, why: Why::Diverged, step: 3, loss: None });
        assert_eq!(headline(rows(lucky)), None);
        assert_eq!(headline(vec![entry("qsgd", &[0.95], 250)]), None, "nothing to compare with");
    }
}
