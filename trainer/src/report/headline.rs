//! The result in a sentence: which codec saves most bytes and keeps what dense training reaches.
//!
//! Runs of equal seeds begin with the same parameters and see the same batches, so they are compared in
//! pairs. A codec *keeps* the quality if no loss shows in its pairs, and they rule out a loss that matters:
//! see `Paired`. One seed has no interval, and dense training that has not learned is no yardstick: then no
//! codec is named for it.

mod paired;
mod sentence;

pub(super) use self::paired::Paired;
pub use self::sentence::Piece;

use self::paired::Verdict;
use crate::compare::{Broken, Comparison, Entry};
use crate::config::RunConfig;
use crate::report::numbers::{decimal, ratio_text};

/// Dense training has learned if it went this share of the way from a blind guess to perfection: of accuracy,
/// or of the logarithm of perplexity.
const LEARNED: f64 = 0.1;

/// What a comparison found for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// What can be said of the codec.
    pub finding: Finding,
    /// The codec, with settings of its own: the one with the fewest bytes of those that keep the quality or,
    /// if none does, the one that came nearest.
    pub label: String,
    /// How many times fewer bytes it moved: `38.2x`.
    pub saved: String,
    /// Its quality, and what that is measured by: `97.1 % test accuracy`.
    pub quality: String,
    /// The dense row that it is compared with: the best with the same momentum, if there is one.
    pub dense: String,
    /// Its quality.
    pub dense_quality: String,
}

/// What a comparison can say of a codec.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// No loss shows, and the pairs rule out one that matters. The difference, in words.
    Kept(String),
    /// No codec kept the quality; this one lost. The difference, in words.
    Lost(String),
    /// No codec kept the quality for sure; the pairs of this one allow both. The difference, in words.
    Unclear(String),
    /// There are no two pairs of equal seeds.
    OneSeed,
    /// Dense training is hardly better than guessing. What guessing gets, in words.
    NotLearned(String),
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
    let of = |model: &&Entry| {
        let rows: Vec<&Entry> = finished().filter(|entry| trains_as(model, entry)).collect();
        of_rows(&rows, comparison.choices)
    };
    models.iter().filter_map(of).collect()
}

/// How a row differs from its yardstick, by pairs of equal seeds. None for dense rows, and where there are no
/// two pairs.
pub(super) fn to_dense(entry: &Entry, comparison: &Comparison) -> Option<Paired> {
    let rows =
        comparison.entries.iter().filter(|other| !other.outcomes.is_empty() && trains_as(entry, other));
    let rows: Vec<&Entry> = rows.collect();
    (!entry.is_dense()).then(|| Paired::of(entry, yardstick(entry, &rows)?)).flatten()
}

/// Whether two rows train the same model with as many workers, on as many examples. Otherwise bytes and
/// quality differ for other reasons than the codec.
fn trains_as(a: &Entry, b: &Entry) -> bool {
    let what = |config: &RunConfig| (config.data, config.model, config.hidden.clone());
    let how_much = |config: &RunConfig| (config.workers, config.batch, config.epochs, config.steps);
    what(&a.config) == what(&b.config) && how_much(&a.config) == how_much(&b.config)
}

fn of_rows(rows: &[&Entry], choices: usize) -> Option<Headline> {
    let codecs = rows.iter().filter(|entry| !entry.is_dense() && has_no_failure(entry));
    let compared = codecs.filter_map(|entry| Compared::of(entry, yardstick(entry, rows)?));
    let compared: Vec<Compared<'_>> = compared.filter(|row| row.saved > 1.0).collect();
    let kept = compared.iter().filter(|row| row.is_kept() && has_learned(row.dense, choices));
    let best = kept.max_by(|a, b| a.saved.total_cmp(&b.saved));
    let shown = best.or_else(|| compared.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)))?;
    Some(Headline {
        finding: shown.finding(choices),
        label: shown.entry.label.clone(),
        saved: ratio_text(shown.saved),
        quality: quality_text(shown.entry),
        dense: shown.dense.label.clone(),
        dense_quality: quality_text(shown.dense),
    })
}

/// A codec and its yardstick.
struct Compared<'a> {
    entry: &'a Entry,
    dense: &'a Entry,
    saved: f64,
    /// How much worse than dense training in the mean.
    loss: f64,
    /// None where there are no two pairs of equal seeds.
    paired: Option<Paired>,
}

impl<'a> Compared<'a> {
    fn of(entry: &'a Entry, dense: &'a Entry) -> Option<Self> {
        let loss = badness(entry) - badness(dense);
        let paired = Paired::of(entry, dense);
        loss.is_finite().then(|| Self { entry, dense, saved: saved(dense, entry), loss, paired })
    }

    fn is_kept(&self) -> bool {
        self.paired.is_some_and(|paired| paired.verdict() == Verdict::Kept)
    }

    fn finding(&self, choices: usize) -> Finding {
        if !has_learned(self.dense, choices) {
            return Finding::NotLearned(guess_text(is_text(self.dense), choices));
        }
        let Some(paired) = self.paired else { return Finding::OneSeed };
        let text = paired.text();
        match paired.verdict() {
            Verdict::Kept => Finding::Kept(text),
            Verdict::Lost => Finding::Lost(text),
            Verdict::Unclear => Finding::Unclear(text),
        }
    }
}

/// The best dense row with the momentum that the codec trains with or, if there is none, the best of all.
fn yardstick<'a>(entry: &Entry, rows: &[&'a Entry]) -> Option<&'a Entry> {
    let dense = || rows.iter().copied().filter(|entry| entry.is_dense());
    let best = |a: &&Entry, b: &&Entry| badness(a).total_cmp(&badness(b));
    dense().filter(|other| momentum(other) == momentum(entry)).min_by(best).or_else(|| dense().min_by(best))
}

/// The codec's momentum, or else the optimizer's.
fn momentum(entry: &Entry) -> Option<f32> {
    let own = entry.config.codec.spec.codec.momentum();
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

/// Less is better: perplexity, or the points of accuracy that are missing.
fn badness(entry: &Entry) -> f64 {
    match is_text(entry) {
        true => entry.spread(|run| run.perplexity.unwrap_or(f64::NAN)).mean,
        false => 100.0 - 100.0 * entry.spread(|run| run.accuracy).mean,
    }
}

fn quality_text(entry: &Entry) -> String {
    match is_text(entry) {
        true => format!("test perplexity {}", decimal(badness(entry), 3)),
        false => format!("{:.2} % test accuracy", 100.0 - badness(entry)),
    }
}

fn is_text(entry: &Entry) -> bool {
    entry.outcomes.iter().any(|run| run.summary.perplexity.is_some())
}

/// Whether dense training is better than a blind guess among so many choices.
fn has_learned(dense: &Entry, choices: usize) -> bool {
    let choices = choices as f64;
    let way = match is_text(dense) {
        true => 1.0 - badness(dense).ln() / choices.ln(),
        false => (1.0 - badness(dense) / 100.0 - 1.0 / choices) / (1.0 - 1.0 / choices),
    };
    way >= LEARNED
}

/// What a blind guess among so many choices gets.
fn guess_text(is_text: bool, choices: usize) -> String {
    match is_text {
        true => format!("a perplexity of {choices}"),
        false => format!("{:.1} %", 100.0 / choices as f64),
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
        let mut all = headlines(&fixture::comparison(entries));
        assert!(all.len() <= 1);
        all.pop()
    }

    fn praised(entries: Vec<Entry>) -> Option<String> {
        let kept = |headline: &Headline| matches!(headline.finding, Finding::Kept(_));
        headline(entries).filter(kept).map(|headline| headline.label)
    }

    #[test]
    fn the_smallest_codec_that_keeps_the_quality_is_praised_not_the_smallest_of_all() {
        let dense = || entry("none", &[0.960, 0.970, 0.980], 1000);
        let rows = || vec![dense(), entry("topk:density=0.001", &[0.367, 0.366, 0.368], 4)];
        let found = headline(rows()).unwrap();
        assert!(matches!(found.finding, Finding::Lost(_)), "{found:?}");
        assert_eq!(
            (found.dense_quality.as_str(), found.quality.as_str()),
            ("97.00 % test accuracy", "36.70 % test accuracy")
        );
        let small = || entry("qsgd", &[0.961, 0.969, 0.981], 250);
        let near = [rows(), vec![small(), entry("topk:density=0.1", &[0.962, 0.972, 0.982], 400)]].concat();
        assert_eq!(praised(near.clone()).unwrap(), "qsgd");
        assert!(
            headline(near).unwrap().text().starts_with("qsgd moved 4.00x fewer bytes than dense training")
        );
    }

    #[test]
    fn every_seed_that_is_a_little_worse_is_a_loss_however_far_the_seeds_spread() {
        // The spread of dense training is 2 points; each pair loses half a point, give or take a tenth.
        let dense = || entry("none", &[0.94, 0.96, 0.98, 0.97, 0.95], 1000);
        let worse = |by: [f64; 5]| {
            let of = [0.94, 0.96, 0.98, 0.97, 0.95];
            entry("topk", &[0, 1, 2, 3, 4].map(|seed| of[seed] - by[seed]), 20)
        };
        let lost = headline(vec![dense(), worse([0.005, 0.004, 0.006, 0.005, 0.005])]).unwrap();
        assert!(matches!(&lost.finding, Finding::Lost(text) if text.contains("−0.50 points")), "{lost:?}");
        assert!(praised(vec![dense(), worse([0.001, -0.001, 0.001, 0.0, -0.001])]).is_some());
        // Within the spread of dense training, but each seed by itself says something else.
        let unclear = headline(vec![dense(), worse([0.02, -0.02, 0.03, -0.02, 0.01])]).unwrap();
        assert!(matches!(unclear.finding, Finding::Unclear(_)), "{unclear:?}");
    }

    #[test]
    fn pairs_are_of_equal_seeds_and_seeds_without_a_pair_do_not_count() {
        let dense = || entry("none", &[0.90, 0.95, 0.99], 1000);
        let mut codec = entry("topk", &[0.99, 0.95, 0.90], 20);
        codec.outcomes.reverse();
        codec.outcomes.iter_mut().zip([1, 2, 3]).for_each(|(run, seed)| run.summary.seed = seed);
        assert!(praised(vec![dense(), codec.clone()]).is_some());
        codec.outcomes.iter_mut().zip([3, 8, 9]).for_each(|(run, seed)| run.summary.seed = seed);
        assert_eq!(headline(vec![dense(), codec]).unwrap().finding, Finding::OneSeed);
    }

    #[test]
    fn nothing_is_praised_with_one_seed() {
        for (dense, codec) in [(0.9, 0.9), (0.9, 0.95), (5.0, 5.0), (5.0, 4.0)] {
            let found = headline(vec![entry("none", &[dense], 1000), entry("qsgd", &[codec], 250)]).unwrap();
            assert_eq!(found.finding, Finding::OneSeed, "{dense} {codec}");
            assert!(found.text().starts_with("One seed cannot say"), "{}", found.text());
        }
    }

    #[test]
    fn nothing_is_praised_where_dense_training_has_not_learned() {
        // Ten classes, and as many tokens.
        let three = |quality: f64| [quality, 1.0001 * quality, 0.9999 * quality];
        for (quality, has_learned) in [
            (0.096, false),
            (0.1, false),
            (0.15, false),
            (0.25, true),
            (10.0, false),
            (9.5, false),
            (7.0, true),
        ] {
            let rows = vec![entry("none", &three(quality), 1000), entry("qsgd", &three(quality), 250)];
            let found = headline(rows).unwrap();
            assert_eq!(matches!(found.finding, Finding::Kept(_)), has_learned, "{quality}: {found:?}");
            assert_eq!(matches!(found.finding, Finding::NotLearned(_)), !has_learned, "{quality}: {found:?}");
        }
        let lost = vec![entry("none", &three(0.096), 1000), entry("qsgd", &three(0.05), 250)];
        assert!(headline(lost).unwrap().text().contains("guessing gets 10.0 %"));
    }

    #[test]
    fn a_codec_is_compared_with_dense_training_of_its_momentum() {
        let mut fast = entry("none", &[0.95, 0.96, 0.97], 1000);
        fast.config.momentum = Some(0.9);
        let rows = |codec| vec![entry("none", &[0.90, 0.91, 0.92], 1000), fast.clone(), codec];
        assert_eq!(praised(rows(entry("qsgd", &[0.90, 0.91, 0.92], 250))).as_deref(), Some("qsgd"));
        assert_eq!(praised(rows(entry("dgc", &[0.91, 0.92, 0.93], 250))), None, "it owns a momentum of 0.9");
        assert_eq!(praised(rows(entry("dgc", &[0.95, 0.96, 0.97], 250))).as_deref(), Some("dgc"));
    }

    #[test]
    fn rows_of_other_workers_batches_or_lengths_are_no_yardstick() {
        let dense = || entry("none", &[0.95, 0.96], 1000);
        let rows = |change: fn(&mut RunConfig)| {
            let mut codec = entry("qsgd", &[0.95, 0.96], 250);
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
        let dense = [entry("none", &[0.9, 0.91], 1000), entry("none", &[0.95, 0.96], 1000)];
        let rows = |codec| [dense.to_vec(), vec![codec]].concat();
        assert_eq!(praised(rows(entry("qsgd", &[0.91, 0.92], 250))), None);
        assert_eq!(praised(rows(entry("qsgd", &[0.95, 0.96], 2500))), None, "more bytes");
        let mut lucky = entry("qsgd", &[0.95, 0.96], 250);
        assert!(praised(rows(lucky.clone())).is_some());
        lucky.broken.push(Broken { seed: 3, why: Why::Diverged, step: 3, loss: None });
        assert_eq!(headline(rows(lucky)), None);
        assert_eq!(headline(vec![entry("qsgd", &[0.95, 0.96], 250)]), None, "nothing to compare with");
    }
}
