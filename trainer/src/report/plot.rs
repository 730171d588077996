//! Which curves the report shows.

use gradwire::LayoutRef;
use gradwire::plan::Plan;
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::Route;

use super::numbers::bits_per_second;
use super::svg::{self, Axis, Chart, Curve};
use crate::agreement::{Averaging, link};
use crate::compare::{Comparison, Entry};
use crate::record::Metrics;

/// A plot with its words.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) caption: &'static str,
    pub(super) svg: String,
    /// For readers who do not see the drawing.
    pub(super) description: String,
}

/// All plots for which there is something to show.
pub(super) fn all(comparison: &Comparison) -> Vec<Figure> {
    let figures = [
        front(comparison),
        quality_by_bytes(comparison),
        quality_by_seconds(comparison),
        loss_by_step(comparison),
        quality_by_step(comparison),
        bytes_by_step(comparison),
        density_by_step(comparison),
    ];
    figures.into_iter().flatten().collect()
}

fn figure(
    comparison: &Comparison,
    (title, caption): (impl Into<String>, &'static str),
    chart: &Chart<'_>,
    curves: &[Curve],
) -> Option<Figure> {
    let title = title.into();
    let names: Vec<&str> = comparison.entries.iter().map(|entry| entry.label.as_str()).collect();
    let description = svg::describe(chart, &names, curves);
    Some(Figure { title, caption, svg: svg::draw(chart, curves)?, description })
}

fn curves(comparison: &Comparison, of: impl Fn(&Entry) -> Curve) -> Vec<Curve> {
    comparison.entries.iter().map(of).collect()
}

/// What is measured while training.
struct Quality {
    /// At the beginning of a title.
    title: &'static str,
    axis: &'static str,
    of: fn(&Metrics) -> Option<f64>,
}

/// Perplexity for text, accuracy in percent for images. Data without a validation part is measured on the
/// test part.
fn quality(comparison: &Comparison) -> Quality {
    let (title, axis) = match (comparison.is_text, comparison.validates_on_test()) {
        (true, false) => ("Validation perplexity", "validation perplexity"),
        (true, true) => ("Test perplexity", "test perplexity"),
        (false, false) => ("Validation accuracy", "validation accuracy, %"),
        (false, true) => ("Test accuracy", "test accuracy, %"),
    };
    match comparison.is_text {
        true => Quality { title, axis, of: |line| line.perplexity },
        false => Quality { title, axis, of: |line| line.accuracy.map(|accuracy| 100.0 * accuracy) },
    }
}

/// For each row how far its seeds spread below and above a curve of means; nothing where no row has seeds.
fn spreads(comparison: &Comparison, of: impl Fn(&Entry) -> [Curve; 2]) -> Vec<[Curve; 2]> {
    let has_seeds = comparison.entries.iter().any(|entry| entry.outcomes.len() > 1);
    if has_seeds { comparison.entries.iter().map(of).collect() } else { Vec::new() }
}

/// A standard deviation of the seeds below and above each point.
fn around(curve: &[(f64, f64)], deviations: impl Iterator<Item = f64>) -> [Curve; 2] {
    let pairs: Vec<_> = curve.iter().zip(deviations).collect();
    [-1.0, 1.0].map(|sign| pairs.iter().map(|&(&(x, y), deviation)| (x, y + sign * deviation)).collect())
}

/// The quality that each row ends with, against the bytes that it took.
fn front(comparison: &Comparison) -> Option<Figure> {
    let is_text = comparison.is_text;
    let quality = |entry: &Entry| match is_text {
        true => entry.spread(|run| run.perplexity.unwrap_or(f64::NAN)),
        false => entry.spread(|run| 100.0 * run.accuracy),
    };
    let end = |entry: &Entry| vec![(entry.spread(|run| run.bytes_up as f64).mean, quality(entry).mean)];
    let points = curves(comparison, end);
    let bars = |entry: &Entry| around(&end(entry), std::iter::once(quality(entry).deviation));
    let all: Vec<(f64, f64)> =
        points.iter().flatten().copied().filter(|(_, quality)| quality.is_finite()).collect();
    if all.len() < 2 {
        return None;
    }
    let (title, name) = match is_text {
        true => ("Test perplexity against all bytes", "test perplexity"),
        false => ("Test accuracy against all bytes", "test accuracy, %"),
    };
    let chart = Chart {
        x: Axis { name: "bytes sent by all workers", is_log: true, format: &svg::bytes_label },
        y: Axis { name, is_log: is_text, format: &svg::plain_label },
        overlaps: false,
        front: Some(undominated(&all, is_text)),
        spreads: spreads(comparison, bars),
    };
    let caption = "At the end of the run. The line joins the codecs that no other beats in both bytes and quality. \
                   Bars are the standard deviation over the seeds, where there are several.";
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
    let Quality { title: what, axis: name, of: quality } = quality(comparison);
    let curves = curves(comparison, |entry| {
        let sent = cumulated(&entry.curve(|line| Some(line.bytes_up as f64)));
        entry.curve(quality).into_iter().map(|(step, quality)| (sent[step as usize].1, quality)).collect()
    });
    let bands = comparison.entries.iter().zip(&curves).map(|(entry, curve)| {
        around(curve, entry.deviations(quality).into_iter().map(|(_, deviation)| deviation))
    });
    let chart = Chart {
        x: Axis { name: "bytes sent by all workers so far", is_log: true, format: &svg::bytes_label },
        y: Axis { name, is_log: is_text, format: &svg::plain_label },
        overlaps: false,
        front: None,
        spreads: if comparison.seeds > 1 { bands.collect() } else { Vec::new() },
    };
    let caption = "Further left is cheaper. Mean of the seeds; bands are their standard deviation.";
    figure(comparison, (format!("{what} against bytes sent"), caption), &chart, &curves)
}

/// On a link whose rate was stated.
fn quality_by_seconds(comparison: &Comparison) -> Option<Figure> {
    let link = comparison.config.link_gbps?;
    let Quality { title: what, axis: name, of: quality } = quality(comparison);
    let title = format!("{what} against seconds on a link of {}", bits_per_second(link));
    let curves = curves(comparison, |entry| {
        let Some(step) = StepOnLink::of(entry, comparison.params) else { return Vec::new() };
        let passed = cumulated(&entry.curve(|line| Some(step.seconds(line))));
        entry.curve(quality).into_iter().map(|(step, quality)| (passed[step as usize].1, quality)).collect()
    });
    let chart = Chart {
        x: Axis { name: "seconds of training on that link", is_log: true, format: &svg::plain_label },
        y: Axis { name, is_log: comparison.is_text, format: &svg::plain_label },
        overlaps: false,
        front: None,
        spreads: Vec::new(),
    };
    let caption = "Further left is faster. Computing, encoding and decoding as measured here; for sending, the counted bytes \
                   over the stated rate, and the latency of messages that wait for each other. Nothing overlaps, and \
                   evaluations do not count.";
    figure(comparison, (title, caption), &chart, &curves)
}

/// What a step of one row takes on the link of its configuration.
struct StepOnLink {
    link: Link,
    /// Forward and backward pass.
    compute_s: f64,
    /// Workers among whom the bytes of a step are spread, each with a link of its own.
    senders: f64,
    /// Messages that wait for each other.
    hops: f64,
}

impl StepOnLink {
    fn of(entry: &Entry, params: usize) -> Option<Self> {
        let (config, workers) = (&entry.config, entry.config.workers as f64);
        let plan = Plan::of(&config.codec.spec, &LayoutRef::flat(params));
        let (senders, hops) = match Averaging::of(config, &plan) {
            // Frames go to the server one after the other, and so do the means that it sends.
            Averaging::Mean(Route::Server(_)) => (1.0, 2.0),
            Averaging::Mean(Route::AllReduce { .. }) => (workers, 2.0 * (workers - 1.0)),
            Averaging::Mean(Route::SparseAllReduce | Route::Owners { .. }) => (workers, 2.0),
            // As many of the messages as the tree is high, up and down, wait for each other.
            Averaging::Mean(Route::Tree { .. }) => {
                let height = workers.log2().ceil();
                ((workers - 1.0) / height.max(1.0), 2.0 * height)
            }
            _ => (workers, 1.0),
        };
        let compute_s = entry.spread(|run| run.compute_seconds / run.steps as f64).mean;
        Some(Self { link: link(config)?, compute_s, senders, hops })
    }

    fn seconds(&self, line: &Metrics) -> f64 {
        let coding = (line.encode_ns + line.decode_ns) as f64 * 1e-9;
        let sending =
            self.link.latency_s * self.hops + line.bytes_up as f64 / self.senders / self.link.bytes_per_s;
        self.compute_s + coding + sending
    }
}

fn quality_by_step(comparison: &Comparison) -> Option<Figure> {
    let Quality { title: what, axis: name, of: quality } = quality(comparison);
    let curves = curves(comparison, |entry| by_step(entry.curve(quality)));
    let bands = comparison.entries.iter().zip(&curves).map(|(entry, curve)| {
        around(curve, entry.deviations(quality).into_iter().map(|(_, deviation)| deviation))
    });
    let chart = Chart {
        x: Axis { name: "step", is_log: false, format: &svg::plain_label },
        y: Axis { name, is_log: comparison.is_text, format: &svg::plain_label },
        overlaps: true,
        front: None,
        spreads: if comparison.seeds > 1 { bands.collect() } else { Vec::new() },
    };
    let caption =
        "On data that the model does not learn from. Mean of the seeds; bands are their standard deviation.";
    figure(comparison, (format!("{what} by step"), caption), &chart, &curves)
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
        spreads: Vec::new(),
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
        spreads: Vec::new(),
    };
    let caption = "What all workers together send in one step.";
    figure(comparison, ("Bytes per step", caption), &chart, &curves)
}

/// Only if the density of some row changes. A row of a codec without a density has no curve, except for
/// `none`.
fn density_by_step(comparison: &Comparison) -> Option<Figure> {
    let curves = curves(comparison, |entry| {
        let is_dense = entry.is_dense();
        density_curve(entry.curve(|line| density_of(line, is_dense)))
    });
    let (title, caption, chart) = density_chart();
    curves.iter().any(is_changing).then(|| figure(comparison, (title, caption), &chart, &curves)).flatten()
}

/// Title, caption and axes of the densities.
pub(super) fn density_chart() -> (&'static str, &'static str, Chart<'static>) {
    let chart = Chart {
        x: Axis { name: "step", is_log: false, format: &svg::plain_label },
        y: Axis { name: "share to be sent, %", is_log: true, format: &svg::small_label },
        overlaps: true,
        front: None,
        spreads: Vec::new(),
    };
    let caption = "The share of the coordinates that a step was to send, as its list, its warm-up or its controller set it.";
    ("Density by step", caption, chart)
}

/// The density that was set for a step; everything, if whole gradients are sent.
pub(super) fn density_of(line: &Metrics, is_dense: bool) -> Option<f64> {
    line.target_density.or(is_dense.then_some(1.0))
}

/// Densities in percent, without the steps between two at which nothing changes.
pub(super) fn density_curve(values: Vec<(u64, f64)>) -> Curve {
    let mut curve = by_step(values);
    curve.iter_mut().for_each(|(_, density)| *density *= 100.0);
    let is_corner = |at: usize| {
        let near = &curve[at.saturating_sub(1)..(at + 2).min(curve.len())];
        near.len() < 3 || near.iter().any(|point| point.1 != curve[at].1)
    };
    (0..curve.len()).filter(|&at| is_corner(at)).map(|at| curve[at]).collect()
}

/// Whether the values of a curve differ.
pub(super) fn is_changing(curve: &Curve) -> bool {
    curve.windows(2).any(|pair| pair[0].1 != pair[1].1)
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
    use crate::compare::fixture;
    use crate::config::ExchangeKind;

    /// A megabyte a second, and messages that take a second.
    fn slow(exchange: ExchangeKind, codec: &str) -> Entry {
        let mut entry = fixture::entry(codec, 0.1, &[0.5], 6_000_000);
        let config = &mut entry.config;
        (config.link_gbps, config.link_latency_us) = (Some(0.008), Some(1e6));
        config.exchange = exchange;
        entry
    }

    #[test]
    fn a_step_takes_computing_coding_latency_and_bytes_over_the_rate() {
        let seconds = |exchange: ExchangeKind, codec: &str| {
            let entry = slow(exchange, codec);
            let line = &entry.outcomes[0].metrics[0];
            StepOnLink::of(&entry, 1000).unwrap().seconds(line)
        };
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        // One second of computing; four workers send 1.5 MB each.
        near(seconds(ExchangeKind::AllGather, "topk"), 1.0 + 1.0 + 1.5);
        near(seconds(ExchangeKind::Sparse, "topk"), 1.0 + 2.0 + 1.5);
        near(seconds(ExchangeKind::Server, "topk"), 1.0 + 2.0 + 6.0);
        near(seconds(ExchangeKind::AllReduce, "none"), 1.0 + 6.0 + 1.5);
        near(seconds(ExchangeKind::Owners, "none"), 1.0 + 2.0 + 1.5);
        // Six messages of 1 MB, of which two up and two down wait for each other.
        near(seconds(ExchangeKind::Tree, "none"), 1.0 + 4.0 + 4.0);
    }

    #[test]
    fn there_is_a_figure_by_seconds_where_a_rate_is_stated() {
        let mut comparison = fixture::comparison(vec![slow(ExchangeKind::AllGather, "topk")]);
        comparison.entries[0].outcomes[0].metrics[0].accuracy = Some(0.5);
        let title = |comparison: &Comparison| quality_by_seconds(comparison).map(|figure| figure.title);
        let expected = "Validation accuracy against seconds on a link of 8.00 Mbit/s";
        assert_eq!(title(&comparison).as_deref(), Some(expected));
        comparison.config.link_gbps = None;
        assert_eq!(title(&comparison), None);
    }

    /// A row whose densities are these, one for each step.
    fn sending(codec: &str, densities: &[Option<f64>]) -> Entry {
        let mut entry = fixture::entry(codec, 0.1, &[0.5], 100);
        let metrics = &mut entry.outcomes[0].metrics;
        let line = |(step, &target_density)| Metrics { step, target_density, ..metrics[0].clone() };
        *metrics = (0..).zip(densities).map(line).collect();
        entry
    }

    #[test]
    fn there_is_a_figure_of_densities_where_one_of_them_changes() {
        let steady = sending("topk", &[Some(0.01); 4]);
        let falling = sending("dgc", &[Some(0.25), Some(0.25), Some(0.25), Some(0.001)]);
        let of = |entries: Vec<Entry>| density_by_step(&fixture::comparison(entries));
        assert!(of(vec![steady.clone(), sending("none", &[None; 4])]).is_none());
        let rows = vec![steady, falling, sending("none", &[None; 4]), sending("qsgd", &[None; 4])];
        let figure = of(rows).unwrap();
        assert_eq!(figure.title, "Density by step");
        let ends = "Last points: topk: 1 at 4; dgc: 0.1 at 4; none: 100 at 4";
        assert_eq!(figure.description, format!("share to be sent, % by step. {ends}"));
        assert_eq!(figure.svg.matches("stroke:var(--c").count(), 3, "{}", figure.svg);
    }

    #[test]
    fn a_curve_of_densities_has_its_corners() {
        let curve = density_curve((0..).zip([0.5, 0.5, 0.5, 0.1, 0.1, 0.1]).collect());
        assert_eq!(curve, [(1.0, 50.0), (3.0, 50.0), (4.0, 10.0), (6.0, 10.0)]);
        assert!(is_changing(&curve) && !is_changing(&curve[..2].to_vec()));
        assert_eq!(density_curve(vec![(0, 0.1)]), [(1.0, 10.0)]);
    }

    #[test]
    fn the_front_has_what_no_other_row_beats() {
        let points = [(100.0, 97.0), (4.0, 36.0), (10.0, 95.0), (20.0, 94.0), (10.0, 90.0), (200.0, 97.0)];
        assert_eq!(undominated(&points, false), [(4.0, 36.0), (10.0, 95.0), (100.0, 97.0)]);
        assert_eq!(undominated(&[(1.0, 9.0), (2.0, 5.0), (3.0, 6.0)], true), [(1.0, 9.0), (2.0, 5.0)]);
    }
}
