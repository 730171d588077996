//! The one table of a comparison, for the terminal and for the report.

use super::headline::{Paired, to_dense};
use super::numbers::{bits_per_second, bytes, decimal, duration, ratio_text};
use crate::compare::{Comparison, Entry, Spread};
use crate::terminal;

/// Headings and rows of text.
#[derive(Clone, Debug)]
pub struct Table {
    /// One for each column.
    pub head: Vec<String>,
    /// One for each codec.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// The table of a comparison. Bytes are sums over all workers and steps, and means over the seeds like
    /// everything else.
    pub fn new(comparison: &Comparison) -> Self {
        let quality = if comparison.is_text { "test\nperplexity" } else { "test accuracy" };
        let mut head = vec![
            "codec",
            quality,
            "test loss",
            "bytes up",
            "bytes down",
            "ratio",
            "wire ratio",
            "encode",
            "decode",
            "seconds",
        ];
        let differences: Vec<Option<Paired>> =
            comparison.entries.iter().map(|entry| to_dense(entry, comparison)).collect();
        let is_paired = differences.iter().any(Option::is_some);
        if is_paired {
            head.insert(2, TO_DENSE);
        }
        let rows = comparison.entries.iter().zip(differences).map(|(entry, difference)| {
            if entry.outcomes.is_empty() {
                return row_without_result(entry, head.len());
            }
            let mut cells = row(entry);
            if is_paired {
                cells.insert(2, difference.map_or("-".to_owned(), Paired::short));
            }
            cells
        });
        Self { rows: rows.collect(), head: head.into_iter().map(str::to_owned).collect() }
    }

    /// The table as text, no wider than the terminal.
    pub fn to_text(&self) -> String {
        terminal::table(&self.head, &self.rows)
    }
}

/// Title of the difference from dense training.
const TO_DENSE: &str = "to dense";

/// Every run without a result that its row has no room to explain.
pub fn broken(comparison: &Comparison) -> Vec<String> {
    let rows = comparison.entries.iter().filter(|entry| !entry.outcomes.is_empty() || entry.broken.len() > 1);
    let runs = rows.flat_map(|entry| entry.broken.iter().map(move |run| (&entry.label, run)));
    runs.map(|(label, run)| format!("{label}, seed {}: {}", run.seed, run.text())).collect()
}

/// The meaning of ±, and on which links each codec pays.
pub fn footnotes(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let summaries = || comparison.entries.iter().flat_map(|entry| &entry.outcomes).map(|run| &run.summary);
    if let Some(run) = summaries().next().filter(|run| run.perplexity.is_none()) {
        let point = 100.0 * run.accuracy_resolution;
        notes.push(format!("One test example is worth {point:.2} points"));
    }
    if comparison.seeds > 1 {
        notes.push(format!("After ± stands the standard deviation over {} seeds", comparison.seeds));
    }
    if comparison.entries.iter().any(|entry| to_dense(entry, comparison).is_some()) {
        notes.push(format!(
            "{TO_DENSE}: the difference from dense training of the same momentum, paired by seed; after ± stands half of its \
             95 % interval, Student's t for paired differences, and at least one test example"
        ));
    }
    let pays = comparison.entries.iter().filter(|entry| !entry.is_dense()).filter_map(|entry| {
        let gbps = entry.spread(|run| run.break_even_gbps.unwrap_or(f64::NAN)).mean;
        gbps.is_finite().then(|| format!("{} {}", entry.label, bits_per_second(gbps)))
    });
    let pays: Vec<String> = pays.collect();
    if !pays.is_empty() {
        notes.push(format!(
            "Break-even, measured here; slower links gain from the codec: {}",
            pays.join(", ")
        ));
    }
    notes
}

/// Why there is no number: for one run in its row, for several in lines below the table.
fn row_without_result(entry: &Entry, columns: usize) -> Vec<String> {
    let text = match entry.broken.as_slice() {
        [one] => in_lines(&one.text()),
        several => format!("{} runs\nwithout result", several.len()),
    };
    let rest = std::iter::repeat_n("-".to_owned(), columns - 2);
    [entry.label.clone(), text].into_iter().chain(rest).collect()
}

/// Characters in a line of a cell that has words.
const CELL_WIDTH: usize = 24;

fn in_lines(text: &str) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if used > 0 {
            let is_full = used + 1 + len > CELL_WIDTH;
            lines.push(if is_full { '\n' } else { ' ' });
            used = if is_full { 0 } else { used + 1 };
        }
        lines += word;
        used += len;
    }
    lines
}

fn row(entry: &Entry) -> Vec<String> {
    let steps = entry.spread(|run| run.steps as f64).mean;
    let per_step = |of: fn(&crate::record::Summary) -> f64| duration(entry.spread(of).mean / steps);
    let times = |of: fn(&crate::record::Summary) -> Option<f64>| {
        let ratio = entry.spread(move |run| of(run).unwrap_or(f64::NAN)).mean;
        if ratio.is_finite() { ratio_text(ratio) } else { "-".to_owned() }
    };
    vec![
        entry.label.clone(),
        quality(entry) + &finished(entry),
        decimal(entry.spread(|run| run.final_loss).mean, 4),
        bytes(entry.spread(|run| run.bytes_up as f64).mean),
        bytes(entry.spread(|run| run.bytes_down as f64).mean),
        times(|run| run.ratio),
        times(|run| run.wire_ratio),
        per_step(|run| run.encode_seconds),
        per_step(|run| run.decode_seconds),
        format!("{:.2}", entry.spread(|run| run.seconds).mean),
    ]
}

/// How many seeds the row represents, if some have no result.
fn finished(entry: &Entry) -> String {
    let (done, broken) = (entry.outcomes.len(), entry.broken.len());
    if broken == 0 { String::new() } else { format!("\n{done} of {} seeds", done + broken) }
}

/// Accuracy or perplexity. Only several seeds have a spread.
fn quality(entry: &Entry) -> String {
    let is_text = entry.outcomes.iter().all(|run| run.summary.perplexity.is_some());
    let Spread { mean, deviation } = match is_text {
        true => entry.spread(|run| run.perplexity.unwrap_or(f64::NAN)),
        false => entry.spread(|run| 100.0 * run.accuracy),
    };
    let (decimals, unit) = if is_text { (3, "") } else { (2, " %") };
    match entry.outcomes.len() {
        1 => format!("{}{unit}", decimal(mean, decimals)),
        _ => format!("{} ± {}{unit}", decimal(mean, decimals), decimal(deviation, decimals)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_a_cell_are_broken_between_them() {
        assert_eq!(in_lines("diverged at step 37, loss 8.123e12"), "diverged at step 37,\nloss 8.123e12");
    }

    #[test]
    fn a_diverged_run_has_few_digits() {
        let mut entry = crate::compare::fixture::entry("topk", 0.1, &[3.9e36, 4.1e36], 9);
        entry.outcomes.iter_mut().for_each(|run| run.summary.final_loss = 8e36);
        let cells = row(&entry);
        assert_eq!((cells[1].as_str(), cells[2].as_str()), ("4.0e36 ± 1.4e35", "8.0e36"));
    }

    #[test]
    fn one_seed_has_no_spread() {
        let cell =
            |qualities: &[f64]| row(&crate::compare::fixture::entry("topk", 0.1, qualities, 9))[1].clone();
        assert_eq!(
            [&[0.9][..], &[0.9, 0.8], &[5.5], &[5.0, 6.0]].map(cell),
            ["90.00 %", "85.00 ± 7.07 %", "5.500", "5.500 ± 0.707"]
        );
    }
}
