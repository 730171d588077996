//! One HTML file that needs nothing else: table, plots as SVG, and a few words for someone who sees this for
//! the first time.

pub mod headline;
mod plot;
mod results;
pub mod runs;
mod svg;
pub mod table;

pub use self::results::csv;
use askama::Template;
use gradwire::registry::CODECS;
use gradwire::state::MemoryChoice;

use self::headline::{Headline, Piece, headlines};
use self::plot::Figure;
use self::table::{Table, broken, footnotes};
use crate::compare::Comparison;
use crate::config::RunConfig;

/// What `templates/report.html` shows. The template escapes every text. Drawings are inserted as they are;
/// they hold only numbers and words of this program.
#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    task: String,
    headlines: Vec<Headline>,
    tables: Vec<Rows>,
    /// A colour for each curve, and the name of the curve.
    legend: Vec<(String, String)>,
    notes: Vec<String>,
    figures: Vec<Figure>,
    codecs: Vec<CodecWords>,
    is_text: bool,
    settings: String,
}

/// One of the tables.
struct Rows {
    title: String,
    head: Vec<String>,
    rows: Vec<Row>,
}

/// A row of the table.
struct Row {
    /// The colour of the codec, the same everywhere in the report; none for rows without a curve.
    colour: Option<String>,
    label: String,
    cells: Vec<Cell>,
}

struct Cell {
    /// Name of the column.
    name: String,
    text: String,
}

/// A codec that was run, in words.
struct CodecWords {
    name: &'static str,
    summary: &'static str,
    /// Whether some row keeps a residual.
    keeps: bool,
}

/// The report. Text that comes from settings is escaped; nothing is loaded from anywhere.
pub fn html(comparison: &Comparison, title: &str) -> String {
    let shown = comparison.at_best_rates();
    let tables = tables(comparison).into_iter().map(|(title, rows)| table_of(title, &rows, &shown));
    let notes = own_training(&shown).into_iter().chain(footnotes(&shown)).chain(notes(comparison));
    let legend = shown.entries.iter().enumerate();
    let page = Page {
        title,
        task: task_line(&shown),
        headlines: headlines(&shown),
        tables: tables.collect(),
        legend: legend.map(|(number, entry)| (svg::css_colour(number), entry.label.clone())).collect(),
        notes: notes.collect(),
        figures: plot::all(&shown),
        codecs: codec_words(comparison),
        is_text: comparison.is_text,
        settings: comparison.config.to_toml(),
    };
    // Every part of the page is a string: nothing of it can fail.
    page.render().unwrap_or_default()
}

/// The tables of the report, with their titles: all rows and, before them if several rates were tried, the
/// best of each codec and all codecs at one rate.
pub fn tables(comparison: &Comparison) -> Vec<(String, Comparison)> {
    if !comparison.has_rates() {
        return vec![(String::new(), comparison.clone())];
    }
    let (rate, at_one_rate) = comparison.at_one_rate();
    let mut summaries = comparison.entries.iter().flat_map(|entry| &entry.outcomes).map(|run| &run.summary);
    let part = match summaries.any(|run| run.validated_on == "test") {
        true => "test part, for there is no validation part",
        false => "validation part",
    };
    vec![
        (format!("Each codec at its best rate, chosen on the {part}"), comparison.at_best_rates()),
        (format!("All codecs at rate {rate}"), at_one_rate),
        ("All rows".to_owned(), comparison.clone()),
    ]
}

fn table_of(title: String, comparison: &Comparison, shown: &Comparison) -> Rows {
    let Table { head, rows } = Table::new(comparison);
    let row = |mut cells: Vec<String>| {
        let label = cells.remove(0);
        let curve = shown.entries.iter().position(|entry| entry.label == label);
        let cells = head[1..].iter().cloned().zip(cells).map(|(name, text)| Cell { name, text });
        Row { colour: curve.map(svg::css_colour), label, cells: cells.collect() }
    };
    let rows = rows.into_iter().map(row).collect();
    Rows { title, head, rows }
}

/// Every codec that was run, once, in the registry's words.
fn codec_words(comparison: &Comparison) -> Vec<CodecWords> {
    let mut all: Vec<CodecWords> = Vec::new();
    for spec in comparison.entries.iter().filter_map(|entry| entry.config.spec().ok()) {
        let (name, keeps) = (spec.codec.name(), spec.memory != MemoryChoice::None);
        match all.iter_mut().find(|words| words.name == name) {
            Some(words) => words.keeps |= keeps,
            None => all.push(CodecWords { name, summary: summary(name), keeps }),
        }
    }
    all
}

fn summary(name: &str) -> &'static str {
    let entry = CODECS.iter().find(|entry| entry.names.iter().any(|(known, _)| *known == name));
    entry.map_or("", |entry| entry.summary)
}

/// What was trained, in one line.
pub fn task_line(comparison: &Comparison) -> String {
    let config = &comparison.config;
    let seeds = match comparison.seeds {
        1 => format!("seed {}", config.seed),
        n => format!("mean of {n} seeds"),
    };
    let trained = match own_training(comparison) {
        Some(_) => "optimizer and rate by row".to_owned(),
        None => training(config),
    };
    let is_one_model = comparison.entries.iter().all(|entry| entry.config.model == config.model);
    let model = match is_one_model {
        true => format!("{} on {} ({} parameters)", config.model, config.data, thousands(comparison.params)),
        false => format!("several models on {}", config.data),
    };
    let (workers, steps, batch) = (config.workers, comparison.steps, config.batch);
    format!("{model}, {workers} workers, {steps} steps of {batch} examples, {trained}, {seeds}.")
}

/// What each row trained with, if rows differ in that.
pub fn own_training(comparison: &Comparison) -> Option<String> {
    let rows = comparison.entries.iter().map(|entry| (&entry.label, training(&entry.config)));
    let rows: Vec<(&String, String)> = rows.collect();
    let differ = rows.windows(2).any(|pair| pair[0].1 != pair[1].1);
    let lines = rows.iter().map(|(label, training)| format!("{label}: {training}"));
    differ.then(|| format!("Trained with: {}", lines.collect::<Vec<_>>().join("; ")))
}

/// Optimizer and rate. A codec that owns the momentum replaces that of the optimizer.
fn training(config: &RunConfig) -> String {
    let own = config.spec().ok().and_then(|spec| spec.codec.momentum());
    let optimizer = match (config.optimizer.as_str(), own, config.momentum) {
        ("sgd", Some(own), _) => format!("SGD with the codec's momentum {}", own.factor()),
        ("sgd", None, Some(momentum)) if momentum > 0.0 => format!("SGD with momentum {momentum}"),
        ("sgd", ..) => "plain SGD".to_owned(),
        (other, ..) => other.to_owned(),
    };
    format!("{optimizer} at rate {}", rate_text(config.lr))
}

/// What should be known about some of the runs, each once.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes: Vec<String> = broken(comparison);
    for run in comparison.entries.iter().flat_map(|entry| &entry.outcomes) {
        let refused = run.summary.refused_steps;
        let refused = (refused > 0).then(|| {
            format!(
                "{}, seed {}: {refused} steps refused, their mean was not finite",
                run.summary.codec, run.summary.seed
            )
        });
        for note in run.summary.notes.iter().cloned().chain(refused) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

/// Without the zeros of very large and very small rates.
fn rate_text(rate: f64) -> String {
    if (1e-4..1e6).contains(&rate) { rate.to_string() } else { format!("{rate:e}") }
}

fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        assert_eq!([7, 999, 1000, 1_234_567].map(thousands), ["7", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn rates_are_short() {
        assert_eq!([0.1, 1.0, 1e30, 1e-7].map(rate_text), ["0.1", "1", "1e30", "1e-7"]);
    }

    #[test]
    fn text_is_escaped() {
        let settings = crate::config::Settings::default();
        let config = RunConfig::resolve(&settings).unwrap();
        let config = RunConfig { data: "<a href=\"x\">&".to_owned(), ..config };
        let label = "<b>".to_owned();
        let entry = crate::compare::Entry { label, config: config.clone(), outcomes: vec![], broken: vec![] };
        let comparison =
            Comparison { entries: vec![entry], config, params: 1, steps: 1, seeds: 1, is_text: false };
        let page = html(&comparison, "<i>");
        assert!(page.contains("<html lang") && page.ends_with("</html>"), "{page}");
        for foreign in ["<a", "<b>", "<i>"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("&#60;a href=&#34;x&#34;&#62;&#38;"), "{page}");
    }
}
