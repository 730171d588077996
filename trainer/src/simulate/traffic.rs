//! When messages arrive.
//!
//! A message takes the link of its sender, that of its receiver, and between sites the links that both sites
//! share. It starts when all of them are free, and keeps each busy for its bytes at that link's own rate. It
//! arrives after its bytes at the slowest rate, and the latency. Messages are placed in the order in which
//! the caller gives them, so the caller keeps to the order of time as well as dependencies allow.

use super::cluster::{Cluster, bytes_per_s};
use crate::rng::{Draws, Purpose};

/// Links, and until when each is busy. Times in seconds.
pub(super) struct Traffic {
    up: Vec<Link>,
    down: Vec<Link>,
    sites: Option<SiteLinks>,
    latency_s: f64,
    loss: f64,
    retry_s: f64,
    draws: Draws,
}

/// One direction of a link.
#[derive(Clone, Copy)]
struct Link {
    bytes_per_s: f64,
    free_at: f64,
}

struct SiteLinks {
    workers: usize,
    up: Vec<Link>,
    down: Vec<Link>,
    latency_s: f64,
}

impl Link {
    fn new(bytes_per_s: f64) -> Self {
        Self { bytes_per_s, free_at: 0.0 }
    }

    fn take(&mut self, start: f64, bytes: f64) {
        self.free_at = start + bytes / self.bytes_per_s;
    }
}

impl Traffic {
    /// Links that nobody uses.
    pub(super) fn new(cluster: &Cluster, seed: u64) -> Self {
        let links: Vec<Link> = cluster.rates().into_iter().map(Link::new).collect();
        let sites = cluster.sites.map(|sites| {
            let shared = vec![Link::new(bytes_per_s(sites.gbps)); cluster.workers.div_ceil(sites.workers)];
            let latency_s = sites.latency_us * 1e-6;
            SiteLinks { workers: sites.workers, up: shared.clone(), down: shared, latency_s }
        });
        Self {
            up: links.clone(),
            down: links,
            sites,
            latency_s: cluster.latency_us * 1e-6,
            loss: cluster.loss,
            retry_s: cluster.retry_ms * 1e-3,
            draws: Draws::new(seed, Purpose::Loss, 0, 0),
        }
    }

    /// Sends `bytes` at `ready` at the earliest; returns when they arrive.
    pub(super) fn send(&mut self, from: usize, to: usize, bytes: f64, ready: f64) -> f64 {
        let (mut start, mut rate) = (ready, f64::INFINITY);
        let mut latency_s = self.latency_s;
        let mut way = [Some(&mut self.up[from]), Some(&mut self.down[to]), None, None];
        if let Some(sites) = &mut self.sites {
            let (here, there) = (from / sites.workers, to / sites.workers);
            if here != there {
                way[2] = Some(&mut sites.up[here]);
                way[3] = Some(&mut sites.down[there]);
                latency_s = sites.latency_s;
            }
        }
        for link in way.iter().flatten() {
            start = link.free_at.max(start);
            rate = link.bytes_per_s.min(rate);
        }
        for link in way.into_iter().flatten() {
            link.take(start, bytes);
        }
        start + bytes / rate + latency_s + self.retries() * self.retry_s
    }

    /// How many times in a row a message is lost.
    fn retries(&mut self) -> f64 {
        let mut count = 0.0;
        while self.loss > 0.0 && f64::from(self.draws.uniform_f32()) < self.loss {
            count += 1.0;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers at 1 MB/s with a latency of 1 ms; a site of two shares 0.5 MB/s, with 10 ms.
    fn cluster(more: &str) -> Cluster {
        let text = format!("workers = 4\ngbps = 0.008\nlatency_us = 1000\n{more}");
        toml::from_str::<Cluster>(&text).unwrap().checked().unwrap()
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-12, "{actual} is not {expected}");
    }

    #[test]
    fn a_message_takes_its_bytes_and_the_latency() {
        let mut traffic = Traffic::new(&cluster(""), 0);
        assert_close(traffic.send(0, 1, 1000.0, 0.5), 0.502);
        // The link of the sender is busy for 1 ms, that of the receiver too; others are free.
        assert_close(traffic.send(0, 2, 1000.0, 0.5), 0.503);
        assert_close(traffic.send(3, 1, 1000.0, 0.5), 0.503);
        assert_close(traffic.send(2, 3, 1000.0, 0.5), 0.502);
    }

    #[test]
    fn sites_share_one_link() {
        let sites = "sites = { workers = 2, gbps = 0.004, latency_us = 10000 }";
        let mut traffic = Traffic::new(&cluster(sites), 0);
        assert_close(traffic.send(0, 1, 1000.0, 0.0), 0.002);
        // Worker 0 is busy for 1 ms, then 2 ms at the shared rate; the next waits until that link is free.
        assert_close(traffic.send(0, 2, 1000.0, 0.0), 0.001 + 0.002 + 0.010);
        assert_close(traffic.send(1, 3, 1000.0, 0.0), 0.003 + 0.002 + 0.010);
    }

    #[test]
    fn a_slow_worker_slows_what_it_sends_and_receives() {
        let mut traffic = Traffic::new(&cluster("[[slow]]\nranks = [1]\ngbps = 0.0008"), 0);
        assert_close(traffic.send(0, 1, 1000.0, 0.0), 0.011);
        assert_close(traffic.send(0, 2, 1000.0, 0.0), 0.003);
        assert_close(traffic.send(1, 2, 1000.0, 0.0), 0.013);
    }

    #[test]
    fn as_many_messages_are_lost_as_the_share_says() {
        let mut traffic = Traffic::new(&cluster("loss = 0.25\nretry_ms = 7"), 3);
        let retries: f64 = (0..100_000).map(|_| traffic.retries()).sum();
        // A share of 1/4, of which a quarter is lost again: a third of a retry a message.
        assert!((retries / 100_000.0 - 1.0 / 3.0).abs() < 0.01, "{retries}");
    }
}
