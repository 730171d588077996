//! One HTML file that needs nothing else: table, plots as SVG, and a few words for someone who sees this for the first
//! time.

pub mod headline;
mod plot;
mod results;
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

/// What `templates/report.html` shows. The template escapes every text; of the drawings, which are inserted as they are,
/// only numbers and words of this program are part.
#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    task: String,
    headlines: Vec<Headline>,
    head: Vec<String>,
    rows: Vec<Row>,
    notes: Vec<String>,
    figures: Vec<Figure>,
    codecs: Vec<CodecWords>,
    is_text: bool,
    settings: String,
}

/// A row of the table.
struct Row {
    /// The colour of the codec, the same everywhere in the report.
    colour: String,
    label: String,
    cells: Vec<Cell>,
}

struct Cell {
    /// That of the column.
    name: String,
    text: String,
}

/// What a codec that was run does.
struct CodecWords {
    name: &'static str,
    summary: &'static str,
    /// Whether some row keeps what it does not send.
    keeps: bool,
}

/// The report. Text that comes from settings is escaped; nothing is loaded from anywhere.
pub fn html(comparison: &Comparison, title: &str) -> String {
    let Table { head, rows } = Table::new(comparison);
    let row = |(number, mut cells): (usize, Vec<String>)| {
        let label = cells.remove(0);
        let cells = head[1..].iter().cloned().zip(cells).map(|(name, text)| Cell { name, text });
        Row { colour: svg::css_colour(number), label, cells: cells.collect() }
    };
    let rows = rows.into_iter().enumerate().map(row).collect();
    let notes = own_training(comparison).into_iter().chain(footnotes(comparison)).chain(notes(comparison));
    let page = Page {
        title,
        task: task_line(comparison),
        headlines: headlines(comparison),
        head,
        rows,
        notes: notes.collect(),
        figures: plot::all(comparison),
        codecs: codec_words(comparison),
        is_text: comparison.is_text,
        settings: comparison.config.to_toml(),
    };
    // Every part of the page is a string: nothing of it can fail.
    page.render().unwrap_or_default()
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
    format!(
        "{} on {} ({} parameters), {} workers, {} steps of {} examples, {trained}, {seeds}.",
        config.model,
        config.data,
        thousands(comparison.params),
        config.workers,
        comparison.steps,
        config.batch,
    )
}

/// What each row trained with, where they differ in that.
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
    format!("{optimizer} at rate {}", config.lr)
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
