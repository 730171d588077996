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
mod path;
mod rules;
mod written;

use std::path::{Path, PathBuf};

use gradwire::Spec;
use gradwire::rules::{Rule, Rules};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use adapt::adapted;
pub use error::ConfigError;
pub(crate) use rules::read as read_rules;

use crate::files::{read_text, toml_hint};
use crate::nearest::field_text;

/// Headings of the settings in the help of a command.
const DATA: &str = "Data and model";
const EXCHANGE: &str = "Exchange of gradients";
const LENGTH: &str = "Workers, batch, length and seed";
const OPTIMIZER: &str = "Optimizer and learning rate";
const RECORDS: &str = "Evaluations and files";

/// What the user said, and nothing more. Keys of a file have underscores, options of the command line dashes;
/// an option with underscores is read too.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Data set. Shipped: optdigits, tiny-shakespeare. Read from --data-dir: mnist, fashion-mnist, cifar-10,
    /// ptb, wikitext-2, text, characters [default: optdigits]
    #[arg(long, value_name = "NAME", help_heading = DATA)]
    pub data: Option<String>,
    /// Folder with the files of a data set that is not shipped, or a folder above it
    #[arg(long = "data-dir", alias = "data_dir", value_name = "DIR", help_heading = DATA)]
    #[serde(default, with = "path")]
    pub data_dir: Option<PathBuf>,
    /// CRC-32 of the data that was read from data_dir: a run continues with the same data only
    #[arg(skip)]
    pub data_crc32: Option<String>,
    /// Model. For images: mlp, cnn, resnet20. For text: gpt, lstm [default: mlp or gpt]
    #[arg(long, value_name = "NAME", help_heading = DATA)]
    pub model: Option<String>,
    /// Width of each inner layer of mlp, such as 512,256; 1 to 65536 [default: 512,256 for images of more
    /// than 256 values, otherwise 128]. For lstm one width, 1 to 4096, for all its layers [default: 100]. For
    /// gpt the same width for each block, such as 256,256,256,256; a multiple of 4 [default: 64,64]
    #[arg(long, value_name = "N,N", value_delimiter = ',', help_heading = DATA)]
    pub hidden: Option<Vec<usize>>,
    /// Tokens through which the gradient of lstm flows back, 1 to 4096 [default: 35]
    #[arg(long, value_name = "N", help_heading = DATA)]
    pub bptt: Option<usize>,
    /// Fraction of the values that lstm drops in training, 0 to below 1 [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = DATA)]
    pub dropout: Option<f64>,
    /// Shift and mirror the training images of resnet20 at random [default: true for cifar-10, otherwise
    /// false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = DATA)]
    pub augment: Option<bool>,
    /// How the workers' gradients become one mean: auto, all-gather, sparse, all-reduce (around a ring),
    /// tree, owners (each worker sums a part and sends it to all), server, or native (the all-reduce of the
    /// MPI library). auto takes server for packets, all-reduce if the codec's payloads can be summed,
    /// otherwise all-gather. Codec dpsgd makes no mean and uses gossip [default: auto]
    #[arg(long, value_name = "KIND", help_heading = EXCHANGE)]
    pub exchange: Option<String>,
    /// Which workers are neighbours in gossip: ring, torus, complete [default: ring]
    #[arg(long, value_name = "KIND", help_heading = EXCHANGE)]
    pub topology: Option<String>,
    /// How all-reduce, tree, owners and native send an f32: f32, bf16 [default: f32]
    #[arg(long, value_name = "KIND", help_heading = EXCHANGE)]
    pub wire: Option<String>,
    /// Rate of the link between two workers in Gbit/s, above 0. If given, exchange auto takes sparse instead
    /// of all-gather where that is faster. A codec that does not say index= then switches from auto to small
    /// or smallest when sending the extra bits would take longer than coding them [default: not given]
    #[arg(
        long = "link-gbps",
        alias = "link_gbps",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = EXCHANGE
    )]
    pub link_gbps: Option<f64>,
    /// Time of an empty message on that link in microseconds, at least 0. Needs --link-gbps [default: 50]
    #[arg(
        long = "link-latency-us",
        alias = "link_latency_us",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = EXCHANGE
    )]
    pub link_latency_us: Option<f64>,
    /// Apply each mean one step late, so that it travels while the next gradient is computed [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = EXCHANGE
    )]
    pub delayed: Option<bool>,
    /// Cut a step of all-gather, sparse or all-reduce into at most N parts, at least 1. The next part is
    /// encoded while one travels; the mean stays the same. Cuts lie between tensors, so give the codec
    /// unit=tensor [default: 1]
    #[arg(long, value_name = "N", help_heading = EXCHANGE)]
    pub pipeline: Option<usize>,
    /// What carries the bytes: local (threads of this process) or mpi [default: mpi under mpirun, otherwise
    /// local]
    #[arg(long, value_name = "KIND", help_heading = EXCHANGE)]
    pub transport: Option<String>,
    /// Seconds for which a worker may leave the others waiting before an MPI job is ended [default: 300]
    #[arg(skip)]
    pub patience: Option<u64>,
    /// Number of workers, 1 to 256 [default: 4; under mpirun the processes that it started]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub workers: Option<usize>,
    /// Examples of a step, over all workers: a multiple of --workers [default: 128]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub batch: Option<usize>,
    /// Cut each worker's share of a batch into N equal parts, compute their gradients one after the other,
    /// and send the mean. A step then needs the memory of one part [default: 1]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub accumulate: Option<usize>,
    /// Let each worker take N steps alone, with a batch each, before all exchange how far these led; at least
    /// 2. All that counts steps then counts exchanges [default: exchange after every batch]
    #[arg(long = "local-steps", alias = "local_steps", value_name = "N", help_heading = LENGTH)]
    pub local_steps: Option<u64>,
    /// Passes over the training data, at least 1 [default: 20, unless --steps is given]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub epochs: Option<u64>,
    /// Number of steps, at least 1; instead of --epochs
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub steps: Option<u64>,
    /// Optimizer: sgd, adamw, or adamw-updates, in which each worker has moments of its own, and codecs
    /// compress the updates instead of the gradients [default: sgd]
    #[arg(long, value_name = "NAME", help_heading = OPTIMIZER)]
    pub optimizer: Option<String>,
    /// Momentum of sgd, applied to the mean of all workers, 0 to below 1 [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub momentum: Option<f64>,
    /// Use Nesterov's form of the momentum. Needs --momentum [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = OPTIMIZER
    )]
    pub nesterov: Option<bool>,
    /// Rate at which the mean of what local steps led to is applied, above 0. Needs --local-steps [default:
    /// 1]
    #[arg(
        long = "outer-lr",
        alias = "outer_lr",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub outer_lr: Option<f64>,
    /// Nesterov's momentum of that mean, 0 to below 1. Needs --local-steps [default: 0]
    #[arg(
        long = "outer-momentum",
        alias = "outer_momentum",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub outer_momentum: Option<f64>,
    /// Share of the residual that is kept from one exchange of local steps to the next, above 0, at most 1.
    /// Needs --local-steps [default: 1]
    #[arg(
        long = "residual-decay",
        alias = "residual_decay",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub residual_decay: Option<f64>,
    /// Share of the mean square that adamw and adamw-updates keep, at least 0, below 1 [default: 0.999]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub beta2: Option<f64>,
    /// Weight decay, at least 0: added to the gradient in sgd, decoupled in adamw and adamw-updates [default:
    /// 0, or 0.01 where it is decoupled]
    #[arg(
        long = "weight-decay",
        alias = "weight_decay",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub weight_decay: Option<f64>,
    /// Learning rate, above 0 [default with sgd: 0.3 for mlp (0.05 on cifar-10), 0.1 for cnn, resnet20 and
    /// gpt, 4 for lstm; with adamw, adamw-updates: 0.003 (0.001 for mlp on cifar-10)]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub lr: Option<f64>,
    /// Learning rate after the warm-up: constant, cosine (down to 0 at the last step), step (drops every
    /// --decay-every steps) [default: constant]
    #[arg(long, value_name = "KIND", help_heading = OPTIMIZER)]
    pub schedule: Option<String>,
    /// Steps in which the learning rate rises to its full value [default: 0]
    #[arg(long, value_name = "N", help_heading = OPTIMIZER)]
    pub warmup: Option<u64>,
    /// Steps between two drops of --schedule step, which needs it; at least 1
    #[arg(long = "decay-every", alias = "decay_every", value_name = "N", help_heading = OPTIMIZER)]
    pub decay_every: Option<u64>,
    /// Factor of the learning rate at each drop of --schedule step, above 0, at most 1 [default: 0.1]
    #[arg(
        long = "decay-factor",
        alias = "decay_factor",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub decay_factor: Option<f64>,
    /// Seed of every random draw: initial weights, order of the data, codecs [default: 1]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    pub seed: Option<u64>,
    /// Steps between two evaluations; 0 evaluates only at the end [default: 50]
    #[arg(long = "eval-every", alias = "eval_every", value_name = "N", help_heading = RECORDS)]
    pub eval_every: Option<u64>,
    /// End the run after N evaluations in a row without a smaller validation loss, at least 1. The results
    /// are those of the parameters that had the smallest [default: train all steps]
    #[arg(long = "early-stop", alias = "early_stop", value_name = "N", help_heading = RECORDS)]
    pub early_stop: Option<u64>,
    /// Steps between two checks that the parameters of all workers agree; 0 checks only at the end [default:
    /// 50]
    #[arg(long = "hash-every", alias = "hash_every", value_name = "N", help_heading = RECORDS)]
    pub hash_every: Option<u64>,
    /// Steps between two checkpoints. The last one is at the end. 0 writes one only if the run is interrupted
    /// [default: 100, or 0 for compare]
    #[arg(long = "checkpoint-every", alias = "checkpoint_every", value_name = "N", help_heading = RECORDS)]
    pub checkpoint_every: Option<u64>,
    /// Also write every step for TensorBoard, into events.out.tfevents.gradwire beside metrics.jsonl
    /// [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = RECORDS
    )]
    pub tensorboard: Option<bool>,
    /// Fraction of the packets that are lost on the way, drawn from the seed, 0 to 1. It shows what a lossy
    /// link does to training. Needs max_packet_bytes in the codec, and transport local [default: 0]
    #[arg(
        long = "packet-loss",
        alias = "packet_loss",
        value_name = "P",
        allow_negative_numbers = true,
        help_heading = EXCHANGE
    )]
    pub packet_loss: Option<f64>,
    /// What sets the density of each step in place of the codec: steps:0=0.1,500=0.01; epochs:0=0.1,4=0.01;
    /// layers:*.bias=1,*=0.01; loss:inf=0.1,3=0.01;
    /// gravac:min=10,max=1000,eps=0.7,omega=0.01,window=500,policy=exponential;
    /// accordion:low=0.1,high=0.01,eta=0.5,window=10,by=layer, with powersgd low=4,high=1 for its ranks;
    /// replay:FILE, the metrics.jsonl of another run [default: the codec's density]
    #[arg(long, value_name = "SPEC", help_heading = EXCHANGE)]
    pub adapt: Option<String>,
    /// Largest norm of a worker's gradient, above 0. A longer gradient is scaled down to it before it is
    /// compressed [default: no limit]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub clip: Option<f64>,
    /// Largest norm of the mean of all gradients, above 0. A longer mean is scaled down to it after the
    /// exchange, alike at every worker [default: no limit]
    #[arg(
        long = "clip-mean",
        alias = "clip_mean",
        value_name = "X",
        allow_negative_numbers = true,
        help_heading = OPTIMIZER
    )]
    pub clip_mean: Option<f64>,
    /// Codec, such as none, topk:density=0.01, qsgd:bits=4; `compare` takes its own list instead
    #[arg(skip)]
    pub codec: Option<String>,
    /// Rules by tensor name in place of the codec, such as '*.bias=none; topk:density=0.01', or a file with
    /// them
    #[arg(skip)]
    pub rules: Option<String>,
}

/// A complete and checked configuration. Serialised, it has the keys of [`Settings`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    /// Name of the data set.
    pub data: String,
    /// Folder of its files.
    #[serde(with = "path", skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// [`Dataset::crc32`](crate::data::Dataset::crc32) of what was read there, once it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_crc32: Option<String>,
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
    /// asked for. With rules, that of the last one.
    pub codec: String,
    /// Rules by tensor name, as [`Rules`] prints them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<String>,
    /// `auto`, `all-gather`, `sparse`, `all-reduce`, `tree`, `owners`, `native`, `server`
    /// or `gossip`.
    pub exchange: String,
    /// `ring`, `torus` or `complete`; for gossip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// `f32` or `bf16`; for `all-reduce`, `tree`, `owners` and `native`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// For `auto`, and for codecs that leave their index coder open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// For `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_latency_us: Option<f64>,
    /// Whether means are applied one step late; `None` if the user did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed: Option<bool>,
    /// A step is cut into at most this many parts, which overlap; `None` if the user did not say.
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
    /// Parts of a worker's share of the batch, one after the other; `None` if the user did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// Steps that each worker takes between two exchanges; `None` if the user did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_steps: Option<u64>,
    /// Passes over the training data; not with `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Number of steps; not with `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// `sgd`, `adamw` or `adamw-updates`
    pub optimizer: String,
    /// Momentum; for `sgd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// Nesterov's form; for `sgd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Rate of the mean of local steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_lr: Option<f64>,
    /// Nesterov's momentum of that mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_momentum: Option<f64>,
    /// Share of the residual that is kept from one exchange of local steps to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_decay: Option<f64>,
    /// Share of the mean square that is kept; for `adamw` and `adamw-updates`; `None` if the user did not
    /// say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,
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
    /// Whether there is an event file; `None` if the user did not say.
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
        let hint = line.and_then(|line| toml_hint(text.lines().nth(line - 1)?));
        let what = hint.unwrap_or_else(|| field_text(&error.message().replace('\n', " ")));
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
    /// Whether a setting has this name.
    pub(crate) fn has(name: &str) -> bool {
        let command = <Self as clap::Args>::augment_args(clap::Command::new("settings"));
        command.get_arguments().any(|argument| argument.get_id() == name)
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`], with the line and the fault.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fault = |what: String| ConfigError::File { file: path.to_path_buf(), what };
        Self::parse(&read_text(path).map_err(fault)?).map_err(fault)
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
    /// rules a codec, and the other way round. The checksum of other data is not kept.
    pub fn over(self, mut below: Self) -> Self {
        if self.epochs.is_some() || self.steps.is_some() {
            (below.epochs, below.steps) = (None, None);
        }
        if self.codec.is_some() || self.rules.is_some() {
            (below.codec, below.rules) = (None, None);
        }
        if self.data.is_some() || self.data_dir.is_some() {
            below.data_crc32 = None;
        }
        first_of!(self, below: data data_dir data_crc32 model hidden bptt dropout augment exchange topology wire link_gbps link_latency_us delayed pipeline transport patience workers batch accumulate local_steps epochs steps optimizer momentum
            nesterov outer_lr outer_momentum residual_decay beta2 weight_decay lr schedule warmup decay_every decay_factor seed eval_every early_stop hash_every checkpoint_every tensorboard packet_loss
            adapt clip clip_mean codec rules)
    }
}

impl RunConfig {
    /// The codec; with rules, that of the last one, which is for all tensors that no other fits.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Codec`] if the spelling is not one.
    pub fn spec(&self) -> Result<Spec, ConfigError> {
        Spec::parse(&self.codec)
            .map_err(|error| ConfigError::Codec { spelling: self.codec.clone(), what: error.to_string() })
    }

    /// How the tensors are sent: by rules, or all of them by the codec.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Rules`] or [`ConfigError::Codec`] if the text is not one.
    pub fn rules(&self) -> Result<Rules, ConfigError> {
        match &self.rules {
            Some(text) => rules::parse(text),
            None => Ok(self.spec()?.into()),
        }
    }

    /// How the tensors are sent, as the user spells it.
    pub fn encoding(&self) -> &str {
        self.rules.as_deref().unwrap_or(&self.codec)
    }

    /// What all tensors are encoded with, a spelling for each rule.
    pub(crate) fn specs(&self) -> Result<Vec<Spec>, ConfigError> {
        Ok(self.rules()?.rules().iter().map(Rule::spec).copied().collect())
    }

    /// Workers whose steps are recorded: all of them, or over the network only the server, to which the
    /// others report little.
    pub fn reporting_workers(&self) -> usize {
        if self.comes_and_goes() { 1 } else { self.workers }
    }

    /// Whether workers come and go during the run, as they do over the network.
    pub fn comes_and_goes(&self) -> bool {
        self.transport == "zmq"
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

    /// Batches that each worker trains on between two exchanges: at least 1.
    pub fn batches_per_step(&self) -> u64 {
        self.local_steps.unwrap_or(1)
    }

    /// Whether means are applied one step late.
    pub fn is_delayed(&self) -> bool {
        self.delayed == Some(true)
    }
}
