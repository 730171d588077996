//! Every run of a comparison as a line of `results.csv` (RFC 4180), for spreadsheets and plots.

use crate::compare::{Broken, Comparison, Entry};
use crate::record::Summary;

/// The columns. Cells that a run without a result lacks are empty.
const TITLES: [&str; 30] = [
    "row",
    "codec",
    "data",
    "model",
    "workers",
    "batch",
    "optimizer",
    "lr",
    "momentum",
    "seed",
    "result",
    "steps",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "test_perplexity",
    "bytes_up",
    "bytes_down",
    "ratio",
    "wire_ratio",
    "seconds",
    "encode_seconds",
    "decode_seconds",
    "params_hash",
    "compute_seconds",
    "version",
    "commit",
    "date",
    "cpu",
    "command",
];

/// A line of titles, and one for each run. `result` is `done`, or says why there is no result. Bytes are sums
/// over all workers, times are means over them.
pub fn csv(comparison: &Comparison) -> String {
    let mut text = line(TITLES.map(str::to_owned).to_vec());
    for entry in &comparison.entries {
        let done = entry.outcomes.iter().map(|run| finished(&run.summary));
        let broken = entry.broken.iter().map(broken);
        text.extend(done.chain(broken).map(|run| line([settings(entry), run].concat())));
    }
    text
}

/// Empty cells up to the number of columns.
fn line(mut cells: Vec<String>) -> String {
    cells.resize(TITLES.len(), String::new());
    csv_line(&cells)
}

/// A line of cells, with quotes if a comma needs them.
pub(super) fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

fn settings(entry: &Entry) -> Vec<String> {
    let config = &entry.config;
    vec![
        entry.label.clone(),
        config.codec.to_string(),
        config.data.to_string(),
        config.model.to_string(),
        config.workers.to_string(),
        config.batch.to_string(),
        config.optimizer.to_string(),
        config.lr.to_string(),
        number(config.momentum),
    ]
}

fn finished(run: &Summary) -> Vec<String> {
    vec![
        run.seed.to_string(),
        "done".to_owned(),
        run.steps.to_string(),
        run.train_loss.to_string(),
        run.final_loss.to_string(),
        run.accuracy.to_string(),
        number(run.perplexity),
        run.bytes_up.to_string(),
        run.bytes_down.to_string(),
        number(run.ratio),
        number(run.wire_ratio),
        run.seconds.to_string(),
        run.encode_seconds.to_string(),
        run.decode_seconds.to_string(),
        run.params_hash.clone(),
        run.compute_seconds.to_string(),
        run.origin.version.clone(),
        run.origin.commit.clone().unwrap_or_default(),
        run.origin.date.clone(),
        run.origin.cpu.clone(),
        run.origin.command.clone(),
    ]
}

fn broken(run: &Broken) -> Vec<String> {
    vec![run.seed.to_string(), run.text(), run.step.to_string(), number(run.loss)]
}

fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let cells = line(vec!["topk:density=0.1,values=q8".into(), "say \"no\"".into(), "1".into()]);
        assert!(cells.starts_with("\"topk:density=0.1,values=q8\",\"say \"\"no\"\"\",1,,"), "{cells}");
        assert!(cells.ends_with(",\r\n") && cells.matches(',').count() == TITLES.len(), "{cells}");
    }
}
