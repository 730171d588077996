//! `trainer advise`: which codec makes the shortest step on which link.

use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use clap::builder::ArgPredicate;
use gradwire_transports::cost::Link;
#[cfg(feature = "mpi")]
use gradwire_transports::{Rank, Transport};

use super::numbers::{at_least_one, cosine, count, not_negative, per_cent, positive};
use super::recorded;
#[cfg(not(feature = "mpi"))]
use super::settings::WITHOUT_MPI;
#[cfg(feature = "mpi")]
use crate::advise::link;
use crate::advise::{Advice, Costs, LONGEST_DRAWN, Overlap, Question, heat_map, show};
use crate::codec_cli::{Gradient, codecs_help, parse_spec};
use crate::command::Failure;
use crate::config::OptimizerKind;
use crate::files::{self, ensure_output, json_fault, read_text};
use crate::process::launch::Launch;
use crate::record::LoggedRun;
#[cfg(feature = "mpi")]
use crate::under_mpi;

#[derive(Debug, clap::Args)]
#[command(
    after_help = codecs_help(),
    group(ArgGroup::new("computing").args(["compute_ms", "run"]).required(true)),
    group(ArgGroup::new("model").args(["params", "input", "costs", "run"]).required(true).multiple(true)),
)]
pub(super) struct AdviseArgs {
    /// Parameters of the model, such as 25M, 7B or 2.5e7 (k, M and B or G are powers of 1000). The gradient
    /// to measure is then drawn at random, with a heavy tail; of more than 50M a part is measured. Give one
    /// of --params, --input, --costs and --run
    #[arg(long, value_name = "N", value_parser = count)]
    params: Option<NonZeroUsize>,
    /// Gradient of the model to measure: a safetensors file, as for `codec bench`
    #[arg(long, value_name = "FILE", conflicts_with = "params")]
    input: Option<PathBuf>,
    /// Costs of codecs, from a file that --save-costs wrote. Nothing is measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["params", "input", "side_by_side", "iters"])]
    costs: Option<PathBuf>,
    /// Codecs to choose from. With --costs, among those of the file, and all of them by default
    #[arg(long, value_name = "SPEC", num_args = 1.., default_values = DEFAULT_CODECS,
        default_value_if("costs", ArgPredicate::IsPresent, None))]
    codec: Vec<String>,
    /// Optimizer of the training. Codecs with which it trains worse are left out [default: that of --run, or
    /// sgd]
    #[arg(long, value_name = "KIND", value_enum)]
    optimizer: Option<OptimizerKind>,
    /// Milliseconds that a step computes: forward, backward, optimizer, without any exchange; above 0
    #[arg(long, value_name = "X", value_parser = positive)]
    compute_ms: Option<f64>,
    /// Folder of a run of your model, without --delayed. The median over its steps takes the place of
    /// --compute-ms, and its parameters that of --params
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Numbers of workers, such as 4,16,64 [default: 2,4,8,16,64,256,1024,4096; under mpirun, its processes]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    workers: Vec<NonZeroUsize>,
    /// Rates of each worker's link in Gbit/s, above 0 [default: 0.01,0.1,1,10,25,100,400; under mpirun, as
    /// measured between its processes]
    #[arg(long, value_name = "X", value_delimiter = ',', value_parser = positive)]
    gbps: Vec<f64>,
    /// Latency of a link: microseconds from sending an empty message to receiving it, at least 0 [default:
    /// 50; under mpirun, as measured]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    latency_us: Option<f64>,
    /// Bytes that a link passes at once after a pause, before its rate counts: the depth of a token bucket,
    /// at least 0 [default: 0; under mpirun, as measured]
    #[arg(long, value_name = "N", value_parser = not_negative)]
    burst_bytes: Option<f64>,
    /// Buckets in which a framework sends the gradient. All but the last travel during the backward pass, so
    /// with 1 nothing overlaps
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
    buckets: NonZeroU32,
    /// Factor by which an exchange that overlaps the backward pass lengthens it, at least 1
    #[arg(long, value_name = "X", value_parser = at_least_one, default_value_t = 1.0)]
    slowdown: f64,
    /// Folder of the same run as --run, but with --delayed, in which gradients travel while the next ones are
    /// computed. How much longer its steps compute takes the place of --slowdown
    #[arg(long, value_name = "DIR", requires = "run", conflicts_with = "slowdown")]
    overlapped: Option<PathBuf>,
    /// Least gain for which a codec is named: per cent by which it shortens a step, 0 to below 100
    #[arg(long, value_name = "X", value_parser = per_cent, default_value_t = 5.0)]
    least_gain: f64,
    /// Least cosine of the angle between a gradient and what is decoded of it, without error feedback, for
    /// which a codec is named: above 0 to 1. Gradients differ: see the costs that are shown
    #[arg(long, value_name = "X", value_parser = cosine)]
    least_cosine: Option<f64>,
    /// Rate in Gbit/s at which dense gradients are summed and converted to bf16, above 0, for gradients on a
    /// GPU [default: as measured on this processor]
    #[arg(long, value_name = "X", value_parser = positive)]
    dense_sum_gbps: Option<f64>,
    /// Rate in Gbit/s at which a gradient comes from a GPU to the codec, and its mean goes back, above 0
    /// [default: no copies]
    #[arg(long, value_name = "X", value_parser = positive)]
    copy_gbps: Option<f64>,
    /// Workers that share one machine. So many threads are measured at the same time
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    side_by_side: NonZeroUsize,
    /// Times that each codec is measured in each of three rounds. The median of a round counts, and the least
    /// of the rounds
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERS)]
    iters: NonZeroU32,
    /// Write the costs of the codecs to a file, for --costs
    #[arg(long, value_name = "FILE")]
    save_costs: Option<PathBuf>,
    /// Draw the answers as a map of workers by bandwidth
    #[arg(long, value_name = "FILE.svg")]
    heat_map: Option<PathBuf>,
    /// Overwrite these files if they exist
    #[arg(long)]
    force: bool,
    /// Write JSON lines instead of tables: an object for each number of workers on each link
    #[arg(long)]
    json: bool,
}

/// Codecs that are tried if the user names none.
const DEFAULT_CODECS: [&str; 7] = [
    "topk:density=0.01",
    "topk:density=0.001",
    "topk:density=0.001,values=q4",
    "qsgd:bits=4",
    "efsign",
    "randomk:density=0.01",
    "powersgd:rank=2",
];
const DEFAULT_WORKERS: [usize; 8] = [2, 4, 8, 16, 64, 256, 1024, 4096];
const DEFAULT_GBPS: [f64; 7] = [0.01, 0.1, 1.0, 10.0, 25.0, 100.0, 400.0];
const DEFAULT_LATENCY_S: f64 = 50e-6;
const DEFAULT_ITERS: NonZeroU32 = NonZeroU32::new(9).unwrap();

/// What options or recorded runs say of the model.
struct Model {
    /// As given, or as a run recorded them.
    params: Option<NonZeroUsize>,
    compute_ms: f64,
    slowdown: f64,
    optimizer: OptimizerKind,
}

pub(super) fn advise(args: &AdviseArgs, out: &mut impl Write) -> Result<(), Failure> {
    ensure_outputs(args)?;
    let model = model(args)?;
    #[cfg(not(feature = "mpi"))]
    if let Some(launch) = Launch::detect()? {
        return Err(Failure::Usage(format!("{launch}; {WITHOUT_MPI}, or start it without {}", launch.by)));
    }
    #[cfg(feature = "mpi")]
    if let Some(launch) = Launch::detect()?.filter(|launch| launch.world > 1) {
        return under_mpi::measure(launch, |transport| {
            let world = transport.membership().world();
            let costs = costs(args, &model)?;
            let link = link::measure(transport, costs.dense.bytes)
                .map_err(|error| Failure::Usage(error.to_string()))?;
            if transport.rank() != Rank(0) {
                Ok(())
            } else {
                answer(args, &model, &costs, link.map(|link| (world, link)), out)
            }
        });
    }
    answer(args, &model, &costs(args, &model)?, None, out)
}

/// Neither result may take the place of a file that is read, or of the other one.
fn ensure_outputs(args: &AdviseArgs) -> Result<(), Failure> {
    let runs = [&args.run, &args.overlapped].into_iter().flatten().flat_map(|path| LoggedRun::files(path));
    let mut read: Vec<PathBuf> =
        [&args.input, &args.costs].into_iter().flatten().cloned().chain(runs).collect();
    for path in [&args.save_costs, &args.heat_map].into_iter().flatten() {
        let inputs: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
        ensure_output(path, args.force, &inputs).map_err(|error| Failure::of_file(path, error))?;
        read.push(path.clone());
    }
    Ok(())
}

fn model(args: &AdviseArgs) -> Result<Model, Failure> {
    let mut model = Model {
        params: args.params,
        compute_ms: args.compute_ms.unwrap_or(0.0),
        slowdown: args.slowdown,
        optimizer: args.optimizer.unwrap_or(OptimizerKind::Sgd),
    };
    if let Some(path) = &args.run {
        let run = LoggedRun::read(path)?;
        model.compute_ms = recorded::compute_ms(path, &run)?;
        model.optimizer = args.optimizer.or(run.optimizer).unwrap_or(model.optimizer);
        if args.input.is_none() && args.costs.is_none() {
            model.params = NonZeroUsize::new(recorded::params(args.params, path, &run)?);
        }
    }
    if let Some(path) = &args.overlapped {
        let slower = recorded::compute_ms(path, &LoggedRun::read(path)?)?;
        // Less than 1 is what repeats differ by.
        model.slowdown = (slower / model.compute_ms).max(1.0);
    }
    Ok(model)
}

/// Says what follows from the costs, on the links that were measured between so many workers, or given.
fn answer(
    args: &AdviseArgs,
    model: &Model,
    costs: &Costs,
    measured: Option<(usize, Link)>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let Some(path) = &args.save_costs {
        let text = serde_json::to_string_pretty(costs).map_err(io::Error::from)?;
        write_file(path, &(text + "\n"))?;
    }
    let question = question(args, model, measured);
    let costs = costs.clone().for_optimizer(model.optimizer);
    let costs = &match args.dense_sum_gbps {
        Some(gbps) => costs.with_dense_sum(gbps),
        None => costs,
    };
    let advice = Advice::of(costs, &question);
    if let Some(path) = &args.heat_map {
        write_file(path, &heat_map(&question, &advice))?;
    }
    if args.json {
        return Ok(advice.cells.iter().try_for_each(|cell| {
            let line = serde_json::to_string(cell)?;
            writeln!(out, "{line}")
        })?);
    }
    Ok(show(costs, &question, &advice, out)?)
}

fn question(args: &AdviseArgs, model: &Model, measured: Option<(usize, Link)>) -> Question {
    let workers: Vec<usize> = args.workers.iter().map(|workers| workers.get()).collect();
    let (usual_workers, usual_gbps) = match measured {
        Some((world, link)) => (vec![world], vec![8e-9 * link.bytes_per_s]),
        None => (DEFAULT_WORKERS.to_vec(), DEFAULT_GBPS.to_vec()),
    };
    let usual = measured.map_or(Link::from_gbps(1.0, DEFAULT_LATENCY_S), |(_, link)| link);
    Question {
        workers: if workers.is_empty() { usual_workers } else { workers },
        gbps: if args.gbps.is_empty() { usual_gbps } else { args.gbps.clone() },
        latency_s: args.latency_us.map_or(usual.latency_s, |latency_us| 1e-6 * latency_us),
        burst_bytes: args.burst_bytes.unwrap_or(usual.burst_bytes),
        compute_s: model.compute_ms / 1e3,
        overlap: Overlap { buckets: args.buckets.get(), slowdown: model.slowdown },
        least_gain: args.least_gain / 100.0,
        least_cosine: args.least_cosine,
        optimizer: model.optimizer,
        copy_gbps: args.copy_gbps,
    }
}

/// Read from a file, or measured.
fn costs(args: &AdviseArgs, model: &Model) -> Result<Costs, Failure> {
    if let Some(path) = &args.costs {
        let text = read_text(path).map_err(|error| Failure::of_file(path, error))?;
        let costs = serde_json::from_str(&text).map_err(|error| {
            Failure::of_file(path, format!("not a file of costs: {}", json_fault(&text, &error)))
        })?;
        return if args.codec.is_empty() { Ok(costs) } else { narrowed(costs, path, &args.codec) };
    }
    let params = model.params.map_or(0, NonZeroUsize::get);
    let gradient = match &args.input {
        Some(path) => Gradient::read_filled(path)?,
        None => Gradient::drawn(params.min(LONGEST_DRAWN))?,
    };
    let costs = Costs::measure(&gradient, &args.codec, args.side_by_side.get(), args.iters.get())?;
    let is_part = args.input.is_none() && params > LONGEST_DRAWN;
    Ok(if is_part { costs.scaled_to(params) } else { costs })
}

/// Only these codecs, in this order. Dense is in every file and not listed twice.
fn narrowed(costs: Costs, path: &Path, spellings: &[String]) -> Result<Costs, Failure> {
    let mut codecs = Vec::new();
    for spelling in spellings {
        let codec = parse_spec(spelling)?.to_string();
        match costs.codecs.iter().find(|cost| cost.codec == codec || cost.codec == *spelling) {
            Some(cost) => codecs.push(cost.clone()),
            None if codec == costs.dense.codec => {}
            None => {
                let held: Vec<&str> = costs.codecs.iter().map(|cost| cost.codec.as_str()).collect();
                let what = format!("has no costs of {codec}, but of {}", held.join(" "));
                return Err(Failure::of_file(path, what));
            }
        }
    }
    Ok(Costs { codecs, failed: Vec::new(), ..costs })
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    files::write(path, |file| file.write_all(text.as_bytes())).map_err(|error| Failure::of_file(path, error))
}
