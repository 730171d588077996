//! One HTML file that needs nothing else: table, plots as SVG, and a few words for someone who sees this for
//! the first time.

pub mod headline;
mod numbers;
mod plot;
mod results;
pub mod runs;
mod svg;
pub mod table;
mod thin;
mod ticks;

pub use self::results::csv;
use self::results::csv_line;
use askama::Template;
use gradwire::registry::codecs;
use gradwire::state::MemoryChoice;

use self::headline::{Headline, Piece, headlines};
use self::plot::Figure;
use self::table::{Table, broken, footnotes};
use crate::compare::{Comparison, Entry};
use crate::config::{OptimizerKind, RunConfig};
use crate::record::Origin;

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
    /// Which programs made the runs; several, if the comparison was resumed.
    origins: Vec<String>,
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
        settings: comparison.config.to_toml().unwrap_or_else(|error| error.to_string()),
        origins: origins(comparison),
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
    let part = match comparison.validates_on_test() {
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
    for spec in comparison.entries.iter().map(|entry| entry.config.codec.spec) {
        let (name, keeps) = (spec.codec.name(), spec.memory != MemoryChoice::None);
        match all.iter_mut().find(|words| words.name == name) {
            Some(words) => words.keeps |= keeps,
            None => all.push(CodecWords { name, summary: summary(name), keeps }),
        }
    }
    all
}

fn summary(name: &str) -> &'static str {
    let entry = codecs().find(|entry| entry.names.iter().any(|(known, _)| *known == name));
    entry.map_or("", |entry| entry.summary)
}

/// What was trained, in one line.
pub fn task_line(comparison: &Comparison) -> String {
    let config = &comparison.config;
    let seeds = match comparison.seeds {
        1 => format!("seed {}", config.seed),
        n => format!("mean of {n} seeds"),
    };
    let is_one_model = comparison.entries.iter().all(|entry| entry.config.model == config.model);
    let model = match is_one_model {
        true => format!("{} on {} ({} parameters)", config.model, config.data, thousands(comparison.params)),
        false => format!("several models on {}", config.data),
    };
    let (by_row, same): (Vec<&Aspect>, Vec<&Aspect>) =
        ASPECTS.iter().partition(|aspect| aspect.differs(comparison));
    let same = same.iter().map(|aspect| (aspect.of)(config));
    let by_row = by_row.iter().map(|aspect| format!("{} by row", aspect.name));
    let parts: Vec<String> = std::iter::once(model).chain(same).chain(by_row).collect();
    format!("{}, {seeds}.", parts.join(", "))
}

/// What each row trained with, as far as rows differ in that.
pub fn own_training(comparison: &Comparison) -> Option<String> {
    let differing: Vec<&Aspect> = ASPECTS.iter().filter(|aspect| aspect.differs(comparison)).collect();
    let of = |entry: &Entry| {
        let own: Vec<String> = differing.iter().map(|aspect| (aspect.of)(&entry.config)).collect();
        format!("{}: {}", entry.label, own.join(", "))
    };
    let rows: Vec<String> = comparison.entries.iter().map(of).collect();
    (!differing.is_empty()).then(|| format!("Trained with: {}", rows.join("; ")))
}

/// Something in which rows may differ beside the codec.
struct Aspect {
    name: &'static str,
    /// In words.
    of: fn(&RunConfig) -> String,
}

const ASPECTS: [Aspect; 4] = [
    Aspect { name: "workers", of: |config| format!("{} workers", config.workers) },
    Aspect { name: "steps", of: length },
    Aspect { name: "batch", of: |config| format!("{} examples a step", config.batch) },
    Aspect { name: "optimizer and rate", of: training },
];

impl Aspect {
    fn differs(&self, comparison: &Comparison) -> bool {
        let of = |entry: &Entry| (self.of)(&entry.config);
        comparison.entries.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]))
    }
}

/// How long a run is, as its settings say it.
fn length(config: &RunConfig) -> String {
    match config.steps {
        Some(steps) => format!("{steps} steps"),
        None => format!("{} epochs", config.epochs.unwrap_or(1)),
    }
}

/// Optimizer and rate. A codec that owns the momentum replaces that of the optimizer.
fn training(config: &RunConfig) -> String {
    let own = config.codec.spec.codec.momentum();
    let optimizer = match (config.optimizer, own, config.momentum) {
        (OptimizerKind::Sgd, Some(own), _) => format!("SGD with the codec's momentum {}", own.factor()),
        (OptimizerKind::Sgd, None, Some(momentum)) if momentum > 0.0 => {
            format!("SGD with momentum {momentum}")
        }
        (OptimizerKind::Sgd, ..) => "plain SGD".to_owned(),
        (other, ..) => other.to_string(),
    };
    format!("{optimizer} at rate {}", rate_text(config.lr))
}

/// What should be known about some of the runs, each once.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes: Vec<String> = broken(comparison).into_iter().chain(units(comparison)).collect();
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

/// Each command, on each machine, that made some of the runs: with the date of the last of them.
fn origins(comparison: &Comparison) -> Vec<String> {
    let mut all: Vec<&Origin> = Vec::new();
    let runs = comparison.entries.iter().flat_map(|entry| &entry.outcomes).map(|run| &run.summary.origin);
    for origin in runs.filter(|origin| !origin.version.is_empty()) {
        let what = |origin: &Origin| (origin.command.clone(), origin.cpu.clone(), origin.commit.clone());
        match all.iter_mut().find(|known| what(known) == what(origin)) {
            Some(known) => *known = if origin.date > known.date { origin } else { known },
            None => all.push(origin),
        }
    }
    all.iter().map(|origin| origin.text()).collect()
}

/// What counts as one unit, if the rows differ in that.
fn units(comparison: &Comparison) -> Option<String> {
    let labels = |per_tensor: bool| {
        let chosen = comparison.entries.iter().filter(|entry| cuts(entry) == Some(per_tensor));
        chosen.map(|entry| entry.label.as_str()).collect::<Vec<_>>().join("; ")
    };
    let (whole, cut) = (labels(false), labels(true));
    let both = !whole.is_empty() && !cut.is_empty();
    both.then(|| format!("all tensors are one unit in: {whole}. Each tensor is a unit of its own in: {cut}"))
}

/// Whether each tensor is a unit of its own; none for codecs that have no such choice.
fn cuts(entry: &Entry) -> Option<bool> {
    let spec = entry.config.codec.spec;
    let about = codecs().find(|codec| codec.names.iter().any(|(name, _)| *name == spec.codec.name()))?;
    about.keys.split(' ').any(|key| key == "unit").then_some(spec.units.per_tensor)
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
    use crate::compare::fixture;

    #[test]
    fn digits_are_grouped() {
        assert_eq!([7, 999, 1000, 1_234_567].map(thousands), ["7", "999", "1,000", "1,234,567"]);
    }

    fn rows(changes: &[fn(&mut RunConfig)]) -> Comparison {
        let entries = changes.iter().map(|change| {
            let mut entry = fixture::entry("none", 0.1, &[0.9], 100);
            change(&mut entry.config);
            entry
        });
        let entries: Vec<Entry> = entries.collect();
        fixture::comparison(entries)
    }

    #[test]
    fn what_rows_differ_in_is_said_of_each_row_and_of_none_else() {
        let alike = rows(&[|_| {}, |_| {}]);
        let line = "mlp on optdigits (1 parameters), 4 workers, 20 epochs, 128 examples a step, \
                    plain SGD at rate 0.1, seed 1.";
        assert_eq!((task_line(&alike).as_str(), own_training(&alike)), (line, None));
        let differ = rows(&[|config| config.workers = 8, |config| (config.workers, config.batch) = (2, 64)]);
        let line = "mlp on optdigits (1 parameters), 20 epochs, plain SGD at rate 0.1, \
                    workers by row, batch by row, seed 1.";
        assert_eq!(task_line(&differ), line);
        let trained =
            "Trained with: none: 8 workers, 128 examples a step; none: 2 workers, 64 examples a step";
        assert_eq!(own_training(&differ).as_deref(), Some(trained));
        let longer = rows(&[|config| config.steps = Some(1500), |config| config.steps = Some(150)]);
        assert!(task_line(&longer).ends_with("plain SGD at rate 0.1, steps by row, seed 1."));
        assert_eq!(own_training(&longer).unwrap(), "Trained with: none: 1500 steps; none: 150 steps");
    }

    #[test]
    fn units_are_named_where_rows_differ_in_them() {
        let of = |codecs: &[&str]| {
            let entries: Vec<Entry> =
                codecs.iter().map(|codec| fixture::entry(codec, 0.1, &[0.9], 100)).collect();
            units(&fixture::comparison(entries))
        };
        assert_eq!(of(&["none", "topk", "dgc", "f16"]), None);
        assert_eq!(of(&["none", "efsign", "topk:unit=tensor"]), None);
        let expected = "all tensors are one unit in: topk. Each tensor is a unit of its own in: efsign";
        assert_eq!(of(&["none", "topk", "efsign"]).as_deref(), Some(expected));
    }

    #[test]
    fn a_page_says_which_programs_made_its_runs() {
        let mut comparison = rows(&[|_| {}, |_| {}]);
        let of = |date: &str, command: &str| Origin {
            version: "1.2.3".to_owned(),
            commit: Some("abc-dirty".to_owned()),
            date: date.to_owned(),
            cpu: "a <fast> one".to_owned(),
            command: command.to_owned(),
        };
        let set = |comparison: &mut Comparison, row: usize, origin| {
            comparison.entries[row].outcomes[0].summary.origin = origin;
        };
        set(&mut comparison, 0, of("2030-01-01T00:00:00Z", "trainer compare"));
        set(&mut comparison, 1, of("2030-01-02T00:00:00Z", "trainer compare"));
        let both = "trainer 1.2.3, commit abc-dirty, 2030-01-02T00:00:00Z, on a <fast> one: trainer compare";
        assert_eq!(origins(&comparison), [both]);
        assert!(html(&comparison, "").contains("on a &#60;fast&#62; one: trainer compare"));
        set(&mut comparison, 1, of("2030-01-02T00:00:00Z", "trainer compare --resume c"));
        assert_eq!(origins(&comparison).len(), 2);
        set(&mut comparison, 0, Origin::default());
        assert_eq!(origins(&comparison).len(), 1, "runs of earlier versions do not say it");
    }

    #[test]
    fn rates_are_short() {
        assert_eq!([0.1, 1.0, 1e30, 1e-7].map(rate_text), ["0.1", "1", "1e30", "1e-7"]);
    }

    #[test]
    fn text_is_escaped() {
        let config = RunConfig::resolve(&crate::config::Settings::default()).unwrap();
        let label = "<a href=\"x\">&".to_owned();
        let entry = Entry { label, config: config.clone(), outcomes: vec![], broken: vec![] };
        let comparison = Comparison { config, ..fixture::comparison(vec![entry]) };
        let page = html(&comparison, "<i>");
        assert!(page.contains("<html lang") && page.ends_with("</html>"), "{page}");
        for foreign in ["<a", "<i>"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("&#60;a href=&#34;x&#34;&#62;&#38;"), "{page}");
    }
}
