//! What a quality costs: steps, bytes and seconds until a run has it.

use super::value::{Grid, Value};
use crate::record::{LoggedRun, Metrics};

/// The price of a quality at every run: per cent of accuracy, or for text a perplexity.
pub(super) fn table(runs: &[LoggedRun], target: f64) -> Grid {
    let is_text = runs.iter().any(|run| run.perplexity().is_some());
    let name = if is_text { format!("perplexity {target}") } else { format!("{target} % accuracy") };
    let row = |run: &LoggedRun| {
        let paid = price(&run.metrics, target);
        let [steps, bytes, seconds] = paid.map_or([Value::none(), Value::none(), Value::none()], |paid| {
            [Value::count(paid.steps), Value::bytes(paid.bytes), Value::seconds(paid.seconds)]
        });
        vec![Value::text(&run.name), steps, bytes, seconds]
    };
    let title = format!("Until {name} on the validation part (- : not reached); seconds without evaluations");
    Grid::new(&title, &["run", "steps", "bytes up", "time"], runs.iter().map(row).collect())
}

struct Price {
    steps: u64,
    /// Of all workers.
    bytes: f64,
    seconds: f64,
}

/// Up to the first evaluation that is as good.
fn price(metrics: &[Metrics], target: f64) -> Option<Price> {
    let is_there = |line: &Metrics| match (line.perplexity, line.accuracy) {
        (Some(perplexity), _) => perplexity <= target,
        (None, Some(accuracy)) => 100.0 * accuracy >= target,
        (None, None) => false,
    };
    let paid = &metrics[..=metrics.iter().position(is_there)?];
    let ns =
        |line: &Metrics| line.compute_ns.unwrap_or(0) + line.encode_ns + line.exchange_ns + line.decode_ns;
    Some(Price {
        steps: paid.last()?.step + 1,
        bytes: paid.iter().map(|line| line.bytes_up as f64).sum(),
        seconds: paid.iter().map(|line| ns(line) as f64 * 1e-9).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::fixture;

    /// Steps of a second and ten bytes each, every other one with an evaluation.
    fn run(qualities: &[f64], is_text: bool) -> Vec<Metrics> {
        let sample = fixture::entry("topk", 0.1, &[0.5], 10).outcomes[0].metrics[0].clone();
        let line = |(step, quality): (u64, Option<f64>)| Metrics {
            step,
            compute_ns: Some(400_000_000),
            encode_ns: 100_000_000,
            exchange_ns: 300_000_000,
            decode_ns: 200_000_000,
            accuracy: quality.filter(|_| !is_text),
            perplexity: quality.filter(|_| is_text),
            ..sample.clone()
        };
        let evaluated = qualities.iter().flat_map(|&quality| [None, Some(quality)]);
        (0..).zip(evaluated).map(line).collect()
    }

    #[test]
    fn a_price_is_paid_up_to_the_first_evaluation_that_is_as_good() {
        let paid = price(&run(&[0.5, 0.91, 0.8, 0.95], false), 90.0).unwrap();
        assert_eq!((paid.steps, paid.bytes), (4, 40.0));
        assert!((paid.seconds - 4.0).abs() < 1e-9);
        assert_eq!(price(&run(&[300.0, 200.0, 150.0], true), 200.0).unwrap().steps, 4);
        assert!(price(&run(&[0.5, 0.9], false), 91.0).is_none());
        assert!(price(&run(&[300.0], true), 200.0).is_none());
    }
}
