//! Which curves the report shows.

use super::svg::{self, Axis, Chart, Curve};
use crate::compare::{Comparison, Entry};
use crate::record::Metrics;

/// A plot with its words.
pub(super) struct Figure {
    pub(super) title: &'static str,
    pub(super) caption: &'static str,
    pub(super) svg: String,
    /// For those who do not see the drawing.
    pub(super) description: String,
}

/// All plots for which there is something to show.
pub(super) fn all(comparison: &Comparison) -> Vec<Figure> {
    let figures = [
        quality_by_bytes(comparison),
        loss_by_step(comparison),
        quality_by_step(comparison),
        bytes_by_step(comparison),
    ];
    figures.into_iter().flatten().collect()
}

fn figure(
    comparison: &Comparison,
    words: (&'static str, &'static str),
    chart: &Chart<'_>,
    curves: &[Curve],
) -> Option<Figure> {
    let (title, caption) = words;
    let names: Vec<&str> = comparison.entries.iter().map(|entry| entry.label.as_str()).collect();
    let description = svg::describe(chart, &names, curves);
    Some(Figure { title, caption, svg: svg::draw(chart, curves)?, description })
}

fn curves(comparison: &Comparison, of: impl Fn(&Entry) -> Curve) -> Vec<Curve> {
    comparison.entries.iter().map(of).collect()
}

/// Perplexity for text, accuracy in percent for images: name, and curve over the steps with an evaluation.
fn quality(comparison: &Comparison) -> (&'static str, fn(&Metrics) -> Option<f64>) {
    match comparison.is_text {
        true => ("perplexity", |line| line.perplexity),
        false => ("accuracy, %", |line| line.accuracy.map(|accuracy| 100.0 * accuracy)),
    }
}

fn quality_by_bytes(comparison: &Comparison) -> Option<Figure> {
    let is_text = comparison.is_text;
    let title = if is_text { "Perplexity against bytes sent" } else { "Accuracy against bytes sent" };
    let (name, quality) = quality(comparison);
    let curves = curves(comparison, |entry| {
        let sent = cumulated(&entry.curve(|line| Some(line.bytes_up as f64)));
        entry.curve(quality).into_iter().map(|(step, quality)| (sent[step as usize].1, quality)).collect()
    });
    let chart = Chart {
        x: Axis { name: "bytes sent by all workers so far", is_log: true, format: &svg::bytes_label },
        y: Axis { name, is_log: is_text, format: &svg::plain_label },
        overlaps: false,
    };
    let caption = "Further left is cheaper. Each step of the horizontal axis is ten times as many bytes.";
    figure(comparison, (title, caption), &chart, &curves)
}

fn quality_by_step(comparison: &Comparison) -> Option<Figure> {
    let is_text = comparison.is_text;
    let title = if is_text { "Perplexity by step" } else { "Accuracy by step" };
    let (name, quality) = quality(comparison);
    let curves = curves(comparison, |entry| by_step(entry.curve(quality)));
    let chart = Chart {
        x: Axis { name: "step", is_log: false, format: &svg::plain_label },
        y: Axis { name, is_log: is_text, format: &svg::plain_label },
        overlaps: true,
    };
    figure(comparison, (title, "On data that the model does not learn from."), &chart, &curves)
}

fn by_step(values: Vec<(u64, f64)>) -> Curve {
    values.into_iter().map(|(step, value)| ((step + 1) as f64, value)).collect()
}

fn loss_by_step(comparison: &Comparison) -> Option<Figure> {
    let curves = curves(comparison, |entry| smoothed(&entry.curve(|line| Some(line.loss))));
    let chart = Chart {
        x: Axis { name: "step", is_log: false, format: &svg::plain_label },
        y: Axis { name: "training loss", is_log: true, format: &svg::plain_label },
        overlaps: true,
    };
    let caption = "Curves on top of each other mean that compression costs no progress per step. Mean over the last steps, \
                   a fiftieth of the run.";
    figure(comparison, ("Training loss by step", caption), &chart, &curves)
}

fn bytes_by_step(comparison: &Comparison) -> Option<Figure> {
    let curves = curves(comparison, |entry| by_step(entry.curve(|line| Some(line.bytes_up as f64))));
    let chart = Chart {
        x: Axis { name: "step", is_log: false, format: &svg::plain_label },
        y: Axis { name: "bytes sent by all workers", is_log: true, format: &svg::bytes_label },
        overlaps: false,
    };
    let caption = "What all workers together send in one step.";
    figure(comparison, ("Bytes per step", caption), &chart, &curves)
}

fn cumulated(values: &[(u64, f64)]) -> Curve {
    let add = |sum: &mut f64, &(step, value): &(u64, f64)| {
        *sum += value;
        Some((step as f64, *sum))
    };
    values.iter().scan(0.0, add).collect()
}

/// The mean of each value and those before it, over a fiftieth of the run.
fn smoothed(values: &[(u64, f64)]) -> Curve {
    let width = (values.len() / 50).max(1);
    let mean = |end: usize| {
        let window = &values[(end + 1).saturating_sub(width)..=end];
        window.iter().map(|(_, value)| value).sum::<f64>() / window.len() as f64
    };
    (0..values.len()).map(|end| ((values[end].0 + 1) as f64, mean(end))).collect()
}
