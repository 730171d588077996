//! One HTML file that needs nothing else: table, plots as SVG, and a few words for someone who sees this for the first
//! time.

pub mod headline;
mod plot;
mod svg;
pub mod table;

use std::fmt::Write;

use self::headline::headlines;
use self::table::{Table, broken, footnotes};
use crate::compare::Comparison;
use crate::config::RunConfig;

const STYLE: &str = include_str!("style.css");

/// The report. Text that comes from settings is escaped; nothing is loaded from anywhere.
pub fn html(comparison: &Comparison, title: &str) -> String {
    let mut page = String::new();
    let title = escape(title);
    let task = escape(&task_line(comparison));
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>gradwire: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p class=\"task\">{task}</p>\n{}\n{}\n{}{}\n{}\n</main>\n</body>\n</html>\n",
        headline(comparison),
        table(comparison),
        note_list(comparison),
        plots(comparison),
        explanation(comparison),
    );
    page
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The result in a sentence for each model, where there is a dense run to compare with.
fn headline(comparison: &Comparison) -> String {
    let sentences = headlines(comparison);
    let sentences =
        sentences.iter().map(|found| format!("<p class=\"headline\">{}</p>", escape(&found.text())));
    sentences.collect()
}

fn table(comparison: &Comparison) -> String {
    let table = Table::new(comparison);
    let head: String = table.head.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
    let rows = table.rows.iter().enumerate().map(|(number, row)| {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("<th>{}<code>{}</code></th>", swatch(number), escape(cell)),
            _ => format!("<td>{}</td>", escape(cell)),
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    let rows: String = rows.collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>"
    )
}

/// The colour of a codec, the same everywhere in the report.
fn swatch(number: usize) -> String {
    format!("<span class=\"swatch\" style=\"background:{}\"></span>", svg::css_colour(number))
}

fn note_list(comparison: &Comparison) -> String {
    let all = own_training(comparison).into_iter().chain(footnotes(comparison)).chain(notes(comparison));
    let items: String = all.map(|note| format!("<li>{}.</li>", escape(&note))).collect();
    if items.is_empty() { items } else { format!("<ul class=\"notes\">{items}</ul>\n") }
}

fn legend(comparison: &Comparison) -> String {
    let entries = comparison.entries.iter().enumerate();
    let items: String = entries
        .map(|(number, entry)| {
            format!("<span>{}<code>{}</code></span>", swatch(number), escape(&entry.label))
        })
        .collect();
    format!("<p class=\"legend\">{items}</p>")
}

fn plots(comparison: &Comparison) -> String {
    let figures = plot::all(comparison).into_iter().map(|figure| {
        format!(
            "<figure>\n<h2>{}</h2>\n{}\n{}\n<figcaption>{}</figcaption>\n</figure>\n",
            escape(figure.title),
            legend(comparison),
            figure.svg,
            escape(figure.caption)
        )
    });
    format!("<div class=\"plots\">\n{}</div>", figures.collect::<String>())
}

fn explanation(comparison: &Comparison) -> String {
    let toml = escape(&comparison.config.to_toml());
    format!(
        "{}\n<details><summary>Settings of the first run</summary><pre>{toml}</pre></details>",
        include_str!("explanation.html")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_and_text_is_escaped() {
        assert_eq!([7, 999, 1000, 1_234_567].map(thousands), ["7", "999", "1,000", "1,234,567"]);
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
