//! What a run is to do: settings as the user gives them, and the complete configuration that follows from
//! them.
//!
//! [`Settings`] is filled by the command line and by `--config run.toml` alike; [`RunConfig::resolve`] checks
//! it, fills in what was left out, and gives the configuration that a run echoes as `config.toml`. Reading
//! that file again gives the same run.

mod adapt;
mod check;
mod error;
pub(crate) mod link_rate;

use std::path::{Path, PathBuf};

use gradwire::Spec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use error::ConfigError;

/// What the user said, and nothing more. Keys of a file have underscores, options of the command line dashes;
/// an option with underscores is read too.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Run settings (each is also a key of the TOML file, with _ for -)")]
pub struct Settings {
    /// Data set: optdigits, tiny-shakespeare (both shipped), mnist, fashion-mnist, cifar-10, ptb, wikitext-2,
    /// text, characters
    #[arg(long, value_name = "NAME")]
    pub data: Option<String>,
    /// Folder with the files of a data set that is not shipped, or the one around it
    #[arg(long = "data-dir", alias = "data_dir", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Model: mlp, cnn or resnet20 for images, gpt or lstm for text [default: mlp or gpt]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Widths of the mlp's inner layers, such as 512,256 [default: to suit the data]; one width for lstm
    /// [default: 100]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub hidden: Option<Vec<usize>>,
    /// Tokens through which the gradient of lstm flows back [default: 35]
    #[arg(long, value_name = "N")]
    pub bptt: Option<usize>,
    /// Share of the values that lstm drops in training, 0 to below 1 [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub dropout: Option<f64>,
    /// Whether resnet20 moves and mirrors its training images at random [default: true for cifar-10]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub augment: Option<bool>,
    /// How workers agree: auto, all-gather, sparse, all-reduce (around a ring), tree, server; native is the
    /// all-reduce of the MPI library; gossip goes with codec dpsgd [default: auto]
    #[arg(long, value_name = "KIND")]
    pub exchange: Option<String>,
    /// Who are neighbours in gossip: ring, torus, complete [default: ring]
    #[arg(long, value_name = "KIND")]
    pub topology: Option<String>,
    /// What an f32 takes on its way in all-reduce, tree and native: f32, bf16 [default: f32]
    #[arg(long, value_name = "KIND")]
    pub wire: Option<String>,
    /// Gbit/s between two workers. With it auto chooses between all-gather and sparse [default: all-gather],
    /// and a codec that does not say index= takes small or smallest where the bits that they save take longer
    /// than the coding [default: auto]
    #[arg(long = "link-gbps", alias = "link_gbps", value_name = "X", allow_negative_numbers = true)]
    pub link_gbps: Option<f64>,
    /// Microseconds that an empty message takes from worker to worker, for auto with --link-gbps [default:
    /// 50]
    #[arg(
        long = "link-latency-us",
        alias = "link_latency_us",
        value_name = "X",
        allow_negative_numbers = true
    )]
    pub link_latency_us: Option<f64>,
    /// Send the gradient of each step while that of the next is computed, and apply their mean one step late
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub delayed: Option<bool>,
    /// Parts that a step of all-gather, sparse or all-reduce is cut into, between tensors of a codec with
    /// unit=tensor: while one travels the next is encoded, and the mean is the same [default: 1]
    #[arg(long, value_name = "N")]
    pub pipeline: Option<usize>,
    /// What carries the bytes: local, which is threads of this process, or mpi [default: mpi under mpirun,
    /// else local]
    #[arg(long, value_name = "KIND")]
    pub transport: Option<String>,
    /// Seconds for which a worker may leave the others waiting before an MPI job is ended [default: 300]
    #[arg(skip)]
    pub patience: Option<u64>,
    /// Number of workers [default: 4, or the processes that mpirun started]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Examples per step of all workers together [default: 128]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Parts that each worker cuts its share of a batch into, one after the other: the gradient is their
    /// mean, and the memory that a step needs that of one part [default: 1]
    #[arg(long, value_name = "N")]
    pub accumulate: Option<usize>,
    /// How often the training data is gone through [default: 20, unless steps are given]
    #[arg(long, value_name = "N")]
    pub epochs: Option<u64>,
    /// Number of steps, instead of epochs
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// sgd or adamw [default: sgd]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Momentum of sgd, on the mean of all workers [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// Nesterov's form of the momentum
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub nesterov: Option<bool>,
    /// Weight decay [default: 0, or 0.01 for adamw]
    #[arg(long = "weight-decay", alias = "weight_decay", value_name = "X", allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Learning rate [default: 0.3 for mlp (0.05 on cifar-10), 0.1 for cnn, resnet20 and gpt, 4 for lstm;
    /// 0.003 for adamw (0.001 for mlp on cifar-10)]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// What the rate does after the warm-up: constant, cosine, step [default: constant]
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<String>,
    /// Steps in which the rate rises to its full height [default: 0]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Steps between two drops of schedule=step
    #[arg(long = "decay-every", alias = "decay_every", value_name = "N")]
    pub decay_every: Option<u64>,
    /// What schedule=step multiplies the rate by [default: 0.1]
    #[arg(long = "decay-factor", alias = "decay_factor", value_name = "X", allow_negative_numbers = true)]
    pub decay_factor: Option<f64>,
    /// Seed of weights, order of the data and codecs [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Steps between two evaluations; 0: only at the end [default: 50]
    #[arg(long = "eval-every", alias = "eval_every", value_name = "N")]
    pub eval_every: Option<u64>,
    /// End the run after so many evaluations in a row without a smaller validation loss; the results are
    /// those of the parameters that had the smallest [default: train all steps]
    #[arg(long = "early-stop", alias = "early_stop", value_name = "N")]
    pub early_stop: Option<u64>,
    /// Steps between two comparisons of all replicas; 0: only at the end [default: 50]
    #[arg(long = "hash-every", alias = "hash_every", value_name = "N")]
    pub hash_every: Option<u64>,
    /// Steps between two checkpoints, the last of which is at the end; 0: only when interrupted [default: 100
    /// for train, 0 for compare]
    #[arg(long = "checkpoint-every", alias = "checkpoint_every", value_name = "N")]
    pub checkpoint_every: Option<u64>,
    /// Write every step for TensorBoard too, into events.out.tfevents.gradwire beside metrics.jsonl
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub tensorboard: Option<bool>,
    /// Share of the packets (max_packet_bytes) that is lost on the way, by seed, between the threads of one
    /// process: what a bad link does to training [default: 0]
    #[arg(long = "packet-loss", alias = "packet_loss", value_name = "P", allow_negative_numbers = true)]
    pub packet_loss: Option<f64>,
    /// What sets the density of each step in place of the codec: steps:0=0.1,500=0.01; epochs:0=0.1,4=0.01;
    /// gravac:min=10,max=1000,eps=0.7,omega=0.01,window=500,policy=exponential;
    /// accordion:low=0.1,high=0.01,eta=0.5,window=10; replay:FILE, the metrics.jsonl of another run
    /// [default: the codec's density]
    #[arg(long, value_name = "SPEC")]
    pub adapt: Option<String>,
    /// Largest norm of a worker's gradient before it is compressed [default: no limit]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub clip: Option<f64>,
    /// Largest norm of the mean of all gradients, after the exchange and before the optimizer; the same at
    /// every worker [default: no limit]
    #[arg(long = "clip-mean", alias = "clip_mean", value_name = "X", allow_negative_numbers = true)]
    pub clip_mean: Option<f64>,
    /// Codec, such as none, topk:density=0.01, qsgd:bits=4; `compare` takes its own list instead
    #[arg(skip)]
    pub codec: Option<String>,
}

/// A complete and checked configuration. Serialised, it has the keys of [`Settings`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    /// Name of the data set.
    pub data: String,
    /// Folder of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Name of the model.
    pub model: String,
    /// Widths of the inner layers; for `mlp`, and one for `lstm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<Vec<usize>>,
    /// Tokens through which gradients flow back; for `lstm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bptt: Option<usize>,
    /// Share of the values that are dropped; for `lstm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Whether training images are moved and mirrored at random; for `resnet20`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub augment: Option<bool>,
    /// Spelling of the codec, as [`Spec`] prints it; beside `link_gbps` it keeps an `index=auto` that was
    /// asked for.
    pub codec: String,
    /// `auto`, `all-gather`, `sparse`, `all-reduce`, `tree`, `native`, `server` or `gossip`.
    pub exchange: String,
    /// `ring`, `torus` or `complete`; for gossip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// `f32` or `bf16`; for `all-reduce`, `tree` and `native`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// For `auto`, and for codecs that leave their index coder open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// For `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_latency_us: Option<f64>,
    /// Whether means are applied one step late; said where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed: Option<bool>,
    /// At most so many parts a step, which overlap; said where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<usize>,
    /// `local`, `mpi`, or for a server and its workers `zmq`
    pub transport: String,
    /// Seconds; for `mpi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// Number of workers.
    pub workers: usize,
    /// Examples per step of all workers together: a multiple of `workers`.
    pub batch: usize,
    /// Parts of a worker's share of the batch, one after the other; said where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// Passes over the training data; not with `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Number of steps; not with `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// `sgd` or `adamw`
    pub optimizer: String,
    /// Momentum; for `sgd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// Nesterov's form; for `sgd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Weight decay.
    pub weight_decay: f64,
    /// Learning rate.
    pub lr: f64,
    /// `constant`, `cosine` or `step`
    pub schedule: String,
    /// Steps of warm-up.
    pub warmup: u64,
    /// For `schedule=step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_every: Option<u64>,
    /// For `schedule=step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_factor: Option<f64>,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Steps between evaluations, 0 for none before the end.
    pub eval_every: u64,
    /// Evaluations without a smaller validation loss that end the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<u64>,
    /// Steps between comparisons of the replicas, 0 for none before the end.
    pub hash_every: u64,
    /// Steps between checkpoints, 0 for none but at an interrupt.
    pub checkpoint_every: u64,
    /// Whether there is an event file; said where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<bool>,
    /// Share of the packets that is lost on the way; for `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_loss: Option<f64>,
    /// What sets the density of each step, as [`Adapt`](crate::adapt::Adapt) prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapt: Option<String>,
    /// Largest norm of a worker's gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Largest norm of the mean of all gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_mean: Option<f64>,
}

/// Reads TOML; the error is the line and what is wrong with it.
pub(crate) fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let what = error.message().replace('\n', " ");
        line.map_or(what.clone(), |line| format!("line {line}: {what}"))
    })
}

/// Takes the first of two options for each of the named fields.
macro_rules! first_of {
    ($first:ident, $second:ident: $($field:ident)*) => {
        Settings { $($field: $first.$field.or($second.$field)),* }
    };
}

impl Settings {
    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`], with the line and the fault.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fault = |what: String| ConfigError::File { file: path.to_path_buf(), what };
        let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        Self::parse(&text).map_err(fault)
    }

    /// Reads the text of a TOML file.
    ///
    /// # Errors
    ///
    /// The line, and the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_toml(text)
    }

    /// These settings, with those of `below` for keys that are not set. Steps here replace epochs there, and
    /// the other way round.
    pub fn over(self, mut below: Self) -> Self {
        if self.epochs.is_some() || self.steps.is_some() {
            (below.epochs, below.steps) = (None, None);
        }
        first_of!(self, below: data data_dir model hidden bptt dropout augment exchange topology wire link_gbps link_latency_us delayed pipeline transport patience workers batch accumulate epochs steps optimizer momentum
            nesterov weight_decay lr schedule warmup decay_every decay_factor seed eval_every early_stop hash_every checkpoint_every tensorboard packet_loss
            adapt clip clip_mean codec)
    }
}

impl RunConfig {
    /// The codec.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Codec`] if the spelling is not one.
    pub fn spec(&self) -> Result<Spec, ConfigError> {
        Spec::parse(&self.codec)
            .map_err(|error| ConfigError::Codec { spelling: self.codec.clone(), what: error.to_string() })
    }

    /// Workers whose steps are recorded: all of them, or over the network only the server, to which the
    /// others report little.
    pub fn reporting_workers(&self) -> usize {
        if self.transport == "zmq" { 1 } else { self.workers }
    }

    /// Number of replicas that differ from each other: one a worker with gossip, otherwise a single one that
    /// all have.
    pub fn replicas(&self) -> usize {
        if self.topology.is_some() { self.workers } else { 1 }
    }

    /// Parts that a worker cuts its share of a batch into: at least 1.
    pub fn micro_batches(&self) -> usize {
        self.accumulate.unwrap_or(1)
    }

    /// Whether means are applied one step late.
    pub fn is_delayed(&self) -> bool {
        self.delayed == Some(true)
    }

    /// The content of `config.toml`.
    pub fn to_toml(&self) -> String {
        // Every field is a string, a number or a truth value, which TOML can hold.
        toml::to_string(self).unwrap_or_default()
    }
}
