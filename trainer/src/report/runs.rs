//! The report of runs that this program did not do itself, made from their `metrics.jsonl` alone.

use askama::Template;

use super::plot::{Figure, density_chart, density_curve, density_of, is_changing, smoothed as by_window};
use super::svg::{self, Axis, Chart, Curve};
use super::table::{bytes, duration, ratio_text};
use super::{Cell, Row, Rows};
use crate::config::adapted;
use crate::record::{LoggedRun, Metrics};

const HEAD: [&str; 12] = [
    "run",
    "codec",
    "workers",
    "steps",
    "training loss",
    "bytes up",
    "bytes down",
    "ratio",
    "wire ratio",
    "encode",
    "exchange",
    "decode",
];

/// What `templates/runs.html` shows. The template escapes every text.
#[derive(Template)]
#[template(path = "runs.html")]
struct Page<'a> {
    title: &'a str,
    tables: Vec<Rows>,
    legend: Vec<(String, String)>,
    notes: [&'static str; 3],
    figures: Vec<Figure>,
}

/// A page with one row and one curve for each run. Text of the runs is escaped; nothing is loaded from
/// anywhere.
pub fn html(runs: &[LoggedRun], title: &str) -> String {
    let named = runs.iter().enumerate();
    let legend = named.map(|(number, run)| (svg::css_colour(number), run.name.clone())).collect();
    let page = Page { title, tables: vec![table(runs)], legend, notes: NOTES, figures: figures(runs) };
    // Every part of the page is a string: nothing of it can fail.
    page.render().unwrap_or_default()
}

const NOTES: [&str; 3] = [
    "Bytes are sums over all workers and all steps of the run",
    "Ratio: dense f32 bytes over frame bytes. Wire ratio: bytes of a dense f32 ring over bytes sent and received",
    "Training loss: mean over the last steps, ten at the most. Times are those of a step; waiting for slower workers counts \
     as exchange",
];

/// Headings and one row of text for each run, for the terminal and the page.
pub fn rows(runs: &[LoggedRun]) -> (Vec<String>, Vec<Vec<String>>) {
    (HEAD.map(str::to_owned).to_vec(), runs.iter().map(row).collect())
}

fn row(run: &LoggedRun) -> Vec<String> {
    let sum = |of: fn(&Metrics) -> u64| run.metrics.iter().map(of).sum::<u64>() as f64;
    let steps = run.metrics.len() as f64;
    let per_step = |of: fn(&Metrics) -> u64| duration(sum(of) / steps * 1e-9);
    let last: Vec<f64> =
        run.metrics.iter().rev().map(|line| line.loss).filter(|loss| loss.is_finite()).take(10).collect();
    let loss = last.iter().sum::<f64>() / last.len() as f64;
    vec![
        run.name.clone(),
        adapted(run.codec.as_deref().unwrap_or("-"), run.adapt.as_deref()),
        run.metrics.last().map_or(0, |line| line.contributors).to_string(),
        run.metrics.len().to_string(),
        if last.is_empty() { "-".to_owned() } else { format!("{loss:.4}") },
        bytes(sum(|line| line.bytes_up)),
        bytes(sum(|line| line.bytes_down)),
        overall(run, |line| line.ratio),
        overall(run, |line| line.wire_ratio),
        per_step(|line| line.encode_ns),
        per_step(|line| line.exchange_ns),
        per_step(|line| line.decode_ns),
    ]
}

/// The ratio of the sums, as every step has as many dense bytes.
fn overall(run: &LoggedRun, of: fn(&Metrics) -> Option<f64>) -> String {
    let inverse: Vec<f64> =
        run.metrics.iter().filter_map(of).filter(|ratio| *ratio > 0.0).map(f64::recip).collect();
    if inverse.is_empty() {
        return "-".to_owned();
    }
    ratio_text(inverse.len() as f64 / inverse.iter().sum::<f64>())
}

fn table(runs: &[LoggedRun]) -> Rows {
    let (head, rows) = rows(runs);
    let row = |(number, mut cells): (usize, Vec<String>)| {
        let label = cells.remove(0);
        let cells = head[1..].iter().cloned().zip(cells).map(|(name, text)| Cell { name, text });
        Row { colour: Some(svg::css_colour(number)), label, cells: cells.collect() }
    };
    let rows = rows.into_iter().enumerate().map(row).collect();
    Rows { title: String::new(), head, rows }
}

fn figures(runs: &[LoggedRun]) -> Vec<Figure> {
    let step = || Axis { name: "step", is_log: false, format: &svg::plain_label };
    let plain = |name| Axis { name, is_log: true, format: &svg::plain_label };
    let in_bytes = |name| Axis { name, is_log: true, format: &svg::bytes_label };
    let losses: Vec<Curve> = runs.iter().map(|run| smoothed(run, |line| line.loss)).collect();
    let by_bytes: Vec<Curve> = runs.iter().zip(&losses).map(|(run, loss)| against_bytes(run, loss)).collect();
    let sent: Vec<Curve> = runs.iter().map(|run| curve(run, |line| line.bytes_up as f64)).collect();
    let kept: Vec<Curve> = runs.iter().map(|run| curve(run, |line| line.residual_norm)).collect();
    let so_far = in_bytes("bytes sent by all workers so far");
    let all = [
        ("Training loss by step", "Mean over a fiftieth of the run.", step(), plain("training loss"), losses),
        (
            "Training loss against bytes sent",
            "Further left is cheaper.",
            so_far,
            plain("training loss"),
            by_bytes,
        ),
        (
            "Bytes per step",
            "What all workers send in one step.",
            step(),
            in_bytes("bytes sent by all workers"),
            sent,
        ),
        ("Norm of the residual", "It should settle.", step(), plain("L2 norm of the residual"), kept),
    ];
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let figure = |title: &str, caption, chart: &Chart<'_>, curves: &[Curve]| {
        let description = svg::describe(chart, &names, curves);
        Some(Figure { title: title.to_owned(), caption, svg: svg::draw(chart, curves)?, description })
    };
    let drawn = all.into_iter().filter_map(|(title, caption, x, y, curves)| {
        figure(title, caption, &Chart { x, y, overlaps: true, front: None }, &curves)
    });
    let densities: Vec<Curve> = runs.iter().map(densities).collect();
    let (title, caption, chart) = density_chart();
    let changing = densities.iter().any(is_changing).then(|| figure(title, caption, &chart, &densities));
    drawn.chain(changing.flatten()).collect()
}

/// What was set for each step, of a run whose codec has a density or sends everything.
fn densities(run: &LoggedRun) -> Curve {
    let is_dense = run.codec.as_deref() == Some("none");
    let set = run.metrics.iter().filter_map(|line| Some((line.step, density_of(line, is_dense)?)));
    density_curve(set.collect())
}

fn curve(run: &LoggedRun, of: fn(&Metrics) -> f64) -> Curve {
    run.metrics.iter().map(|line| ((line.step + 1) as f64, of(line))).collect()
}

/// Without steps whose value is not a number.
fn smoothed(run: &LoggedRun, of: fn(&Metrics) -> f64) -> Curve {
    let values: Vec<(u64, f64)> =
        run.metrics.iter().map(|line| (line.step, of(line))).filter(|(_, value)| value.is_finite()).collect();
    by_window(&values)
}

fn against_bytes(run: &LoggedRun, loss: &Curve) -> Curve {
    let mut sum = 0.0;
    let mut sent = run.metrics.iter().map(|line| {
        sum += line.bytes_up as f64;
        ((line.step + 1) as f64, sum)
    });
    loss.iter()
        .filter_map(|&(step, loss)| {
            Some((sent.by_ref().find(|&(other, _)| other == step).map(|(_, bytes)| bytes)?, loss))
        })
        .collect()
}
