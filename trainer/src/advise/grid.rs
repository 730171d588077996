//! Which codec is fastest where.

use gradwire_transports::cost::Link;
use serde::Serialize;

use super::costs::Costs;
use super::predict::{Overlap, Route, Setup, Step, compressed, dense, dense_bf16};
use crate::codec_cli::Cost;
use crate::config::OptimizerKind;

/// What is asked: every number of workers on every link.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// Numbers of workers.
    pub(crate) workers: Vec<usize>,
    /// Bandwidths of a worker's link, in Gbit/s.
    pub(crate) gbps: Vec<f64>,
    /// One-way latency of the links.
    pub(crate) latency_s: f64,
    /// Bytes that a link passes at once after a pause.
    pub(crate) burst_bytes: f64,
    /// Seconds of a step without an exchange.
    pub(crate) compute_s: f64,
    /// How much of an exchange runs beside the backward pass.
    pub(crate) overlap: Overlap,
    /// A codec that does not shorten a step by this share is not worth the trouble.
    pub(crate) least_gain: f64,
    /// A codec whose decoded gradient has a smaller cosine with the gradient is not taken.
    pub(crate) least_cosine: Option<f64>,
    /// Rate in Gbit/s of copies between a GPU and the codec, if gradients are on one.
    pub(crate) copy_gbps: Option<f64>,
    /// What makes a step of the mean.
    pub(crate) optimizer: OptimizerKind,
}

impl Question {
    fn setup(&self, workers: usize, gbps: f64) -> Setup {
        let link = Link { burst_bytes: self.burst_bytes, ..Link::from_gbps(gbps, self.latency_s) };
        Setup { workers, link, compute_s: self.compute_s, overlap: self.overlap, copy_gbps: self.copy_gbps }
    }
}

/// The answer for every number of workers on every link.
#[derive(Clone, Debug)]
pub(crate) struct Advice {
    /// By workers, then by bandwidth, both in the order in which they were asked for.
    pub(crate) cells: Vec<Cell>,
}

/// One number of workers on one link. The names are those of the JSON; times in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) workers: usize,
    pub(crate) gbps: f64,
    pub(crate) latency_us: f64,
    pub(crate) burst_bytes: f64,
    /// What to take: the codec of one of the rows below, `none` or `none, wire=bf16` if none pays.
    #[serde(rename = "choice")]
    pub(crate) codec: String,
    /// By which exchange.
    pub(crate) exchange: Route,
    /// The same, for this program.
    #[serde(skip)]
    pub(crate) choice: Choice,
    /// Time of a dense step over that of a step with the choice.
    pub(crate) speed_up: f64,
    pub(crate) dense: Row,
    pub(crate) bf16: Row,
    /// Codecs in the order in which they were given.
    pub(crate) codecs: Vec<Row>,
    /// What disturbed the measurement of the costs, so that the choice may be wrong.
    pub(crate) disturbed: Option<String>,
}

/// What to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Dense f32: do not compress.
    Dense,
    /// Dense training with two bytes an element on the way.
    Bf16,
    /// The codec of this number.
    Codec(usize),
}

/// A step with one codec.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) codec: String,
    pub(crate) exchange: Route,
    pub(crate) step_ms: f64,
    pub(crate) coding_ms: f64,
    pub(crate) moving_ms: f64,
    /// What each worker sends in a step.
    pub(crate) bytes: f64,
    /// Slower links than this gain from the codec, against dense f32; 0 if none does.
    pub(crate) break_even_gbps: f64,
    /// Of the angle between a gradient and what is decoded of it, without error feedback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cosine: Option<f64>,
}

impl Row {
    /// Whether it is as near to the gradient as is wanted. What is not known is not near.
    fn is_near(&self, least_cosine: Option<f64>) -> bool {
        least_cosine.is_none_or(|least| self.cosine.is_some_and(|cosine| cosine >= least))
    }
}

impl Advice {
    /// Works out every cell.
    pub(crate) fn of(costs: &Costs, question: &Question) -> Self {
        let cells = question
            .workers
            .iter()
            .flat_map(|&workers| question.gbps.iter().map(move |&gbps| cell(costs, question, workers, gbps)))
            .collect();
        Self { cells }
    }
}

fn cell(costs: &Costs, question: &Question, workers: usize, gbps: f64) -> Cell {
    let setup = question.setup(workers, gbps);
    let row = |codec: &str, cosine: Option<f64>, of: &dyn Fn(&Setup) -> Step| {
        let Step { exchange, coding_s, moving_s, bytes, total_s } = of(&setup);
        Row {
            codec: codec.to_owned(),
            exchange,
            step_ms: 1e3 * total_s,
            coding_ms: 1e3 * coding_s,
            moving_ms: 1e3 * moving_s,
            bytes,
            break_even_gbps: break_even(costs, question, workers, of),
            cosine,
        }
    };
    let codec_row = |cost: &Cost| row(&cost.codec, cost.cosine, &|setup| compressed(cost, costs, setup));
    let dense = row("none", costs.dense.cosine, &|setup| dense(costs, setup));
    let bf16 = row("none, wire=bf16", costs.bf16.cosine, &|setup| dense_bf16(costs, setup));
    let codecs: Vec<Row> = costs.codecs.iter().map(codec_row).collect();
    let choice = choose(&dense, &bf16, &codecs, question);
    let chosen = match choice {
        Choice::Dense => &dense,
        Choice::Bf16 => &bf16,
        Choice::Codec(number) => &codecs[number],
    };
    let speed_up = dense.step_ms / chosen.step_ms;
    let (latency_us, burst_bytes) = (1e6 * question.latency_s, question.burst_bytes);
    let (codec, exchange) = (chosen.codec.clone(), chosen.exchange);
    let disturbed = costs.disturbance();
    Cell {
        workers,
        gbps,
        latency_us,
        burst_bytes,
        codec,
        exchange,
        choice,
        speed_up,
        dense,
        bf16,
        codecs,
        disturbed,
    }
}

/// The fastest codec of those that are near enough to the gradient, if it is faster than dense f32 and bf16
/// by the least gain. Otherwise bf16, if it is faster than f32 by the same gain.
fn choose(dense: &Row, bf16: &Row, codecs: &[Row], question: &Question) -> Choice {
    let is_worth_it = |step_ms: f64, before_ms: f64| step_ms < (1.0 - question.least_gain) * before_ms;
    let near = (0..codecs.len()).filter(|&number| codecs[number].is_near(question.least_cosine));
    let fastest = near.min_by(|&a, &b| codecs[a].step_ms.total_cmp(&codecs[b].step_ms));
    match fastest {
        Some(number) if is_worth_it(codecs[number].step_ms, dense.step_ms.min(bf16.step_ms)) => {
            Choice::Codec(number)
        }
        _ if is_worth_it(bf16.step_ms, dense.step_ms) => Choice::Bf16,
        _ => Choice::Dense,
    }
}

/// Bandwidths among which the break-even is sought, in Gbit/s: powers of 10^(1/32) from 10^−4 on.
const LOWEST_GBPS: f64 = 1e-4;
const PER_DECADE: i32 = 32;
const DECADES: i32 = 8;

/// The highest bandwidth at which a step is as short as a dense one. Bisects between the highest point at
/// which it is shorter, and the next point above. 0 if there is no such point, infinite if the step is
/// shorter at the last point.
fn break_even(costs: &Costs, question: &Question, workers: usize, of: &dyn Fn(&Setup) -> Step) -> f64 {
    let is_shorter = |gbps: f64| {
        let setup = question.setup(workers, gbps);
        of(&setup).total_s < dense(costs, &setup).total_s
    };
    let point = |number: i32| LOWEST_GBPS * 10_f64.powf(f64::from(number) / f64::from(PER_DECADE));
    let last = PER_DECADE * DECADES;
    let Some(first) = (0..=last).rev().find(|&number| is_shorter(point(number))) else { return 0.0 };
    if first == last {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (point(first), point(first + 1));
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if is_shorter(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::conditions::Conditions;
    use crate::codec_cli::CostKind;

    fn cost(codec: &str, kind: CostKind, bytes: usize, coding_s: f64) -> Cost {
        let codec = codec.to_owned();
        let (encode_s, decode_s) = (coding_s, coding_s);
        Cost { codec, kind, bytes, encode_s, decode_s, memcpy_s: 1e-3, nmse: None, cosine: None }
    }

    fn costs() -> Costs {
        Costs {
            coordinates: 10_000_000,
            side_by_side: 1,
            add_s: 0.0,
            dense: cost("none", CostKind::Dense, 40_000_000, 5e-3),
            bf16: cost("bf16", CostKind::Frames, 20_000_000, 5e-3),
            codecs: vec![
                cost("small", CostKind::Frames, 10_000, 50e-3),
                cost("quick", CostKind::Rounds(1), 1_000_000, 1e-3),
            ],
            failed: Vec::new(),
            conditions: None,
            measured_coordinates: None,
        }
    }

    fn question() -> Question {
        Question {
            workers: vec![2, 8],
            gbps: vec![0.001, 1.0, 1000.0],
            latency_s: 0.0,
            burst_bytes: 0.0,
            compute_s: 0.1,
            overlap: Overlap { buckets: 1, slowdown: 1.0 },
            least_gain: 0.05,
            least_cosine: None,
            copy_gbps: None,
            optimizer: OptimizerKind::Sgd,
        }
    }

    #[test]
    fn slow_links_take_the_smallest_frames_and_fast_links_none() {
        let choices = |least_gain| -> Vec<Choice> {
            let advice = Advice::of(&costs(), &Question { least_gain, ..question() });
            advice.cells.iter().map(|cell| cell.choice).collect()
        };
        let (small, quick, dense) = (Choice::Codec(0), Choice::Codec(1), Choice::Dense);
        assert_eq!(choices(0.05), [small, quick, dense, small, quick, dense]);
        // 2·7/8·40 MB at 1 Gbit/s are 560 ms; nothing is twenty times as fast as the step with them.
        assert_eq!(choices(0.95)[4], dense);
    }

    #[test]
    fn programs_read_in_each_line_what_disturbed_the_measurement() {
        let of = |copy_most_s| {
            let conditions =
                Some(Conditions { load: None, ..Conditions::now(1) }.with_copies(vec![1e-4, copy_most_s]));
            let advice = Advice::of(&Costs { conditions, ..costs() }, &question());
            let lines = advice.cells.iter().map(|cell| serde_json::to_value(cell).unwrap());
            lines.map(|line| line["disturbed"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(1.1e-4), [(); 6].map(|()| serde_json::Value::Null));
        assert!(of(9e-4).iter().all(|what| what.as_str().is_some_and(|what| what.contains("0.900 ms"))));
    }

    #[test]
    fn a_codec_that_is_too_far_from_the_gradient_is_not_taken() {
        let mut costs = costs();
        (costs.codecs[0].cosine, costs.codecs[1].cosine) = (Some(0.5), Some(0.9));
        let choices = |least_cosine| -> Vec<Choice> {
            let advice = Advice::of(&costs, &Question { least_cosine, ..question() });
            advice.cells.iter().take(3).map(|cell| cell.choice).collect()
        };
        let (small, quick, dense) = (Choice::Codec(0), Choice::Codec(1), Choice::Dense);
        assert_eq!(choices(Some(0.5)), [small, quick, dense]);
        assert_eq!(choices(Some(0.51)), [quick, quick, dense]);
        assert!(!choices(Some(0.95)).iter().any(|choice| matches!(choice, Choice::Codec(_))));
        costs.codecs[0].cosine = None;
        let advice = Advice::of(&costs, &Question { least_cosine: Some(0.1), ..question() });
        assert_eq!(advice.cells[0].choice, quick, "of a file of an earlier version nothing is known");
    }

    #[test]
    fn elements_of_bf16_are_taken_where_no_codec_is_faster() {
        let advice = Advice::of(&Costs { codecs: Vec::new(), ..costs() }, &question());
        let cell = &advice.cells[4];
        assert_eq!(cell.choice, Choice::Bf16);
        assert!(
            (cell.speed_up - cell.dense.step_ms / cell.bf16.step_ms).abs() < 1e-12 && cell.speed_up > 1.5
        );
    }

    #[test]
    fn the_break_even_is_where_both_take_as_long() {
        let (costs, question) = (costs(), question());
        let advice = Advice::of(&costs, &question);
        // Rounds: 8 · 2·7/8 · 39 MB over 2 ms; frames: 8 · (70 MB − 70 kB) over 450 ms.
        let found: Vec<f64> = advice.cells[3].codecs.iter().map(|row| row.break_even_gbps).collect();
        for (found, expected) in found.iter().zip([8.0 * 69.93e6 / 0.45 / 1e9, 8.0 * 68.25e6 / 2e-3 / 1e9]) {
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
        }
        let dense = &advice.cells[0].dense;
        assert_eq!(dense.break_even_gbps, 0.0, "dense is never shorter than itself");
    }

    #[test]
    fn cells_are_in_the_order_of_the_question() {
        let advice = Advice::of(&costs(), &question());
        let places: Vec<(usize, f64)> = advice.cells.iter().map(|cell| (cell.workers, cell.gbps)).collect();
        assert_eq!(places, [(2, 0.001), (2, 1.0), (2, 1000.0), (8, 0.001), (8, 1.0), (8, 1000.0)]);
    }
}
