//! `trainer simulate`: a recorded run on a cluster that is described.

use std::io::Write;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use gradwire::Spec;
use gradwire_transports::cost::sparse_frame_bytes;

use crate::codec_cli::{is_summed, rounds, significant};
use crate::command::Failure;
use crate::config::parse_toml;
use crate::files::read_text;
use crate::record::{LoggedRun, Metrics};
use crate::simulate::{Cluster, Outcome, Recorded, RecordedStep, Route, replay};
use crate::terminal;

#[derive(Debug, clap::Args)]
pub(super) struct SimulateArgs {
    /// Folders of recorded runs. The times and bytes of their steps are replayed
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// TOML file that describes the cluster: workers, gbps, latency_us, loss, retry_ms, sites, [[slow]]
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Numbers of workers, such as 8,64, 1 to 16384 each [default: that of the file]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    workers: Vec<NonZeroUsize>,
    /// How bytes travel. For sparse, workers are taken to choose coordinates independently of one another
    /// [default: ring if the codec's payloads can be summed, otherwise all-gather]
    #[arg(long, value_enum)]
    exchange: Option<Route>,
    /// Steps to replay, at least 1 [default: those of the run, at most 100]
    #[arg(long, value_name = "N")]
    steps: Option<NonZeroU32>,
    /// Parameters of the model, for a run whose folder does not hold their number
    #[arg(long, value_name = "N")]
    params: Option<NonZeroUsize>,
    /// Milliseconds that a step computes, at least 0, for a run that did not record them [default: as
    /// recorded]
    #[arg(long, value_name = "X", value_parser = super::numbers::not_negative)]
    compute_ms: Option<f64>,
    /// Seed that draws which messages are lost
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Write JSON lines instead of a table: an object for each run and number of workers
    #[arg(long)]
    json: bool,
}

/// The most steps that are replayed by default.
const DEFAULT_STEPS: usize = 100;

pub(super) fn simulate(args: &SimulateArgs, out: &mut impl Write) -> Result<(), Failure> {
    let clusters = clusters(args)?;
    let mut rows = Vec::new();
    for path in &args.runs {
        let run = LoggedRun::read(path)?;
        let (exchange, codec) = (args.exchange.unwrap_or(usual(&run)), run.codec.as_deref().unwrap_or("-"));
        let mut recorded = recorded(args, path, &run)?;
        if exchange == Route::Sparse {
            if recorded.density == 1.0 {
                let what = format!(
                    "--exchange sparse: codec {codec} does not say what share of coordinates it sends"
                );
                return Err(Failure::of_file(path, what));
            }
            // Values travel as f32, whatever they take in the codec's frames.
            let least = sparse_frame_bytes(recorded.params, recorded.density, 32.0);
            recorded.steps.iter_mut().for_each(|step| step.bytes = step.bytes.max(least));
        }
        let steps = args.steps.map_or(recorded.steps.len().min(DEFAULT_STEPS), |steps| steps.get() as usize);
        for cluster in &clusters {
            let outcome = replay(cluster, exchange, &recorded, steps, args.seed);
            if args.json {
                let line = serde_json::json!({ "run": run.name, "codec": codec, "outcome": outcome });
                writeln!(out, "{line}")?;
            }
            rows.push(row(&run.name, codec, &outcome));
        }
    }
    if args.json { Ok(()) } else { Ok(write!(out, "{}", table(&rows))?) }
}

/// The cluster of the file, with each number of workers that was asked for.
fn clusters(args: &SimulateArgs) -> Result<Vec<Cluster>, Failure> {
    let text = read_text(&args.cluster).map_err(|error| Failure::of_file(&args.cluster, error))?;
    let cluster: Cluster = parse_toml(&text).map_err(|error| Failure::of_file(&args.cluster, error))?;
    let workers: Vec<usize> = match args.workers.as_slice() {
        [] => vec![cluster.workers],
        workers => workers.iter().map(|workers| workers.get()).collect(),
    };
    let with = |workers| Cluster { workers, ..cluster.clone() }.checked();
    let all: Result<Vec<Cluster>, _> = workers.into_iter().map(with).collect();
    all.map_err(|error| Failure::of_file(&args.cluster, error))
}

/// Steps of the run in which something was sent.
fn recorded(args: &SimulateArgs, path: &Path, run: &LoggedRun) -> Result<Recorded, Failure> {
    let params = super::recorded::params(args.params, path, run)?;
    let is_summed = usual(run) == Route::Ring;
    let step = |line: &Metrics| {
        let ratio = line.ratio?;
        let compute_ms = args.compute_ms.or(line.compute_ns.map(|ns| 1e-6 * ns as f64));
        let frames = if is_summed { 1.0 } else { line.contributors.max(1) as f64 };
        Some(compute_ms.map(|compute_ms| RecordedStep {
            compute_s: 1e-3 * compute_ms,
            encode_s: 1e-9 * line.encode_ns as f64,
            decode_s: 1e-9 * line.decode_ns as f64 / frames,
            bytes: 4.0 * params as f64 / ratio,
        }))
    };
    let steps: Option<Vec<RecordedStep>> = run.metrics.iter().filter_map(step).collect();
    let steps = steps.ok_or_else(|| super::recorded::no_compute_time(path))?;
    if steps.is_empty() {
        return Err(Failure::of_file(path, "nothing was sent in any step"));
    }
    let rounds = spec(run).map_or(Ok(1), rounds)?;
    Ok(Recorded { steps, params, density: density(run), rounds })
}

/// The run's codec, where the folder says one.
fn spec(run: &LoggedRun) -> Option<Spec> {
    run.codec.as_deref().and_then(|codec| Spec::parse(codec).ok())
}

/// The share of coordinates in a frame of the run's codec; 1 if its frames are not sparse.
fn density(run: &LoggedRun) -> f64 {
    let sparse = spec(run).filter(|spec| spec.codec.sparse_values().is_some());
    sparse.and_then(|spec| spec.codec.density()).map_or(1.0, |density| density.fraction())
}

/// The exchange that this codec usually takes.
fn usual(run: &LoggedRun) -> Route {
    if spec(run).is_some_and(|spec| is_summed(&spec)) { Route::Ring } else { Route::AllGather }
}

fn row(name: &str, codec: &str, outcome: &Outcome) -> Vec<String> {
    let exchange = match outcome.exchange {
        Route::AllGather => "all-gather",
        Route::Ring => "ring",
        Route::Tree => "tree",
        Route::Owners => "owners",
        Route::Sparse => "sparse",
    };
    let &Outcome { workers, step_ms, median_ms, p95_ms, busy_ms, exchange_ms, .. } = outcome;
    let times = [step_ms, median_ms, p95_ms, busy_ms, exchange_ms].map(|time| significant(time, 3));
    let about = [name, codec, &workers.to_string(), exchange].map(str::to_owned);
    about.into_iter().chain(times).collect()
}

fn table(rows: &[Vec<String>]) -> String {
    let titles = [
        "run",
        "codec",
        "workers",
        "exchange",
        "step\nms",
        "median\nms",
        "95 %\nms",
        "computing,\nencoding",
        "exchange,\ndecoding",
    ];
    terminal::table(&titles.map(str::to_owned), rows)
}
