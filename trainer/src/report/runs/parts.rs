//! Where the time of a step goes, and whether the network is what holds a run up.

use super::value::{Grid, Value};
use crate::record::{LoggedRun, Metrics};
use crate::report::numbers::ratio_text;

/// Runs that have a sentence each, at most.
const MOST_SENTENCES: usize = 4;

/// Seconds of a step, means over all steps but the first, which connects and allocates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parts {
    /// Forward and backward pass; none if the log does not have it, as that of the hook.
    compute: Option<f64>,
    encode: f64,
    /// Sending, receiving and waiting.
    exchange: f64,
    decode: f64,
    /// Of the exchange: what the bytes of one worker take on its link, where its rate is known.
    sending: Option<f64>,
}

impl Parts {
    /// Of a run whose links have this rate in Gbit/s.
    pub(super) fn of(run: &LoggedRun, gbps: Option<f64>) -> Self {
        let later = &run.metrics[usize::from(run.metrics.len() > 1)..];
        let steps = later.len() as f64;
        let seconds = |of: fn(&Metrics) -> u64| later.iter().map(of).sum::<u64>() as f64 * 1e-9 / steps;
        let compute: Option<u64> = later.iter().map(|line| line.compute_ns).sum();
        let worker = |line: &Metrics| line.bytes_up as f64 / line.contributors.max(1) as f64;
        let bytes = later.iter().map(worker).sum::<f64>() / steps;
        Self {
            compute: compute.map(|ns| ns as f64 * 1e-9 / steps),
            encode: seconds(|line| line.encode_ns),
            exchange: seconds(|line| line.exchange_ns),
            decode: seconds(|line| line.decode_ns),
            sending: gbps.map(|gbps| 8e-9 * bytes / gbps),
        }
    }

    /// The whole step.
    fn step(&self) -> Option<f64> {
        Some(self.compute? + self.encode + self.exchange + self.decode)
    }

    /// How many times as fast a step would be if an exchange took no time. No better network does more.
    fn perfect(&self) -> Option<f64> {
        let step = self.step()?;
        Some(step / (step - self.exchange)).filter(|times| times.is_finite())
    }

    fn row(&self, name: &str) -> Vec<Value> {
        let part = |seconds: Option<f64>| match (seconds, self.step()) {
            (Some(part), Some(step)) if step > 0.0 => Value::share(part / step),
            (Some(part), _) => Value::seconds(part),
            (None, _) => Value::none(),
        };
        let waiting = self.sending.map(|sending| (self.exchange - sending).max(0.0));
        let link = self.sending.zip(self.step()).filter(|(_, step)| *step > 0.0);
        vec![
            Value::text(name),
            self.step().map_or(Value::none(), Value::seconds),
            part(self.compute),
            part(Some(self.encode)),
            part(Some(self.exchange)),
            part(waiting),
            part(Some(self.decode)),
            link.map_or(Value::none(), |(sending, step)| Value::share((sending / step).min(1.0))),
            self.perfect().map_or(Value::none(), |times| Value::number(times, ratio_text(times))),
            self.bottleneck().map_or(Value::none(), |(part, _)| Value::text(part)),
        ]
    }

    /// What takes most of a step, and how many seconds; none without the time of computing. Where the rate of
    /// the link is not known, sending and waiting cannot be told apart.
    fn bottleneck(&self) -> Option<(&'static str, f64)> {
        let (compute, coding) = (("computing", self.compute?), ("coding", self.encode + self.decode));
        let exchange = match self.sending {
            Some(sending) => {
                let sending = sending.min(self.exchange);
                [("the network", sending), ("waiting", self.exchange - sending)]
            }
            None => [("exchange", self.exchange), ("waiting", 0.0)],
        };
        [compute, coding]
            .into_iter()
            .chain(exchange)
            .reduce(|most, part| if part.1 > most.1 { part } else { most })
    }

    /// What holds the run up, in a sentence.
    fn verdict(&self, name: &str) -> Option<String> {
        let (step, (part, seconds)) = (self.step()?, self.bottleneck()?);
        let words = match part {
            "the network" => "the network is the bottleneck. Sending is",
            "waiting" => "waiting for other workers is the bottleneck. It is",
            "exchange" => {
                "exchange is the bottleneck: the network, or slower workers; --link-gbps tells them apart. It is"
            }
            "coding" => "encoding and decoding are the bottleneck. They are",
            _ => "computing is the bottleneck. It is",
        };
        let (share, perfect) = (100.0 * seconds / step, ratio_text(self.perfect()?));
        Some(format!(
            "{name}: {words} {share:.0} % of a step. If an exchange took no time, steps would be {perfect} as fast"
        ))
    }
}

/// The parts of a step of every run, and what they say.
pub(super) fn table(runs: &[LoggedRun], gbps: Option<f64>) -> (Grid, Vec<String>) {
    let head = [
        "run",
        "step",
        "compute",
        "encode",
        "exchange",
        "of it waiting",
        "decode",
        "link used",
        "perfect network",
        "bottleneck",
    ];
    let parts: Vec<Parts> = runs.iter().map(|run| Parts::of(run, gbps.or(run.link_gbps))).collect();
    let rows = runs.iter().zip(&parts).map(|(run, parts)| parts.row(&run.name)).collect();
    let verdicts = runs.iter().zip(&parts).filter_map(|(run, parts)| parts.verdict(&run.name));
    // More are read in the table.
    let verdicts = if runs.len() <= MOST_SENTENCES { verdicts.collect() } else { Vec::new() };
    (Grid::new("Where the time of a step goes", &head, rows), verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(compute: Option<f64>, [encode, exchange, decode]: [f64; 3], sending: Option<f64>) -> Parts {
        Parts { compute, encode, exchange, decode, sending }
    }

    #[test]
    fn shares_add_up_and_a_perfect_network_takes_the_exchange_away() {
        let slow = parts(Some(0.02), [0.01, 0.16, 0.01], Some(0.12));
        let cells: Vec<String> = slow.row("run").into_iter().map(|value| value.text).collect();
        let expected =
            ["run", "200 ms", "10 %", "5 %", "80 %", "20 %", "5 %", "60 %", "5.00x", "the network"];
        assert_eq!(cells, expected);
        let text = slow.verdict("run").unwrap();
        assert!(text.starts_with("run: the network is the bottleneck. Sending is 60 % of a step."), "{text}");
        assert!(text.ends_with("steps would be 5.00x as fast"), "{text}");
    }

    #[test]
    fn what_holds_a_run_up_is_named() {
        let text = |parts: Parts| parts.verdict("a").unwrap();
        assert!(
            text(parts(Some(0.9), [0.01, 0.05, 0.04], None))
                .contains("computing is the bottleneck. It is 90 %")
        );
        let coding = text(parts(Some(0.1), [0.5, 0.1, 0.3], None));
        assert!(coding.contains("encoding and decoding are the bottleneck. They are 80 %"), "{coding}");
        let waiting = text(parts(Some(0.1), [0.0, 0.9, 0.0], Some(0.2)));
        assert!(waiting.contains("waiting for other workers is the bottleneck. It is 70 %"), "{waiting}");
        let unknown = text(parts(Some(0.1), [0.0, 0.9, 0.0], None));
        assert!(unknown.contains("--link-gbps tells them apart. It is 90 %"), "{unknown}");
        assert_eq!(
            parts(None, [0.1; 3], None).verdict("a"),
            None,
            "the hook does not know when others compute"
        );
        assert_eq!(parts(Some(0.0), [0.0, 0.1, 0.0], None).verdict("a"), None, "nothing but exchange");
    }

    #[test]
    fn without_the_time_of_computing_parts_are_times_and_without_a_rate_nothing_is_said_of_the_link() {
        let cells: Vec<String> =
            parts(None, [0.001, 0.02, 0.003], None).row("hook").into_iter().map(|value| value.text).collect();
        assert_eq!(cells, ["hook", "-", "-", "1.00 ms", "20.0 ms", "-", "3.00 ms", "-", "-", "-"]);
    }

    #[test]
    fn a_link_is_never_used_more_than_all_the_time() {
        let over = parts(Some(0.01), [0.0, 0.01, 0.0], Some(0.03));
        let cells: Vec<String> = over.row("run").into_iter().map(|value| value.text).collect();
        assert_eq!((cells[5].as_str(), cells[7].as_str()), ("0 %", "100 %"));
    }
}
