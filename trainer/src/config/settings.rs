//! Every setting, with its help and its default.

use std::path::{Path, PathBuf};

use gradwire::Spec;
use gradwire::rules::Rules;

use super::codec::RunCodec;
use super::error::ConfigError;
use super::fields::fields;
use super::kinds::{ExchangeKind, OptimizerKind, ScheduleKind, TopologyKind, TransportKind, WireKind};
use super::path;
use super::text::{parse_toml, spelled};
use crate::adapt::Adapt;
use crate::data::Source;
use crate::files::read_text;
use crate::model::ModelKind;

/// Headings of the settings in the help of a command.
const DATA: &str = "Data and model";
const EXCHANGE: &str = "Exchange of gradients";
const LENGTH: &str = "Workers, batch, length and seed";
const OPTIMIZER: &str = "Optimizer and learning rate";
const RECORDS: &str = "Evaluations and files";

fields! {
    /// Data set. Shipped: optdigits, tiny-shakespeare. Read from --data-dir: mnist, fashion-mnist, cifar-10,
    /// ptb, wikitext-2, text, characters [default: optdigits]
    #[arg(long, hide_possible_values = true, value_name = "NAME", help_heading = DATA)]
    always data: Source = |_| Source::Optdigits;
    /// Folder with the files of a data set that is not shipped, or a folder above it
    #[arg(long = "data-dir", alias = "data_dir", value_name = "DIR", help_heading = DATA)]
    #[serde(default, with = "path")]
    maybe data_dir: PathBuf;
    /// CRC-32 of the data that was read from data_dir: a run continues with the same data only
    #[arg(skip)]
    maybe data_crc32: String;
    /// Model. For images: mlp, cnn, resnet20. For text: gpt, lstm [default: mlp or gpt]
    #[arg(long, hide_possible_values = true, value_name = "NAME", help_heading = DATA)]
    always model: ModelKind = Settings::model_or_default;
    /// Width of each inner layer of mlp, such as 512,256; 1 to 65536 [default: 512,256 for images of more
    /// than 256 values, otherwise 128]. For lstm one width, 1 to 4096, for all its layers [default: 100]. For
    /// gpt the same width for each block, such as 256,256,256,256; a multiple of 4 [default: 64,64]
    #[arg(long, value_name = "N,N", value_delimiter = ',', help_heading = DATA)]
    maybe hidden: Vec<usize>;
    /// Tokens through which the gradient of lstm flows back, 1 to 4096 [default: 35]
    #[arg(long, value_name = "N", help_heading = DATA)]
    maybe bptt: usize;
    /// Fraction of the values that lstm drops in training, 0 to below 1 [default: 0]
    #[arg(long, value_name = "P", help_heading = DATA)]
    maybe dropout: f64;
    /// Shift and mirror the training images of resnet20 at random [default: true for cifar-10, otherwise
    /// false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = DATA)]
    maybe augment: bool = default_augment;
    /// Codec, such as none, topk:density=0.01, qsgd:bits=4; `compare` takes its own list instead
    #[arg(skip)]
    parsed codec: String => RunCodec;
    /// Rules by tensor name in place of the codec, such as '*.bias=none; topk:density=0.01', or a file with
    /// them
    #[arg(skip)]
    #[kept(serialize_with = "spelled")]
    parsed rules: String => Option<Rules>;
    /// How the workers' gradients become one mean: auto, all-gather, sparse, all-reduce (around a ring),
    /// tree, owners (each worker sums a part and sends it to all), server, or native (the all-reduce of the
    /// MPI library). auto takes server for packets, all-reduce if the codec's payloads can be summed,
    /// otherwise all-gather. Codecs dpsgd, powergossip and choco make no mean and use gossip [default: auto]
    #[arg(long, hide_possible_values = true, value_name = "KIND", help_heading = EXCHANGE)]
    always exchange: ExchangeKind = |_| ExchangeKind::Auto;
    /// Which workers are neighbours in gossip: ring, torus, complete, exponential [default: ring]
    #[arg(long, hide_possible_values = true, value_name = "KIND", help_heading = EXCHANGE)]
    parsed topology: TopologyKind => Option<TopologyKind>;
    /// How all-reduce, tree, owners and native send an f32: f32, bf16 [default: f32]
    #[arg(long, hide_possible_values = true, value_name = "KIND", help_heading = EXCHANGE)]
    maybe wire: WireKind;
    /// Codec of the mean that a server sends back. If it has error feedback, the server keeps the residual.
    /// none sends dense f32 [default: of serve and join, for sparse frames the coordinates of the mean that
    /// are not zero, without loss, otherwise the codec of the run; of a server in train, none]
    #[arg(long, value_name = "SPEC", help_heading = EXCHANGE)]
    #[kept(serialize_with = "spelled")]
    parsed downlink: String => Option<Spec>;
    /// Rate of the link between two workers in Gbit/s, above 0. If given, exchange auto takes sparse instead
    /// of all-gather where that is faster. A codec that does not say index= then switches from auto to small
    /// or smallest when sending the extra bits would take longer than coding them [default: not given]
    #[arg(
        long = "link-gbps",
        alias = "link_gbps",
        value_name = "X",
        help_heading = EXCHANGE
    )]
    maybe link_gbps: f64;
    /// Time of an empty message on that link in microseconds, at least 0. Needs --link-gbps [default: 50]
    #[arg(
        long = "link-latency-us",
        alias = "link_latency_us",
        value_name = "X",
        help_heading = EXCHANGE
    )]
    maybe link_latency_us: f64;
    /// Apply each mean one step late, so that it travels while the next gradient is computed [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = EXCHANGE
    )]
    maybe delayed: bool;
    /// Cut a step of all-gather, sparse or all-reduce into at most N parts, at least 1. The next part is
    /// encoded while one travels; the mean stays the same. Cuts lie between tensors, so give the codec
    /// unit=tensor [default: 1]
    #[arg(long, value_name = "N", help_heading = EXCHANGE)]
    maybe pipeline: usize;
    /// What carries the bytes: local (threads of this process), mpi, or tcp (a process for each rank, on
    /// several machines) [default: mpi under mpirun, otherwise local]
    #[arg(long, hide_possible_values = true, value_name = "KIND", help_heading = EXCHANGE)]
    always transport: TransportKind = |_| TransportKind::Local;
    /// Seconds for which a worker may leave the others waiting before an MPI job is ended [default: 300]
    #[arg(skip)]
    maybe patience: u64;
    /// Number of workers, 1 to 256 [default: 4; under mpirun the processes that it started]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    always workers: usize = |_| 4;
    /// Examples of a step, over all workers: a multiple of --workers [default: 128]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    always batch: usize = |_| 128;
    /// Cut each worker's share of a batch into N equal parts, compute their gradients one after the other,
    /// and send the mean. A step then needs the memory of one part [default: 1]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    maybe accumulate: usize;
    /// Let each worker take N steps alone, with a batch each, before all exchange how far these led; at least
    /// 2. All that counts steps then counts exchanges [default: exchange after every batch]
    #[arg(long = "local-steps", alias = "local_steps", value_name = "N", help_heading = LENGTH)]
    maybe local_steps: u64;
    /// Exchange N parts of the model in turn, each once in --local-steps batches, which are a multiple of N.
    /// All that counts steps then counts exchanges of one part [default: the whole model at once]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    maybe fragments: usize;
    /// Passes over the training data, at least 1 [default: 20, unless --steps is given]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    maybe epochs: u64 = |given| given.steps.is_none().then_some(20);
    /// Number of steps, at least 1; instead of --epochs
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    maybe steps: u64;
    /// Optimizer: sgd; adamw; adamw-updates, in which each worker has moments of its own, and codecs compress
    /// the updates instead of the gradients; or muon, which is adamw but for matrices between the first and
    /// the last layer [default: sgd]
    #[arg(long, hide_possible_values = true, value_name = "NAME", help_heading = OPTIMIZER)]
    always optimizer: OptimizerKind = |_| OptimizerKind::Sgd;
    /// Momentum of sgd, applied to the mean of all workers, 0 to below 1 [default: 0]
    #[arg(long, value_name = "X", help_heading = OPTIMIZER)]
    maybe momentum: f64 = |given| given.is_sgd().then_some(0.0);
    /// Use Nesterov's form of the momentum. Needs --momentum [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = OPTIMIZER
    )]
    maybe nesterov: bool = |given| given.is_sgd().then_some(false);
    /// Rate at which the mean of what local steps led to is applied, above 0. Needs --local-steps [default:
    /// 1]
    #[arg(
        long = "outer-lr",
        alias = "outer_lr",
        value_name = "X",
        help_heading = OPTIMIZER
    )]
    maybe outer_lr: f64;
    /// Nesterov's momentum of that mean, 0 to below 1. Needs --local-steps [default: 0]
    #[arg(
        long = "outer-momentum",
        alias = "outer_momentum",
        value_name = "X",
        help_heading = OPTIMIZER
    )]
    maybe outer_momentum: f64;
    /// Share of the mean square that adamw, adamw-updates and muon keep, at least 0, below 1 [default: 0.999]
    #[arg(long, value_name = "X", help_heading = OPTIMIZER)]
    maybe beta2: f64;
    /// Weight decay, at least 0: added to the gradient in sgd, decoupled in all others [default: 0, or 0.01
    /// where it is decoupled]
    #[arg(
        long = "weight-decay",
        alias = "weight_decay",
        value_name = "X",
        help_heading = OPTIMIZER
    )]
    always weight_decay: f64 = |given| if given.is_sgd() { 0.0 } else { 0.01 };
    /// Learning rate, above 0 [default with sgd: 0.3 for mlp (0.05 on cifar-10), 0.1 for cnn, resnet20 and
    /// gpt, 4 for lstm; with all others: 0.003 (0.001 for mlp on cifar-10)]
    #[arg(long, value_name = "X", help_heading = OPTIMIZER)]
    always lr: f64 = default_rate;
    /// Learning rate after the warm-up: constant, cosine (down to 0 at the last step), step (drops every
    /// --decay-every steps) [default: constant]
    #[arg(long, hide_possible_values = true, value_name = "KIND", help_heading = OPTIMIZER)]
    always schedule: ScheduleKind = |_| ScheduleKind::Constant;
    /// Steps in which the learning rate rises to its full value [default: 0]
    #[arg(long, value_name = "N", help_heading = OPTIMIZER)]
    always warmup: u64 = |_| 0;
    /// Steps between two drops of --schedule step, which needs it; at least 1
    #[arg(long = "decay-every", alias = "decay_every", value_name = "N", help_heading = OPTIMIZER)]
    maybe decay_every: u64;
    /// Factor of the learning rate at each drop of --schedule step, above 0, at most 1 [default: 0.1]
    #[arg(
        long = "decay-factor",
        alias = "decay_factor",
        value_name = "X",
        help_heading = OPTIMIZER
    )]
    maybe decay_factor: f64 = |given| (given.schedule == Some(ScheduleKind::Step)).then_some(0.1);
    /// Seed of every random draw: initial weights, order of the data, codecs [default: 1]
    #[arg(long, value_name = "N", help_heading = LENGTH)]
    always seed: u64 = |_| 1;
    /// Steps between two evaluations; 0 evaluates only at the end [default: 50]
    #[arg(long = "eval-every", alias = "eval_every", value_name = "N", help_heading = RECORDS)]
    always eval_every: u64 = |_| 50;
    /// End the run after N evaluations in a row without a smaller validation loss, at least 1. The results
    /// are those of the parameters that had the smallest [default: train all steps]
    #[arg(long = "early-stop", alias = "early_stop", value_name = "N", help_heading = RECORDS)]
    maybe early_stop: u64;
    /// Steps between two checks that the parameters of all workers agree; 0 checks only at the end [default:
    /// 50]
    #[arg(long = "hash-every", alias = "hash_every", value_name = "N", help_heading = RECORDS)]
    always hash_every: u64 = |_| 50;
    /// Steps between two checkpoints. The last one is at the end. 0 writes one only if the run is interrupted
    /// [default: 100, or 0 for compare]
    #[arg(long = "checkpoint-every", alias = "checkpoint_every", value_name = "N", help_heading = RECORDS)]
    always checkpoint_every: u64 = |_| 0;
    /// Also write every step for TensorBoard, into events.out.tfevents.gradwire beside metrics.jsonl
    /// [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1, default_missing_value = "true",
        help_heading = RECORDS
    )]
    maybe tensorboard: bool;
    /// Fraction of the packets that are lost on the way, drawn from the seed, 0 to 1. It shows what a lossy
    /// link does to training. Needs max_packet_bytes in the codec, and transport local [default: 0]
    #[arg(
        long = "packet-loss",
        alias = "packet_loss",
        value_name = "P",
        help_heading = EXCHANGE
    )]
    maybe packet_loss: f64;
    /// What sets the density of each step in place of the codec: steps:0=0.1,500=0.01; epochs:0=0.1,4=0.01;
    /// layers:*.bias=1,*=0.01; loss:inf=0.1,3=0.01;
    /// gravac:min=10,max=1000,eps=0.7,omega=0.01,window=500,policy=exponential;
    /// accordion:low=0.1,high=0.01,eta=0.5,window=10,by=layer, with powersgd low=4,high=1 for its ranks;
    /// replay:FILE, the metrics.jsonl of another run [default: the codec's density]
    #[arg(long, value_name = "SPEC", help_heading = EXCHANGE)]
    #[kept(serialize_with = "spelled")]
    parsed adapt: String => Option<Adapt>;
    /// Largest norm of a worker's gradient, above 0. A longer gradient is scaled down to it before it is
    /// compressed [default: no limit]
    #[arg(long, value_name = "X", help_heading = OPTIMIZER)]
    maybe clip: f64;
    /// Largest norm of the mean of all gradients, above 0. A longer mean is scaled down to it after the
    /// exchange, alike at every worker [default: no limit]
    #[arg(
        long = "clip-mean",
        alias = "clip_mean",
        value_name = "X",
        help_heading = OPTIMIZER
    )]
    maybe clip_mean: f64;
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
        self.or(below)
    }

    fn is_sgd(&self) -> bool {
        self.optimizer.unwrap_or(OptimizerKind::Sgd) == OptimizerKind::Sgd
    }

    fn reads(&self, source: Source) -> bool {
        self.data == Some(source)
    }

    fn model_or_default(&self) -> ModelKind {
        let is_text = self.data.is_some_and(Source::is_text);
        self.model.unwrap_or(if is_text { ModelKind::Gpt } else { ModelKind::Mlp })
    }
}

/// `resnet20` needs more images than CIFAR-10 has.
fn default_augment(given: &Settings) -> Option<bool> {
    (given.model == Some(ModelKind::Resnet20)).then_some(given.reads(Source::Cifar10))
}

/// Rates at which plain SGD, and AdamW, train the data sets that ship or are read, without compression.
fn default_rate(given: &Settings) -> f64 {
    match (given.is_sgd(), given.model_or_default()) {
        (false, ModelKind::Mlp) if given.reads(Source::Cifar10) => 0.001,
        (false, _) => 0.003,
        // Inputs of 3072 values with mean 0 and deviation 1: at 0.3 the loss jumps, and the run diverges.
        (true, ModelKind::Mlp) if given.reads(Source::Cifar10) => 0.05,
        (true, ModelKind::Mlp) => 0.3,
        (true, ModelKind::Lstm) => 4.0,
        (true, _) => 0.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an earlier version wrote it, key by key.
    const RECORD: &str = r#"data = "optdigits"
model = "mlp"
hidden = [32, 16]
codec = "topk:density=0.01,values=q8,unit=tensor"
exchange = "auto"
link_gbps = 0.5
delayed = true
pipeline = 3
transport = "mpi"
patience = 60
workers = 3
batch = 120
steps = 40
optimizer = "sgd"
momentum = 0.9
nesterov = true
weight_decay = 0.0
lr = 0.3
schedule = "step"
warmup = 5
decay_every = 10
decay_factor = 0.1
seed = 7
eval_every = 50
hash_every = 50
checkpoint_every = 100
adapt = "steps:0=0.1,20=0.01"
"#;

    /// The same with rules, gossip's topology, a wire, and what only other models and optimizers have.
    const OTHERS: [&str; 3] = [
        "data = \"tiny-shakespeare\"\nmodel = \"lstm\"\nhidden = [20]\nbptt = 7\ndropout = 0.5\n\
         codec = \"none\"\nrules = \"*.bias=none;none\"\nexchange = \"all-reduce\"\nwire = \"bf16\"\n\
         transport = \"local\"\nworkers = 4\nbatch = 128\nsteps = 2\noptimizer = \"adamw-updates\"\n\
         beta2 = 0.95\nweight_decay = 0.01\nlr = 0.003\nschedule = \"constant\"\nwarmup = 0\nseed = 1\n\
         eval_every = 50\nhash_every = 50\ncheckpoint_every = 0\n",
        "data = \"optdigits\"\nmodel = \"cnn\"\ncodec = \"dpsgd\"\nexchange = \"auto\"\ntopology = \"torus\"\n\
         transport = \"local\"\nworkers = 4\nbatch = 128\nepochs = 20\noptimizer = \"adamw\"\n\
         weight_decay = 0.01\nlr = 0.003\nschedule = \"cosine\"\nwarmup = 0\nseed = 1\neval_every = 50\n\
         hash_every = 50\ncheckpoint_every = 0\nclip = 1.0\n",
        "data = \"text\"\ndata_dir = \"/somewhere\"\ndata_crc32 = \"0123abcd\"\nmodel = \"gpt\"\n\
         codec = \"topk:density=0.01,index=auto\"\nexchange = \"server\"\nlink_gbps = 0.001\ntransport = \"zmq\"\n\
         workers = 2\nbatch = 128\nepochs = 1\noptimizer = \"sgd\"\nmomentum = 0.0\nnesterov = false\n\
         weight_decay = 0.0\nlr = 0.1\nschedule = \"constant\"\nwarmup = 0\nseed = 1\neval_every = 50\n\
         hash_every = 50\ncheckpoint_every = 0\n",
    ];

    #[test]
    fn records_of_earlier_versions_are_read_and_written_byte_by_byte() {
        for record in [RECORD].iter().chain(&OTHERS) {
            let config = RunConfig::resolve(&Settings::parse(record).unwrap()).unwrap();
            assert_eq!(config.to_toml().unwrap(), **record);
        }
    }

    #[test]
    fn what_is_not_given_has_the_default_that_its_help_states() {
        let mut command = clap::Command::new("settings");
        command = <Settings as clap::Args>::augment_args(command);
        let config = RunConfig::resolve(&Settings::default()).unwrap().to_toml().unwrap();
        let config: toml::Table = config.parse().unwrap();
        for key in ["exchange", "workers", "batch", "optimizer", "schedule", "warmup", "seed", "eval_every"] {
            let help = command.get_arguments().find(|argument| argument.get_id() == key).unwrap();
            let help = help.get_help().unwrap().to_string();
            let default = config[key].to_string().replace('"', "");
            assert!(help.contains(&format!("[default: {default}")), "{key}: {help}");
        }
    }
}
