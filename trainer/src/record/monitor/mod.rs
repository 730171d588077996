//! Numbers about a run that is under way, for Prometheus. They count from the start of this process.

mod http;

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::{io, thread};

use gradwire_transports::Rank;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::StepRecord;
use crate::log;

/// Names and values that tell the metrics of one family apart.
type Labels = Vec<(&'static str, String)>;
type Real = Gauge<f64, AtomicU64>;
type Seconds = Counter<f64, AtomicU64>;

static MONITOR: OnceLock<Monitor> = OnceLock::new();

/// The numbers, and the page that shows them.
#[derive(Default)]
pub(crate) struct Monitor {
    registry: Registry,
    step: Gauge,
    steps: Counter,
    refused_steps: Counter,
    loss: Real,
    learning_rate: Real,
    workers: Gauge,
    contributors: Gauge,
    bytes: Family<Labels, Counter>,
    quorum_wait: Seconds,
    compute: Family<Labels, Seconds>,
    exchange: Family<Labels, Seconds>,
    contributions: Family<Labels, Counter>,
    frames_refused: Family<Labels, Counter>,
    residual_norm: Family<Labels, Real>,
}

/// What is shown, if anybody wants to know.
pub(crate) fn monitor() -> Option<&'static Monitor> {
    MONITOR.get()
}

/// Answers at this address from now on, in a thread of its own.
///
/// # Errors
///
/// Those of the system: the address is in use, or there is no thread.
pub(crate) fn listen(address: SocketAddr) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let monitor = MONITOR.get_or_init(Monitor::new);
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || http::serve(&listener, || monitor.text()))?;
    tracing::info!(target: log::PROGRESS, %address, "metrics at http://{address}/metrics");
    Ok(())
}

fn of_rank(Rank(rank): Rank) -> Labels {
    vec![("rank", rank.to_string())]
}

impl Monitor {
    fn new() -> Self {
        let mut new = Self::default();
        let mut all = Registry::with_prefix("gradwire");
        all.register("step", "Steps of the run that are done", new.step.clone());
        all.register("steps", "Steps done by this process, refused ones included", new.steps.clone());
        all.register("refused_steps", "Steps without a mean: void, or refused", new.refused_steps.clone());
        all.register("loss", "Training loss of the last step, mean over the workers", new.loss.clone());
        all.register("learning_rate", "Learning rate of the last step", new.learning_rate.clone());
        all.register("workers", "Workers that the run is meant to have", new.workers.clone());
        all.register("contributors", "Workers in the mean of the last step", new.contributors.clone());
        all.register("bytes", "Bytes on the network, envelopes included", new.bytes.clone());
        all.register("quorum_wait_seconds", "Time without enough workers", new.quorum_wait.clone());
        all.register("compute_seconds", "Time in forward and backward passes", new.compute.clone());
        all.register("exchange_seconds", "Time of sending and waiting", new.exchange.clone());
        all.register("contributions", "Steps with this rank in the mean", new.contributions.clone());
        all.register("frames_refused", "Frames of this rank that were refused", new.frames_refused.clone());
        all.register("residual_norm", "Norm of what a rank keeps back", new.residual_norm.clone());
        new.registry = all;
        new
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // A string takes whatever is written.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// The workers' records of a step, of `workers` that there should be; a worker of a server has its own
    /// alone.
    pub(crate) fn step(&self, records: &[StepRecord], workers: usize) {
        let Some(first) = records.first() else { return };
        let losses: f64 = records.iter().map(|record| f64::from(record.loss)).sum();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.step.set(first.step.saturating_add(1).cast_signed());
        self.steps.inc();
        self.refused_steps.inc_by(u64::from(first.refusal.is_some()));
        self.loss.set(losses / records.len() as f64);
        self.learning_rate.set(f64::from(first.lr));
        self.workers.set(count(workers));
        self.contributors.set(count(first.contributors.len()));
        for rank in first.contributors.iter() {
            self.contributions.get_or_create(&of_rank(rank)).inc();
        }
        let way = |way: &str| self.bytes.get_or_create_owned(&vec![("direction", way.to_owned())]);
        let [up, down] = ["up", "down"].map(way);
        for record in records {
            up.inc_by(record.bytes_up);
            down.inc_by(record.bytes_down);
            let rank = of_rank(record.rank);
            self.compute.get_or_create(&rank).inc_by(record.compute.as_secs_f64());
            self.exchange.get_or_create(&rank).inc_by(record.exchange.as_secs_f64());
            self.residual(record.rank, record.residual_norm);
        }
    }

    /// What a rank reports of its residual.
    pub(crate) fn residual(&self, rank: Rank, norm: f64) {
        self.residual_norm.get_or_create(&of_rank(rank)).set(norm);
    }
}

#[cfg(feature = "zmq")]
impl Monitor {
    /// A frame did not enter the mean.
    pub(crate) fn frame_refused(&self, rank: Rank) {
        self.frames_refused.get_or_create(&of_rank(rank)).inc();
    }

    /// A worker's step was void.
    pub(crate) fn void(&self, step: u64) {
        self.step.set(step.saturating_add(1).cast_signed());
        self.steps.inc();
        self.refused_steps.inc();
        self.contributors.set(0);
    }

    /// There were too few workers for so long.
    pub(crate) fn waited(&self, time: std::time::Duration) {
        self.quorum_wait.inc_by(time.as_secs_f64());
    }
}
