//! The messages of an exchange, round by round: what a worker sends depends on what it has received.

use serde::Serialize;

use super::traffic::Traffic;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Exchange {
    /// Every frame goes to every worker.
    AllGather,
    /// Sums around a ring.
    Ring,
    /// Sums up a binomial tree, and down again.
    Tree,
}

/// What a worker has to do with one exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Bytes of a frame, or of what is summed.
    pub(super) bytes: f64,
    /// Seconds in which a frame is decoded, or in which everything that is summed is added.
    pub(super) take_in_s: f64,
}

impl Exchange {
    /// When each worker is done, given when each begins. Work takes `slowness` times as long.
    pub(super) fn run(self, traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
        match self {
            Self::AllGather => all_gather(traffic, load, slowness, begin),
            Self::Ring => ring(traffic, load, slowness, begin),
            Self::Tree => tree(traffic, load, slowness, begin),
        }
    }
}

/// In round d, worker i sends to worker i + d, so that all links are busy all the time.
fn all_gather(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len();
    let take_in = |at: usize| load.take_in_s * slowness[at];
    // A worker does not send its own frame to itself.
    let mut done: Vec<f64> = (0..n).map(|i| begin[i] + take_in(i)).collect();
    for distance in 1..n {
        for from in 0..n {
            let to = (from + distance) % n;
            let arrival = traffic.send(from, to, load.bytes, begin[from]);
            done[to] = done[to].max(arrival) + take_in(to);
        }
    }
    done
}

/// 2(N−1) rounds of one N-th each: sums in the first half, copies in the second.
fn ring(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len();
    let part = load.bytes / n as f64;
    let mut have = begin.to_vec();
    let mut next = vec![0.0; n];
    for round in 0..2 * (n - 1) {
        let adds = round < n - 1;
        for from in 0..n {
            let to = (from + 1) % n;
            let arrival = traffic.send(from, to, part, have[from]);
            let work = if adds { load.take_in_s / n as f64 * slowness[to] } else { 0.0 };
            next[to] = arrival.max(have[to]) + work;
        }
        std::mem::swap(&mut have, &mut next);
    }
    have
}

/// Worker i sends to i − 2^b, where b is its lowest bit that is set; sums then go back the same way.
fn tree(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len();
    let mut have = begin.to_vec();
    let strides: Vec<usize> =
        std::iter::successors(Some(1), |stride| Some(2 * stride)).take_while(|&s| s < n).collect();
    for &stride in &strides {
        for child in (stride..n).step_by(2 * stride) {
            let parent = child - stride;
            let arrival = traffic.send(child, parent, load.bytes, have[child]);
            have[parent] = arrival.max(have[parent]) + load.take_in_s * slowness[parent];
        }
    }
    for &stride in strides.iter().rev() {
        for child in (stride..n).step_by(2 * stride) {
            have[child] = traffic.send(child - stride, child, load.bytes, have[child - stride]);
        }
    }
    have
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Cluster;
    use gradwire_transports::cost::Link;

    /// `workers` at 1 MB/s with a latency of 1 ms.
    fn cluster(workers: usize) -> Cluster {
        toml::from_str(&format!("workers = {workers}\ngbps = 0.008\nlatency_us = 1000")).unwrap()
    }

    fn ends(exchange: Exchange, workers: usize, load: Load, begin: &[f64]) -> Vec<f64> {
        exchange.run(&mut Traffic::new(&cluster(workers), 0), load, &vec![1.0; workers], begin)
    }

    fn assert_all_close(actual: &[f64], expected: f64) {
        assert!(
            actual.iter().all(|actual| (actual / expected - 1.0).abs() < 1e-9),
            "{actual:?} is not {expected}"
        );
    }

    /// On links that are alike, simulation and formula are the same.
    #[test]
    fn exchanges_of_equal_workers_take_what_the_cost_model_says() {
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e6 };
        let load = Load { bytes: 10_000.0, take_in_s: 0.0 };
        for workers in [2, 3, 4, 7, 16] {
            let begin = vec![0.0; workers];
            assert_all_close(
                &ends(Exchange::Ring, workers, load, &begin),
                link.ring_all_reduce_s(workers, 10_000.0),
            );
            let formula = link.all_gather_s(workers, 10_000.0);
            assert_all_close(&ends(Exchange::AllGather, workers, load, &begin), formula);
        }
        for workers in [2, 4, 16] {
            let end = ends(Exchange::Tree, workers, load, &vec![0.0; workers]);
            let last = end.iter().copied().fold(0.0, f64::max);
            // The last leaf waits until the root has sent to all its branches.
            assert!(last >= link.tree_all_reduce_s(workers, 10_000.0) * (1.0 - 1e-9), "{last}");
        }
    }

    #[test]
    fn everybody_waits_for_the_last_one() {
        let load = Load { bytes: 10_000.0, take_in_s: 1e-3 };
        for exchange in [Exchange::AllGather, Exchange::Ring, Exchange::Tree] {
            let all = ends(exchange, 4, load, &[0.0; 4]);
            let late = ends(exchange, 4, load, &[0.0, 0.0, 5.0, 0.0]);
            assert!(
                late.iter().zip(&all).all(|(late, all)| *late >= 5.0 && late >= all),
                "{exchange:?}: {late:?}"
            );
        }
    }

    #[test]
    fn one_worker_sends_nothing() {
        let load = Load { bytes: 1e9, take_in_s: 0.5 };
        assert_eq!(ends(Exchange::Ring, 1, load, &[2.0]), [2.0]);
        assert_eq!(ends(Exchange::Tree, 1, load, &[2.0]), [2.0]);
        assert_eq!(ends(Exchange::AllGather, 1, load, &[2.0]), [2.5], "its own frame is decoded");
    }
}
