//! When messages arrive.
//!
//! A message takes the link of its sender, that of its receiver, and between sites the links that both sites
//! share. It starts when all of them are free, and keeps each busy for its bytes at that link's own rate. It
//! arrives after its bytes at the slowest rate, and the latency. Messages are placed in the order in which
//! the caller gives them, so the caller keeps to the order of time as well as dependencies allow.

use std::ops::Range;

use super::cluster::{Cluster, bytes_per_s};
use crate::rng::{Draws, Purpose};

/// Links, and until when each is busy. Times in seconds; of links, arrays by worker.
pub(super) struct Traffic {
    bytes_per_s: Vec<f64>,
    /// For how long one of the present messages keeps a link busy.
    busy: Vec<f64>,
    /// From when on links are free, to send and to receive.
    up: Vec<f64>,
    down: Vec<f64>,
    latency_s: f64,
    sites: Option<SiteLinks>,
    losses: Losses,
}

/// Links between sites. Arrays are by site.
struct SiteLinks {
    of_worker: Vec<usize>,
    bytes_per_s: f64,
    busy: f64,
    up: Vec<f64>,
    down: Vec<f64>,
    latency_s: f64,
}

/// Which messages are lost, and how often in a row.
struct Losses {
    share: f64,
    retry_s: f64,
    draws: Draws,
    /// How many messages arrive before the next is lost. Drawing that takes one draw a loss instead of one a
    /// message.
    until_next: usize,
}

impl Traffic {
    /// Links that nobody uses, for messages of no bytes.
    pub(super) fn new(cluster: &Cluster, seed: u64) -> Self {
        let free = vec![0.0; cluster.workers];
        let sites = cluster.sites.map(|sites| {
            let of_worker: Vec<usize> = (0..cluster.workers).map(|worker| worker / sites.workers).collect();
            let free = vec![0.0; cluster.workers.div_ceil(sites.workers)];
            let (bytes_per_s, latency_s) = (bytes_per_s(sites.gbps), sites.latency_us * 1e-6);
            SiteLinks { of_worker, bytes_per_s, busy: 0.0, up: free.clone(), down: free, latency_s }
        });
        Self {
            bytes_per_s: cluster.rates(),
            busy: free.clone(),
            up: free.clone(),
            down: free,
            latency_s: cluster.latency_us * 1e-6,
            sites,
            losses: Losses::new(cluster.loss, cluster.retry_ms * 1e-3, seed),
        }
    }

    /// Sets the bytes of all messages that follow.
    pub(super) fn set_bytes(&mut self, bytes: f64) {
        self.busy = self.bytes_per_s.iter().map(|rate| bytes / rate).collect();
        if let Some(sites) = &mut self.sites {
            sites.busy = bytes / sites.bytes_per_s;
        }
    }

    /// Sends a message at `ready` at the earliest; returns when it arrives.
    pub(super) fn send(&mut self, from: usize, to: usize, ready: f64) -> f64 {
        let mut start = later(ready, later(self.up[from], self.down[to]));
        let (mut slowest, mut latency_s) = (later(self.busy[from], self.busy[to]), self.latency_s);
        if let Some(sites) = &mut self.sites {
            let (here, there) = (sites.of_worker[from], sites.of_worker[to]);
            if here != there {
                start = later(start, later(sites.up[here], sites.down[there]));
                sites.up[here] = start + sites.busy;
                sites.down[there] = start + sites.busy;
                (slowest, latency_s) = (later(slowest, sites.busy), sites.latency_s);
            }
        }
        self.up[from] = start + self.busy[from];
        self.down[to] = start + self.busy[to];
        start + slowest + latency_s + self.losses.delay_s()
    }

    /// Sends a message from every worker to the one `distance` after it, below the number of workers. `ready`
    /// is by sender, `arrivals` by receiver. The same as [`send`](Self::send) in the order of senders.
    pub(super) fn send_round(&mut self, distance: usize, ready: &[f64], arrivals: &mut [f64]) {
        let workers = ready.len();
        if self.sites.is_some() {
            let receivers = (distance..workers).chain(0..distance);
            receivers.enumerate().for_each(|(from, to)| arrivals[to] = self.send(from, to, ready[from]));
            return;
        }
        let last = workers - distance;
        self.send_apart(0..last, distance..workers, ready, arrivals);
        self.send_apart(last..workers, 0..distance, ready, arrivals);
        self.losses.among(workers, |from, delay_s| arrivals[(from + distance) % workers] += delay_s);
    }

    /// Messages no two of which use the same link, so that all may be placed at once. None is lost.
    fn send_apart(&mut self, from: Range<usize>, to: Range<usize>, ready: &[f64], arrivals: &mut [f64]) {
        let senders = self.up[from.clone()].iter_mut().zip(&self.busy[from.clone()]).zip(&ready[from]);
        let receivers = self.down[to.clone()].iter_mut().zip(&self.busy[to.clone()]).zip(&mut arrivals[to]);
        for (((up, sending), ready), ((down, receiving), arrival)) in senders.zip(receivers) {
            let start = later(*ready, later(*up, *down));
            (*up, *down) = (start + sending, start + receiving);
            *arrival = later(*up, *down) + self.latency_s;
        }
    }
}

impl Losses {
    fn new(share: f64, retry_s: f64, seed: u64) -> Self {
        let draws = Draws::new(seed, Purpose::Loss, 0, 0);
        let mut losses = Self { share, retry_s, draws, until_next: 0 };
        losses.until_next = losses.draw();
        losses
    }

    /// Messages until a loss: geometric, the largest number if none is lost.
    fn draw(&mut self) -> usize {
        let uniform = ((self.draws.next_u64() >> 11) as f64 + 0.5) * 2.0_f64.powi(-53);
        (uniform.ln() / (-self.share).ln_1p()) as usize
    }

    /// For how long the next message is sent again and again: 0 unless it is lost.
    fn delay_s(&mut self) -> f64 {
        let mut retries = 0.0;
        while self.until_next == 0 {
            retries += 1.0;
            self.until_next = self.draw();
        }
        self.until_next -= 1;
        retries * self.retry_s
    }

    /// Calls `delay` for those of the next `count` messages that are lost, with their numbers and delays.
    fn among(&mut self, count: usize, mut delay: impl FnMut(usize, f64)) {
        let mut sent = 0;
        while self.until_next < count - sent {
            sent += std::mem::take(&mut self.until_next);
            delay(sent, self.delay_s());
            sent += 1;
        }
        self.until_next -= count - sent;
    }
}

/// The later of two times. Neither is NaN, of which `f64::max` would take care, in three times as long.
pub(super) fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers at 1 MB/s with a latency of 1 ms; a site of two shares 0.5 MB/s, with 10 ms.
    fn cluster(more: &str) -> Cluster {
        let text = format!("workers = 4\ngbps = 0.008\nlatency_us = 1000\n{more}");
        toml::from_str::<Cluster>(&text).unwrap().checked().unwrap()
    }

    /// For messages of 1000 bytes.
    fn traffic(more: &str) -> Traffic {
        let mut traffic = Traffic::new(&cluster(more), 0);
        traffic.set_bytes(1000.0);
        traffic
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-12, "{actual} is not {expected}");
    }

    #[test]
    fn a_message_takes_its_bytes_and_the_latency() {
        let mut traffic = traffic("");
        assert_close(traffic.send(0, 1, 0.5), 0.502);
        // The link of the sender is busy for 1 ms, that of the receiver too; others are free.
        assert_close(traffic.send(0, 2, 0.5), 0.503);
        assert_close(traffic.send(3, 1, 0.5), 0.503);
        assert_close(traffic.send(2, 3, 0.5), 0.502);
    }

    #[test]
    fn sites_share_one_link() {
        let sites = "sites = { workers = 2, gbps = 0.004, latency_us = 10000 }";
        let mut traffic = traffic(sites);
        assert_close(traffic.send(0, 1, 0.0), 0.002);
        // Worker 0 is busy for 1 ms, then 2 ms at the shared rate; the next waits until that link is free.
        assert_close(traffic.send(0, 2, 0.0), 0.001 + 0.002 + 0.010);
        assert_close(traffic.send(1, 3, 0.0), 0.003 + 0.002 + 0.010);
    }

    #[test]
    fn a_slow_worker_slows_what_it_sends_and_receives() {
        let mut traffic = traffic("[[slow]]\nranks = [1]\ngbps = 0.0008");
        assert_close(traffic.send(0, 1, 0.0), 0.011);
        assert_close(traffic.send(0, 2, 0.0), 0.003);
        assert_close(traffic.send(1, 2, 0.0), 0.013);
    }

    #[test]
    fn as_many_messages_are_lost_as_the_share_says() {
        let mut losses = Losses::new(0.25, 1.0, 3);
        let retries: f64 = (0..100_000).map(|_| losses.delay_s()).sum();
        // A share of 1/4, of which a quarter is lost again: a third of a retry a message.
        assert!((retries / 100_000.0 - 1.0 / 3.0).abs() < 0.01, "{retries}");
        let mut none = Losses::new(0.0, 1.0, 3);
        none.among(usize::MAX, |_, _| panic!("no message is lost"));
    }
}
