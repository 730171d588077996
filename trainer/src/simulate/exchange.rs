//! The messages of an exchange, round by round: what a worker sends depends on what it has received.

use serde::Serialize;

use super::traffic::{Traffic, later};

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Route {
    /// Every frame goes to every worker.
    AllGather,
    /// Sums around a ring.
    Ring,
    /// Sums up a binomial tree, and down again.
    Tree,
    /// Each part of what is summed goes to its owner, which sums; the sums go to all.
    Owners,
    /// Every entry of a sparse frame goes to the owner of its coordinate, which sums; the sums go to all.
    Sparse,
}

/// What a worker has to do with one exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Bytes of a frame, or of what is summed.
    pub(super) bytes: f64,
    /// Seconds in which a frame is decoded, or in which everything that is summed is added.
    pub(super) take_in_s: f64,
    /// Sums of sparse frames: how many times longer than a frame they are, and take to decode.
    pub(super) sums: Sums,
}

/// The sums of all workers' sparse frames over a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sums {
    pub(super) bytes: f64,
    pub(super) entries: f64,
}

impl Route {
    /// When each worker is done, given when each begins. Work takes `slowness` times as long.
    pub(super) fn run(self, traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
        match self {
            Self::AllGather => all_gather(traffic, load, slowness, begin),
            Self::Ring => ring(traffic, load, slowness, begin),
            Self::Tree => tree(traffic, load, slowness, begin),
            Self::Owners => owners(traffic, load, slowness, begin),
            Self::Sparse => sparse(traffic, load, slowness, begin),
        }
    }
}

fn all_gather(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    to_all(traffic, (load.bytes, load.take_in_s), slowness, begin)
}

/// One N-th of each frame to each owner, and then the owners' sums to all.
fn sparse(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len() as f64;
    let (bytes, take_in_s) = (load.bytes / n, load.take_in_s / n);
    let summed = to_all(traffic, (bytes, take_in_s), slowness, begin);
    to_all(traffic, (bytes * load.sums.bytes, take_in_s * load.sums.entries), slowness, &summed)
}

/// One N-th of each payload to each owner, and then the owners' sums to all, which only copy them. Its own
/// part counts as one that an owner adds.
fn owners(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    sparse(traffic, Load { sums: Sums { bytes: 1.0, entries: 0.0 }, ..load }, slowness, begin)
}

/// Something of so many bytes from every worker to every other, which works on it for so many seconds. In
/// round d, worker i sends to worker i + d, so that all links are busy all the time.
fn to_all(
    traffic: &mut Traffic,
    (bytes, take_in_s): (f64, f64),
    slowness: &[f64],
    begin: &[f64],
) -> Vec<f64> {
    traffic.set_bytes(bytes);
    let take_in: Vec<f64> = slowness.iter().map(|times| take_in_s * times).collect();
    // A worker sends nothing to itself.
    let mut done: Vec<f64> = begin.iter().zip(&take_in).map(|(begin, work)| begin + work).collect();
    let mut arrivals = vec![0.0; begin.len()];
    for distance in 1..begin.len() {
        traffic.send_round(distance, begin, &mut arrivals);
        work_on(&arrivals, &take_in, &mut done);
    }
    done
}

/// 2(N−1) rounds of one N-th each: sums in the first half, copies in the second.
fn ring(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len();
    traffic.set_bytes(load.bytes / n as f64);
    let add: Vec<f64> = slowness.iter().map(|times| load.take_in_s / n as f64 * times).collect();
    let mut have = begin.to_vec();
    let mut arrivals = vec![0.0; n];
    for work in [add, vec![0.0; n]] {
        for _ in 1..n {
            traffic.send_round(1, &have, &mut arrivals);
            work_on(&arrivals, &work, &mut have);
        }
    }
    have
}

/// Every worker works on what arrived, once it is done with what came before.
fn work_on(arrivals: &[f64], work: &[f64], done: &mut [f64]) {
    for ((done, arrival), work) in done.iter_mut().zip(arrivals).zip(work) {
        *done = later(*arrival, *done) + work;
    }
}

/// Worker i sends to i − 2^b, where b is its lowest bit that is set; sums then go back the same way.
fn tree(traffic: &mut Traffic, load: Load, slowness: &[f64], begin: &[f64]) -> Vec<f64> {
    let n = begin.len();
    traffic.set_bytes(load.bytes);
    let mut have = begin.to_vec();
    let strides: Vec<usize> =
        std::iter::successors(Some(1), |stride| Some(2 * stride)).take_while(|&s| s < n).collect();
    for &stride in &strides {
        for child in (stride..n).step_by(2 * stride) {
            let parent = child - stride;
            let arrival = traffic.send(child, parent, have[child]);
            have[parent] = arrival.max(have[parent]) + load.take_in_s * slowness[parent];
        }
    }
    for &stride in strides.iter().rev() {
        for child in (stride..n).step_by(2 * stride) {
            have[child] = traffic.send(child - stride, child, have[child - stride]);
        }
    }
    have
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Draws, Purpose};
    use crate::simulate::Cluster;
    use gradwire_transports::cost::Link;

    /// `workers` at 1 MB/s with a latency of 1 ms.
    fn cluster(workers: usize) -> Cluster {
        toml::from_str(&format!("workers = {workers}\ngbps = 0.008\nlatency_us = 1000")).unwrap()
    }

    fn ends(exchange: Route, workers: usize, load: Load, begin: &[f64]) -> Vec<f64> {
        exchange.run(&mut Traffic::new(&cluster(workers), 0), load, &vec![1.0; workers], begin)
    }

    fn assert_all_close(actual: &[f64], expected: f64) {
        assert!(
            actual.iter().all(|actual| (actual / expected - 1.0).abs() < 1e-9),
            "{actual:?} is not {expected}"
        );
    }

    const EQUAL: Sums = Sums { bytes: 1.0, entries: 1.0 };

    /// On links that are alike, simulation and formula are the same.
    #[test]
    fn exchanges_of_equal_workers_take_what_the_cost_model_says() {
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e6, burst_bytes: 0.0 };
        let load = Load { bytes: 10_000.0, take_in_s: 0.0, sums: Sums { bytes: 3.0, entries: 3.5 } };
        for workers in [2, 3, 4, 7, 16] {
            let begin = vec![0.0; workers];
            assert_all_close(
                &ends(Route::Ring, workers, load, &begin),
                link.ring_all_reduce_s(workers, 10_000.0),
            );
            assert_all_close(
                &ends(Route::Owners, workers, load, &begin),
                link.owners_all_reduce_s(workers, 10_000.0),
            );
            let formula = link.all_gather_s(workers, 10_000.0);
            assert_all_close(&ends(Route::AllGather, workers, load, &begin), formula);
            let n = workers as f64;
            let moving = 2.0 * link.latency_s + (n - 1.0) / n * (10_000.0 + 30_000.0) / link.bytes_per_s;
            assert_all_close(&ends(Route::Sparse, workers, load, &begin), moving);
            // The last part arrives when the worker is done with those before it. Then one of them is left.
            let slow = Load { take_in_s: 1e-3, ..load };
            let last = (1e-3 + 3.5e-3) / n;
            assert_all_close(&ends(Route::Sparse, workers, slow, &begin), moving + last);
        }
        for workers in [2, 4, 16] {
            let end = ends(Route::Tree, workers, load, &vec![0.0; workers]);
            let last = end.iter().copied().fold(0.0, f64::max);
            // The last leaf waits until the root has sent to all its branches.
            assert!(last >= link.tree_all_reduce_s(workers, 10_000.0) * (1.0 - 1e-9), "{last}");
        }
    }

    /// One to nine workers of which one computes and one sends slowly; some clusters lose messages, some have
    /// sites.
    fn drawn_cluster(draws: &mut Draws) -> Cluster {
        let workers = 1 + draws.below(9);
        let (latency, slow, other) = (draws.below(900), draws.below(workers), draws.below(workers));
        let loss = [0.0, 0.01, 0.4][draws.below(3)];
        let sites = ["", "", "sites = { workers = 2, gbps = 0.01, latency_us = 700 }\n"][draws.below(3)];
        let text = format!(
            "workers = {workers}\ngbps = 0.01\nlatency_us = {latency}\nloss = {loss}\nretry_ms = 3\n{sites}\
             [[slow]]\nranks = [{slow}]\ncompute = 1.5\n[[slow]]\nranks = [{other}]\ngbps = 0.003\n"
        );
        toml::from_str::<Cluster>(&text).unwrap().checked().unwrap()
    }

    /// An all-gather or a ring, message by message as the functions above are described.
    fn plainly(
        exchange: Route,
        traffic: &mut Traffic,
        load: Load,
        slowness: &[f64],
        begin: &[f64],
    ) -> Vec<f64> {
        let (n, is_ring) = (begin.len(), exchange == Route::Ring);
        let parts = if is_ring { n as f64 } else { 1.0 };
        let work = |at: usize| load.take_in_s / parts * slowness[at];
        traffic.set_bytes(load.bytes / parts);
        let mut have: Vec<f64> = (0..n).map(|at| begin[at] + if is_ring { 0.0 } else { work(at) }).collect();
        for round in 0..if is_ring { 2 * (n - 1) } else { n - 1 } {
            let before = have.clone();
            for from in 0..n {
                let to = (from + if is_ring { 1 } else { round + 1 }) % n;
                let arrival = traffic.send(from, to, if is_ring { before[from] } else { begin[from] });
                have[to] = arrival.max(before[to]) + if round < n - 1 { work(to) } else { 0.0 };
            }
        }
        have
    }

    /// Twice in a row, so that links are busy when the second exchange begins.
    #[test]
    fn whole_rounds_take_as_long_as_their_messages_one_by_one() {
        let mut draws = Draws::new(1, Purpose::Loss, 0, 0);
        for _ in 0..300 {
            let cluster = drawn_cluster(&mut draws);
            let slowness = cluster.slowness();
            let begin: Vec<f64> = slowness.iter().map(|_| f64::from(draws.uniform_f32())).collect();
            let bytes = 1000.0 * f64::from(draws.uniform_f32());
            let load = Load { bytes, take_in_s: 1e-3, sums: EQUAL };
            for exchange in [Route::AllGather, Route::Ring] {
                let (mut whole, mut plain) = (Traffic::new(&cluster, 5), Traffic::new(&cluster, 5));
                for _ in 0..2 {
                    let ends = exchange.run(&mut whole, load, &slowness, &begin);
                    assert_eq!(ends, plainly(exchange, &mut plain, load, &slowness, &begin), "{cluster:?}");
                }
            }
        }
    }

    #[test]
    fn everybody_waits_for_the_last_one() {
        let load = Load { bytes: 10_000.0, take_in_s: 1e-3, sums: EQUAL };
        for exchange in [Route::AllGather, Route::Ring, Route::Tree, Route::Owners, Route::Sparse] {
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
        let load = Load { bytes: 1e9, take_in_s: 0.5, sums: EQUAL };
        assert_eq!(ends(Route::Ring, 1, load, &[2.0]), [2.0]);
        assert_eq!(ends(Route::Tree, 1, load, &[2.0]), [2.0]);
        assert_eq!(ends(Route::AllGather, 1, load, &[2.0]), [2.5], "its own frame is decoded");
    }
}
