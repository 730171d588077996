//! Recorded steps, one after the other, on another cluster.

use gradwire_transports::cost::union_growth;
use serde::Serialize;

use super::cluster::Cluster;
use super::exchange::{Load, Route, Sums};
use super::traffic::Traffic;

/// One step as a run recorded it, for one worker; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RecordedStep {
    /// Forward and backward pass.
    pub(crate) compute_s: f64,
    /// From the gradient to what is sent.
    pub(crate) encode_s: f64,
    /// From one frame, or all sums, to the mean.
    pub(crate) decode_s: f64,
    /// Bytes of the frame, or of what is summed.
    pub(crate) bytes: f64,
}

/// The steps of a run, and what they sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    /// At least one.
    pub(crate) steps: Vec<RecordedStep>,
    /// Coordinates of the gradient.
    pub(crate) params: usize,
    /// The share of them in a frame, for [`Route::Sparse`]; 1 if frames are not sparse.
    pub(crate) density: f64,
    /// Sums of a step that follow one another. The bytes count once: what each further one adds is the time
    /// of messages without any.
    pub(crate) rounds: u32,
}

impl Recorded {
    /// What `workers` sum of frames of so many bytes, if each has other coordinates: more than a frame, but
    /// in no more bytes than the dense gradient.
    fn sums(&self, workers: usize, bytes: f64) -> Sums {
        let entries = union_growth(self.params, self.density, workers);
        Sums { bytes: entries.min(4.0 * self.params as f64 / bytes.max(1.0)), entries }
    }
}

/// The times of a run. The names are those of the JSON; times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Outcome {
    pub(crate) workers: usize,
    pub(crate) exchange: Route,
    pub(crate) steps: usize,
    /// From the end of a step at the last worker to the end of the next: mean, median, and what one in
    /// twenty exceeds.
    pub(crate) step_ms: f64,
    pub(crate) median_ms: f64,
    pub(crate) p95_ms: f64,
    /// Of the mean: computing and encoding of a worker, and the exchange, in which it sends, waits and
    /// decodes; means over the workers.
    pub(crate) busy_ms: f64,
    pub(crate) exchange_ms: f64,
}

/// Replays `recorded`, over and over until `steps` are done. Each worker begins a step when its last one is
/// done; in step s, worker i computes as long as the run did in step s + 7919·i, so that workers vary as
/// steps do. The same arguments give the same outcome.
pub(crate) fn replay(
    cluster: &Cluster,
    exchange: Route,
    recorded: &Recorded,
    steps: usize,
    seed: u64,
) -> Outcome {
    let (workers, slowness) = (cluster.workers, cluster.slowness());
    let mut traffic = Traffic::new(cluster, seed);
    let mut now = vec![0.0; workers];
    let (mut ends, mut busy) = (vec![0.0], 0.0);
    let done = &recorded.steps;
    for step in 0..steps {
        let sent = done[step % done.len()];
        let mut begin: Vec<f64> = (0..workers)
            .map(|worker| {
                let own = done[(step + STRIDE * worker) % done.len()];
                let work = slowness[worker] * (own.compute_s + sent.encode_s);
                busy += work;
                now[worker] + work
            })
            .collect();
        let sums = recorded.sums(workers, sent.bytes);
        let load = Load { bytes: sent.bytes, take_in_s: sent.decode_s, sums };
        for _ in 1..recorded.rounds {
            begin =
                exchange.run(&mut traffic, Load { bytes: 0.0, take_in_s: 0.0, ..load }, &slowness, &begin);
        }
        now = exchange.run(&mut traffic, load, &slowness, &begin);
        ends.push(now.iter().copied().fold(0.0, f64::max));
    }
    summary(cluster, exchange, &ends, busy)
}

/// A prime: workers do not repeat one another within a run of fewer steps.
const STRIDE: usize = 7919;

fn summary(cluster: &Cluster, exchange: Route, ends: &[f64], busy_s: f64) -> Outcome {
    let steps = ends.len() - 1;
    let mut times: Vec<f64> = ends.windows(2).map(|pair| 1e3 * (pair[1] - pair[0])).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((share * steps as f64) as usize).min(steps - 1)];
    let mean = 1e3 * ends[steps] / steps as f64;
    let busy_ms = 1e3 * busy_s / (steps * cluster.workers) as f64;
    Outcome {
        workers: cluster.workers,
        exchange,
        steps,
        step_ms: mean,
        median_ms: at(0.5),
        p95_ms: at(0.95),
        busy_ms,
        exchange_ms: mean - busy_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: RecordedStep = RecordedStep { compute_s: 0.1, encode_s: 0.01, decode_s: 0.0, bytes: 1000.0 };

    fn one(steps: &[RecordedStep]) -> Recorded {
        Recorded { steps: steps.to_vec(), params: 100_000, density: 0.01, rounds: 1 }
    }

    fn cluster(text: &str) -> Cluster {
        toml::from_str::<Cluster>(text).unwrap().checked().unwrap()
    }

    #[test]
    fn equal_workers_take_what_each_takes() {
        // 100 ms + 10 ms + 3 · 1 ms + 1 ms of latency.
        let four = cluster("workers = 4\ngbps = 0.008\nlatency_us = 1000");
        let outcome = replay(&four, Route::AllGather, &one(&[STEP]), 10, 0);
        assert!(
            (outcome.step_ms - 114.0).abs() < 1e-6 && (outcome.median_ms - 114.0).abs() < 1e-6,
            "{outcome:?}"
        );
        assert!(
            (outcome.busy_ms - 110.0).abs() < 1e-6 && (outcome.exchange_ms - 4.0).abs() < 1e-6,
            "{outcome:?}"
        );
    }

    /// 110 ms and 2 · 3/4 · 1 ms, and three times 2 ms of latency by owners, or 6 ms around a ring.
    #[test]
    fn each_round_of_sums_waits_for_the_one_before() {
        let four = cluster("workers = 4\ngbps = 0.008\nlatency_us = 1000");
        let three = Recorded { rounds: 3, ..one(&[STEP]) };
        for (exchange, step_ms) in [(Route::Owners, 117.5), (Route::Ring, 129.5)] {
            let outcome = replay(&four, exchange, &three, 10, 0);
            assert!((outcome.step_ms - step_ms).abs() < 1e-6, "{outcome:?}");
        }
    }

    /// 1,000 of 100,000 coordinates in 1,000 bytes: of 100 workers, 63,397 in the union of random ones.
    #[test]
    fn sums_of_sparse_frames_grow_with_the_workers_up_to_the_dense_gradient() {
        let growth = 100.0 * (1.0 - 0.99_f64.powi(100));
        let many = cluster("workers = 100\ngbps = 0.008\nlatency_us = 0");
        let outcome = replay(&many, Route::Sparse, &one(&[STEP]), 3, 0);
        let moving = 0.99 * (1.0 + growth);
        assert!((outcome.exchange_ms - moving).abs() < 1e-6, "{outcome:?} is not {moving}");
        let long = RecordedStep { bytes: 300_000.0, ..STEP };
        let outcome = replay(&many, Route::Sparse, &one(&[long]), 3, 0);
        assert!((outcome.exchange_ms - 0.99 * 700.0).abs() < 1e-6, "{outcome:?}: 300 KB and 400 KB");
    }

    #[test]
    fn a_straggler_makes_all_wait() {
        let slow = cluster("workers = 4\ngbps = 1\n[[slow]]\nranks = [2]\ncompute = 3");
        let outcome = replay(&slow, Route::Ring, &one(&[STEP]), 5, 0);
        assert!(outcome.step_ms > 330.0 && outcome.step_ms < 331.0, "{outcome:?}");
        // Three workers are busy for a third of the time.
        assert!((outcome.busy_ms - 165.0).abs() < 1e-6, "{outcome:?}");
    }

    #[test]
    fn workers_vary_as_steps_do() {
        let steps: Vec<RecordedStep> = (0..50)
            .map(|step| RecordedStep { compute_s: 0.1 + 0.01 * f64::from(step % 10), ..STEP })
            .collect();
        let wide = cluster("workers = 64\ngbps = 100");
        let steps = one(&steps);
        let outcome = replay(&wide, Route::AllGather, &steps, 20, 0);
        // Among 64 workers one nearly always has the longest of ten times.
        assert!(outcome.median_ms > 195.0 && outcome.busy_ms < 160.0, "{outcome:?}");
        assert_eq!(replay(&wide, Route::AllGather, &steps, 20, 0), outcome);
    }

    #[test]
    fn loss_makes_steps_longer_now_and_then() {
        let lossy = cluster("workers = 2\ngbps = 1\nloss = 0.05\nretry_ms = 500");
        let outcome = replay(&lossy, Route::AllGather, &one(&[STEP]), 400, 1);
        assert!(outcome.median_ms < 115.0 && outcome.p95_ms > 600.0, "{outcome:?}");
    }
}
