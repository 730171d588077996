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
        front(comparison),
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

/// The quality that each row ends with, against the bytes that it took.
fn front(comparison: &Comparison) -> Option<Figure> {
    let is_text = comparison.is_text;
    let end = |entry: &Entry| {
        let bytes = entry.spread(|run| run.bytes_up as f64).mean;
        let accuracy = 100.0 * entry.spread(|run| run.accuracy).mean;
        let quality =
            if is_text { entry.spread(|run| run.perplexity.unwrap_or(f64::NAN)).mean } else { accuracy };
        vec![(bytes, quality)]
    };
    let points = curves(comparison, end);
    let all: Vec<(f64, f64)> =
        points.iter().flatten().copied().filter(|(_, quality)| quality.is_finite()).collect();
    if all.len() < 2 {
        return None;
    }
    let (title, name) = match is_text {
        true => ("Perplexity against all bytes", "perplexity"),
        false => ("Accuracy against all bytes", "accuracy, %"),
    };
    let chart = Chart {
        x: Axis { name: "bytes sent by all workers", is_log: true, format: &svg::bytes_label },
        y: Axis { name, is_log: is_text, format: &svg::plain_label },
        overlaps: false,
        front: Some(undominated(&all, is_text)),
    };
    let caption = "On the test part, at the end. The line joins the codecs that no other beats in both bytes and quality.";
    figure(comparison, (title, caption), &chart, &points)
}

/// The points that no other beats in both directions, from the fewest bytes on.
fn undominated(points: &[(f64, f64)], less_is_better: bool) -> Curve {
    let is_better = |a: f64, b: f64| if less_is_better { a < b } else { a > b };
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| {
        let best_first = if less_is_better { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) };
        a.0.total_cmp(&b.0).then(best_first)
    });
    let mut front: Curve = Vec::new();
    for point in sorted {
        if front.last().is_none_or(|last| is_better(point.1, last.1)) {
            front.push(point);
        }
    }
    front
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
        front: None,
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
        front: None,
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
        front: None,
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
        front: None,
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
pub(super) fn smoothed(values: &[(u64, f64)]) -> Curve {
    let width = (values.len() / 50).max(1);
    let mean = |end: usize| {
        let window = &values[(end + 1).saturating_sub(width)..=end];
        window.iter().map(|(_, value)| value).sum::<f64>() / window.len() as f64
    };
    (0..values.len()).map(|end| ((values[end].0 + 1) as f64, mean(end))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_has_what_no_other_row_beats() {
        let points = [(100.0, 97.0), (4.0, 36.0), (10.0, 95.0), (20.0, 94.0), (10.0, 90.0), (200.0, 97.0)];
        assert_eq!(undominated(&points, false), [(4.0, 36.0), (10.0, 95.0), (100.0, 97.0)]);
        assert_eq!(undominated(&[(1.0, 9.0), (2.0, 5.0), (3.0, 6.0)], true), [(1.0, 9.0), (2.0, 5.0)]);
    }
}
