//! The machines that a run is replayed on.

use gradwire_transports::cost::Link;
use serde::Deserialize;

use crate::range::{RangeError, require};

/// A cluster as a file describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    /// Workers that train together.
    pub(crate) workers: usize,
    /// Gbit/s of the link of a worker, each way.
    pub(crate) gbps: f64,
    /// Microseconds from sending an empty message to having it, within a site.
    #[serde(default)]
    pub(crate) latency_us: f64,
    /// The share of the messages that are lost once and sent again.
    #[serde(default)]
    pub(crate) loss: f64,
    /// Milliseconds until a lost message is sent again.
    #[serde(default = "retry_ms")]
    pub(crate) retry_ms: f64,
    /// Workers by site, which share one link to the other sites. Without it, all are at one site.
    pub(crate) sites: Option<Sites>,
    /// Workers that are slower than the others.
    #[serde(default, rename = "slow")]
    pub(crate) slow: Vec<Slow>,
}

/// Sites of as many workers each, in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sites {
    /// Workers at each.
    pub(crate) workers: usize,
    /// Gbit/s of the link that they share, each way.
    pub(crate) gbps: f64,
    /// Microseconds from one site to another.
    pub(crate) latency_us: f64,
}

/// Some workers, and how slow they are.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slow {
    /// Their ranks.
    pub(crate) ranks: Vec<usize>,
    /// How many times as long computing and coding take.
    pub(crate) compute: Option<f64>,
    /// Gbit/s of their links, if they differ from those of the others.
    pub(crate) gbps: Option<f64>,
}

/// The time in which the system retransmits, on a link without latency.
fn retry_ms() -> f64 {
    200.0
}

impl Cluster {
    /// The most workers that are simulated.
    const MOST_WORKERS: usize = 16_384;

    /// The cluster, if its numbers make sense.
    ///
    /// # Errors
    /// The key, its value, and what it may be.
    pub(crate) fn checked(self) -> Result<Self, RangeError> {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let is_time = |time: f64| time.is_finite() && time >= 0.0;
        let most = Self::MOST_WORKERS;
        require((1..=most).contains(&self.workers), "workers", self.workers, format!("1 to {most}"))?;
        require(is_rate(self.gbps), "gbps", self.gbps, "above 0")?;
        require(is_time(self.latency_us), "latency_us", self.latency_us, "at least 0")?;
        require((0.0..1.0).contains(&self.loss), "loss", self.loss, "at least 0, below 1")?;
        require(is_time(self.retry_ms), "retry_ms", self.retry_ms, "at least 0")?;
        if let Some(sites) = self.sites {
            require(sites.workers > 0, "sites.workers", sites.workers, "at least 1")?;
            require(is_rate(sites.gbps), "sites.gbps", sites.gbps, "above 0")?;
            require(is_time(sites.latency_us), "sites.latency_us", sites.latency_us, "at least 0")?;
        }
        for slow in &self.slow {
            let stranger = slow.ranks.iter().find(|&&rank| rank >= self.workers);
            let rank = stranger.copied().unwrap_or(0);
            require(stranger.is_none(), "slow.ranks", rank, format!("below {}, the workers", self.workers))?;
            let times = slow.compute.unwrap_or(1.0);
            require(times >= 1.0 && times.is_finite(), "slow.compute", times, "at least 1")?;
            let gbps = slow.gbps.unwrap_or(1.0);
            require(is_rate(gbps), "slow.gbps", gbps, "above 0")?;
        }
        Ok(self)
    }

    /// How many times as long as others each worker takes to compute.
    pub(crate) fn slowness(&self) -> Vec<f64> {
        self.of_each(1.0, |slow, usual| slow.compute.unwrap_or(usual))
    }

    /// Bytes a second of each worker's link.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.of_each(self.gbps, |slow, gbps| slow.gbps.unwrap_or(gbps)).into_iter().map(bytes_per_s).collect()
    }

    fn of_each(&self, usual: f64, of: impl Fn(&Slow, f64) -> f64) -> Vec<f64> {
        let mut values = vec![usual; self.workers];
        for slow in &self.slow {
            slow.ranks.iter().for_each(|&rank| values[rank] = of(slow, values[rank]));
        }
        values
    }
}

/// Gbit/s as bytes a second.
pub(super) fn bytes_per_s(gbps: f64) -> f64 {
    Link::from_gbps(gbps, 0.0).bytes_per_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Cluster, String> {
        let cluster: Cluster = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        cluster.checked().map_err(|error| error.to_string())
    }

    #[test]
    fn a_cluster_is_read_with_its_sites_and_its_slow_workers() {
        let text = "workers = 4\ngbps = 1\nsites = { workers = 2, gbps = 0.1, latency_us = 5000 }\n\
                    [[slow]]\nranks = [1]\ncompute = 2\n[[slow]]\nranks = [1, 3]\ngbps = 0.5\n";
        let cluster = read(text).unwrap();
        assert_eq!(cluster.slowness(), [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(cluster.rates(), [125e6, 62.5e6, 125e6, 62.5e6]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, message) in [
            ("workers = 0\ngbps = 1", "workers = 0: expected 1 to 16384"),
            ("workers = 2\ngbps = 0", "gbps = 0: expected above 0"),
            ("workers = 2\ngbps = 1\nloss = 1", "loss = 1: expected at least 0, below 1"),
            ("workers = 2\ngbps = 1\n[[slow]]\nranks = [2]", "slow.ranks = 2: expected below 2, the workers"),
            (
                "workers = 2\ngbps = 1\n[[slow]]\nranks = [1]\ncompute = 0.5",
                "slow.compute = 0.5: expected at least 1",
            ),
            ("workers = 2\ngbps = 1\nspeed = 3", "unknown field `speed`"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.starts_with(message), "{told}");
        }
    }
}
