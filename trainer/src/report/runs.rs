//! The report of runs that this program did not do itself, made from their `metrics.jsonl` alone.

mod parts;
mod target;
mod value;

use askama::Template;

pub use self::value::Format;
use self::value::{Grid, Value};
use super::numbers::ratio_text;
use super::plot::{Figure, density_chart, density_curve, density_of, is_changing, smoothed as by_window};
use super::svg::{self, Axis, Chart, Curve};
use super::{Cell, Row, Rows};
use crate::config::adapted;
use crate::record::{LoggedRun, Metrics};
use crate::terminal::paragraph;

/// What `templates/runs.html` shows. The template escapes every text.
#[derive(Template)]
#[template(path = "runs.html")]
struct Page<'a> {
    title: &'a str,
    tables: Vec<Rows>,
    legend: Vec<(String, String)>,
    notes: Vec<String>,
    figures: Vec<Figure>,
}

/// What a report is asked for beside the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Rate of each worker's link in Gbit/s, in place of the one that a run was told.
    pub link_gbps: Option<f64>,
    /// The quality whose price is wanted: per cent of accuracy or, for text, a perplexity.
    pub target: Option<f64>,
}

/// Runs, put together for a page and for a terminal.
pub struct Report<'a> {
    runs: &'a [LoggedRun],
    grids: Vec<Grid>,
    /// What holds each run up.
    verdicts: Vec<String>,
}

impl<'a> Report<'a> {
    /// Of these runs.
    pub fn of(runs: &'a [LoggedRun], asked: Asked) -> Self {
        let (parts, verdicts) = parts::table(runs, asked.link_gbps);
        let target = asked.target.map(|target| target::table(runs, target));
        Self { runs, grids: [main_table(runs)].into_iter().chain(target).chain([parts]).collect(), verdicts }
    }

    /// What the page says below its tables.
    fn notes(&self) -> Vec<String> {
        let origin = |run: &LoggedRun| Some(format!("{}: {}", run.name, run.origin()?.text()));
        let origins = self.runs.iter().filter_map(origin);
        self.verdicts.iter().cloned().chain(NOTES.map(str::to_owned)).chain(origins).collect()
    }

    /// A page with one row and one curve for each run. Text of the runs is escaped; nothing is loaded from
    /// anywhere.
    pub fn html(&self, title: &str) -> String {
        let named = self.runs.iter().enumerate();
        let legend = named.map(|(number, run)| (svg::css_colour(number), run.name.clone())).collect();
        let tables = self.grids.iter().map(rows_of).collect();
        let page = Page { title, tables, legend, notes: self.notes(), figures: figures(self.runs) };
        // Every part of the page is a string: nothing of it can fail.
        page.render().unwrap_or_default()
    }

    /// The tables, and in text also what they say.
    pub fn written(&self, format: Format) -> String {
        let tables: Vec<String> = self.grids.iter().map(|grid| grid.written(format)).collect();
        let tables = tables.join("\n");
        if format != Format::Text {
            return tables;
        }
        let said: String = self.verdicts.iter().map(|said| paragraph(&format!("{said}."))).collect();
        if said.is_empty() { tables } else { format!("{tables}\n{said}") }
    }
}

const NOTES: [&str; 4] = [
    "Bytes are sums over all workers and all steps of the run",
    "Ratio: dense f32 bytes over frame bytes. Wire ratio: bytes of a dense f32 ring over bytes sent and received",
    "Training loss: mean over the last steps, ten at the most. Test accuracy or perplexity: at the end; while a run is under way, \
     the last on the validation part",
    "Parts of a step: means over all steps but the first; evaluations and the optimizer are left out. Exchange is sending, \
     receiving and waiting for slower workers; waiting is what is left of it after the bytes of one worker at the rate of its \
     link. Perfect network: how many times as fast steps would be if an exchange took no time",
];

const HEAD: [&str; 14] = [
    "run",
    "codec",
    "data",
    "model",
    "seed",
    "workers",
    "steps",
    "training loss",
    "accuracy",
    "perplexity",
    "bytes up",
    "bytes down",
    "ratio",
    "wire ratio",
];

fn main_table(runs: &[LoggedRun]) -> Grid {
    Grid::new("", &HEAD, runs.iter().map(row).collect())
}

fn row(run: &LoggedRun) -> Vec<Value> {
    let sum = |of: fn(&Metrics) -> u64| run.metrics.iter().map(of).sum::<u64>() as f64;
    let last: Vec<f64> =
        run.metrics.iter().rev().map(|line| line.loss).filter(|loss| loss.is_finite()).take(10).collect();
    let loss = last.iter().sum::<f64>() / last.len() as f64;
    let text = |text: Option<&str>| text.map_or(Value::none(), Value::text);
    let number =
        |value: Option<f64>, decimals| value.map_or(Value::none(), |value| Value::decimal(value, decimals));
    let codec = run.codec.as_deref().map(|codec| adapted(codec, run.adapt.as_deref()));
    let accuracy = if run.perplexity().is_some() { None } else { run.accuracy() };
    vec![
        Value::text(&run.name),
        text(codec.as_deref()),
        text(run.data.as_deref()),
        text(run.model.as_deref()),
        run.seed.map_or(Value::none(), Value::count),
        Value::count(run.metrics.last().map_or(0, |line| line.contributors as u64)),
        Value::count(run.metrics.len() as u64),
        if last.is_empty() { Value::none() } else { Value::decimal(loss, 4) },
        accuracy.map_or(Value::none(), |share| Value::number(share, format!("{:.2} %", 100.0 * share))),
        number(run.perplexity(), 3),
        Value::bytes(sum(|line| line.bytes_up)),
        Value::bytes(sum(|line| line.bytes_down)),
        overall(run, |line| line.ratio),
        wire(run),
    ]
}

/// The ratio of the sums, as every step has as many dense bytes.
fn overall(run: &LoggedRun, of: fn(&Metrics) -> Option<f64>) -> Value {
    let inverse: Vec<f64> =
        run.metrics.iter().filter_map(of).filter(|ratio| *ratio > 0.0).map(f64::recip).collect();
    if inverse.is_empty() {
        return Value::none();
    }
    let ratio = inverse.len() as f64 / inverse.iter().sum::<f64>();
    Value::number(ratio, ratio_text(ratio))
}

/// Bytes of dense rings over bytes sent and received, of all steps together: workers may come and go, so the
/// rings of the steps differ. Bytes of a step without a ring count too.
fn wire(run: &LoggedRun) -> Value {
    let moved = |line: &Metrics| (line.bytes_up + line.bytes_down) as f64;
    let rings: f64 = run.metrics.iter().map(|line| line.wire_ratio.unwrap_or(0.0) * moved(line)).sum();
    let ratio = rings / run.metrics.iter().map(moved).sum::<f64>();
    if rings > 0.0 { Value::number(ratio, ratio_text(ratio)) } else { Value::none() }
}

/// A table of the page; its rows have the colours of their curves.
fn rows_of(grid: &Grid) -> Rows {
    let row = |(number, mut cells): (usize, Vec<String>)| {
        let label = cells.remove(0);
        let cells = grid.head[1..].iter().cloned().zip(cells).map(|(name, text)| Cell { name, text });
        Row { colour: Some(svg::css_colour(number)), label, cells: cells.collect() }
    };
    let rows = grid.texts().into_iter().enumerate().map(row).collect();
    Rows { title: grid.title.clone(), head: grid.head.clone(), rows }
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
        figure(title, caption, &Chart { x, y, overlaps: true, front: None, spreads: Vec::new() }, &curves)
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
