//! Defaults, ranges and conflicts.

use gradwire::registry::{CODECS, CodecEntry};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Spec, UnitPolicy};

use super::adapt::{adapt_conflicts, adapt_note, canonical_adapt};
use super::rules::{self, rules_conflicts};
use super::{ConfigError, RunConfig, Settings};
use crate::config::link_rate::{spell_index, with_index};
use crate::data::Source;
use crate::model::ModelConfig;
use crate::nearest::spec_text;
use crate::range::{RangeError, require};

/// More workers than this in one process measure the scheduler, not the method.
const MAX_WORKERS: usize = 256;

impl RunConfig {
    /// Fills in what the settings leave open, and checks everything that can be checked without the data.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the key and what it may be, or why keys do not go together.
    ///
    /// # Examples
    ///
    /// ```
    /// use gradwire_trainer::config::{RunConfig, Settings};
    ///
    /// let settings = Settings { codec: Some("topk:density=7".into()), ..Default::default() };
    /// let error = RunConfig::resolve(&settings).unwrap_err();
    /// assert_eq!(error.to_string(), "codec = topk:density=7: density=7: expected a fraction from 1e-9 to 1");
    /// ```
    pub fn resolve(settings: &Settings) -> Result<Self, ConfigError> {
        let config = fill_in(settings)?;
        ranges(&config)?;
        conflicts(&config)?;
        Ok(config)
    }

    /// What the user should know about this combination, in plain words.
    pub fn notes(&self) -> Vec<String> {
        notes(self)
    }
}

fn or<T: Clone>(value: &Option<T>, default: T) -> T {
    value.clone().unwrap_or(default)
}

fn word(value: &Option<String>, default: &str) -> String {
    value.clone().unwrap_or_else(|| default.to_owned())
}

/// The configuration with defaults where the settings are silent.
fn fill_in(settings: &Settings) -> Result<RunConfig, ConfigError> {
    let data = word(&settings.data, "optdigits");
    let source: Source = data.parse()?;
    let reads_text = source.is_text();
    let model = word(&settings.model, if reads_text { "gpt" } else { "mlp" });
    let optimizer = word(&settings.optimizer, "sgd");
    let is_sgd = optimizer == "sgd";
    let rules = settings.rules.as_deref().map(rules::read).transpose()?;
    let default = rules.as_ref().map_or("topk:density=0.01".to_owned(), |rules| rules.others().to_string());
    let codec = canonical(&word(&settings.codec, &default), settings.link_gbps.is_some())?;
    let steps_down = settings.schedule.as_deref() == Some("step");
    Ok(RunConfig {
        data_dir: settings.data_dir.clone(),
        data_crc32: settings.data_crc32.clone(),
        hidden: settings.hidden.clone(),
        bptt: settings.bptt,
        dropout: settings.dropout,
        augment: settings.augment.or((model == "resnet20").then_some(source == Source::Cifar10)),
        exchange: word(&settings.exchange, "auto"),
        topology: settings.topology.clone().or(is_gossip(&codec).then(|| "ring".to_owned())),
        wire: settings.wire.clone(),
        link_gbps: settings.link_gbps,
        link_latency_us: settings.link_latency_us,
        delayed: settings.delayed,
        pipeline: settings.pipeline,
        transport: word(&settings.transport, "local"),
        patience: settings.patience,
        workers: or(&settings.workers, 4),
        batch: or(&settings.batch, 128),
        accumulate: settings.accumulate,
        local_steps: settings.local_steps,
        epochs: settings.epochs.or((settings.steps.is_none()).then_some(20)),
        steps: settings.steps,
        momentum: settings.momentum.or(is_sgd.then_some(0.0)),
        nesterov: settings.nesterov.or(is_sgd.then_some(false)),
        beta2: settings.beta2,
        outer_lr: settings.outer_lr,
        outer_momentum: settings.outer_momentum,
        residual_decay: settings.residual_decay,
        weight_decay: or(&settings.weight_decay, if is_sgd { 0.0 } else { 0.01 }),
        lr: or(&settings.lr, default_rate(&model, source, is_sgd)),
        schedule: word(&settings.schedule, "constant"),
        warmup: or(&settings.warmup, 0),
        decay_every: settings.decay_every,
        decay_factor: settings.decay_factor.or(steps_down.then_some(0.1)),
        seed: or(&settings.seed, 1),
        eval_every: or(&settings.eval_every, 50),
        early_stop: settings.early_stop,
        hash_every: or(&settings.hash_every, 50),
        checkpoint_every: or(&settings.checkpoint_every, 0),
        tensorboard: settings.tensorboard,
        packet_loss: settings.packet_loss,
        adapt: settings.adapt.as_deref().map(|adapt| canonical_adapt(adapt, &codec)).transpose()?,
        clip: settings.clip,
        clip_mean: settings.clip_mean,
        rules: rules.map(|rules| rules.to_string()),
        codec,
        data,
        model,
        optimizer,
    })
}

/// Rates at which plain SGD, and AdamW, train the data sets that ship or are read, without compression.
fn default_rate(model: &str, source: Source, is_sgd: bool) -> f64 {
    match (is_sgd, model) {
        (false, "mlp") if matches!(source, Source::Cifar10) => 0.001,
        (false, _) => 0.003,
        // Inputs of 3072 values with mean 0 and deviation 1: at 0.3 the loss jumps, and the run diverges.
        (true, "mlp") if matches!(source, Source::Cifar10) => 0.05,
        (true, "mlp") => 0.3,
        (true, "lstm") => 4.0,
        (true, _) => 0.1,
    }
}

/// The spelling as the library prints it. If a link rate would choose an index coder, a requested coder is
/// named even if it is the default.
fn canonical(spelling: &str, has_link: bool) -> Result<String, ConfigError> {
    let refused = |what: String| ConfigError::Codec { spelling: spelling.replace(['\n', '\r'], " "), what };
    let spec = Spec::parse(spelling).map_err(|error| refused(spec_text(&error)))?;
    let printed = spec.to_string();
    let is_open = |spelling: &str| with_index(spelling, "auto").is_some();
    let is_named = has_link && !is_open(spelling) && is_open(&printed);
    Ok(if is_named { spell_index(&printed, "auto") } else { printed })
}

/// Whether neighbours exchange models.
fn is_gossip(codec: &str) -> bool {
    Spec::parse(codec).is_ok_and(|spec| matches!(spec.codec, Codec::Gossip(_)))
}

fn one_of(key: &'static str, value: &str, allowed: &[&str]) -> Result<(), RangeError> {
    require(allowed.contains(&value), key, value, format!("one of {}", allowed.join(", ")))
}

/// Every key on its own.
fn ranges(config: &RunConfig) -> Result<(), ConfigError> {
    one_of("model", &config.model, &ModelConfig::NAMES)?;
    let exchanges =
        ["auto", "all-gather", "sparse", "all-reduce", "tree", "owners", "native", "server", "gossip"];
    one_of("exchange", &config.exchange, &exchanges)?;
    one_of("topology", config.topology.as_deref().unwrap_or("ring"), &["ring", "torus", "complete"])?;
    one_of("wire", config.wire.as_deref().unwrap_or("f32"), &["f32", "bf16"])?;
    one_of("transport", &config.transport, &["local", "mpi", "zmq"])?;
    let (gbps, latency) = (config.link_gbps.unwrap_or(1.0), config.link_latency_us.unwrap_or(0.0));
    require(gbps.is_finite() && gbps > 0.0, "link_gbps", gbps, "above 0")?;
    require(latency.is_finite() && latency >= 0.0, "link_latency_us", latency, "not negative")?;
    require(config.pipeline != Some(0), "pipeline", 0, "at least 1")?;
    require(config.patience != Some(0), "patience", 0, "at least 1")?;
    one_of("optimizer", &config.optimizer, &["sgd", "adamw", "adamw-updates"])?;
    one_of("schedule", &config.schedule, &["constant", "cosine", "step"])?;
    let workers = config.workers;
    require((1..=MAX_WORKERS).contains(&workers), "workers", workers, format!("1 to {MAX_WORKERS}"))?;
    let shared = config.batch > 0 && config.batch.is_multiple_of(workers);
    require(shared, "batch", config.batch, format!("a multiple of the {workers} workers"))?;
    batch_in_parts(config)?;
    require(config.early_stop != Some(0), "early_stop", 0, "at least 1")?;
    let local_steps = config.local_steps.unwrap_or(2);
    require(local_steps >= 2, "local_steps", local_steps, "at least 2")?;
    let outer_lr = config.outer_lr.unwrap_or(1.0);
    require(outer_lr.is_finite() && outer_lr > 0.0, "outer_lr", outer_lr, "above 0")?;
    let outer_momentum = config.outer_momentum.unwrap_or(0.0);
    require((0.0..1.0).contains(&outer_momentum), "outer_momentum", outer_momentum, "at least 0, below 1")?;
    let residual_decay = config.residual_decay.unwrap_or(1.0);
    require(
        residual_decay > 0.0 && residual_decay <= 1.0,
        "residual_decay",
        residual_decay,
        "above 0, at most 1",
    )?;
    require(config.epochs != Some(0), "epochs", 0, "at least 1")?;
    require(config.steps != Some(0), "steps", 0, "at least 1")?;
    if let Some(loss) = config.packet_loss {
        require((0.0..=1.0).contains(&loss), "packet_loss", loss, "0 to 1")?;
    }
    if let Some(clip) = config.clip {
        require(clip.is_finite() && clip > 0.0, "clip", clip, "above 0")?;
    }
    if let Some(clip) = config.clip_mean {
        require(clip.is_finite() && clip > 0.0, "clip_mean", clip, "above 0")?;
    }
    Ok(())
}

/// A batch is cut evenly: between the workers, and by each of them.
fn batch_in_parts(config: &RunConfig) -> Result<(), RangeError> {
    let (workers, parts) = (config.workers, config.micro_batches());
    require(parts > 0, "accumulate", parts, "at least 1")?;
    let is_even = config.batch.is_multiple_of(workers.saturating_mul(parts));
    let share = config.batch / workers;
    require(is_even, "accumulate", parts, format!("a divisor of {share}, a worker's share of the batch"))
}

pub(super) fn refuse(holds: bool, why: impl Into<String>) -> Result<(), ConfigError> {
    if holds { Err(ConfigError::Conflict(why.into())) } else { Ok(()) }
}

/// Keys that are each allowed, but not together.
fn conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    refuse(config.epochs.is_some() && config.steps.is_some(), "epochs and steps: give one of them")?;
    let is_lstm = config.model == "lstm";
    let is_resnet = config.model == "resnet20";
    refuse(
        !is_resnet && config.augment.is_some(),
        format!("augment with model = {}: it belongs to resnet20", config.model),
    )?;
    refuse(
        is_resnet && config.transport == "zmq",
        "model = resnet20 with transport = zmq: workers that come and go have no common statistics",
    )?;
    refuse(
        config.hidden.is_some() && !["mlp", "gpt", "lstm"].contains(&config.model.as_str()),
        format!("hidden with model = {}: it belongs to mlp, gpt and lstm", config.model),
    )?;
    refuse(
        is_lstm && config.hidden.as_ref().is_some_and(|widths| widths.len() != 1),
        "hidden with model = lstm: give one width, which all its layers have",
    )?;
    let widths = config.hidden.as_deref().unwrap_or_default();
    refuse(
        config.model == "gpt" && widths.windows(2).any(|pair| pair[0] != pair[1]),
        "hidden with model = gpt: give the same width for each block",
    )?;
    refuse(
        !is_lstm && (config.bptt.is_some() || config.dropout.is_some()),
        format!("bptt, dropout with model = {}: they belong to lstm", config.model),
    )?;
    optimizer_conflicts(config)?;
    local_conflicts(config)?;
    let steps_down = config.schedule == "step";
    refuse(steps_down && config.decay_every.is_none(), "schedule = step: decay_every is missing")?;
    refuse(
        !steps_down && (config.decay_every.is_some() || config.decay_factor.is_some()),
        format!(
            "decay_every, decay_factor with schedule = {}: they belong to schedule = step",
            config.schedule
        ),
    )?;
    refuse(
        config.micro_batches() > 1 && config.model == "lstm",
        "accumulate with model = lstm: its state is carried from batch to batch, and parts of a batch have none to carry",
    )?;
    early_stop_conflicts(config)?;
    rules_conflicts(config)?;
    config.specs()?.iter().try_for_each(|spec| own_momentum_conflicts(config, &spec.codec))?;
    adapt_conflicts(config)?;
    transport_conflicts(config)
}

/// What belongs to one optimizer alone.
fn optimizer_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let optimizer = config.optimizer.as_str();
    let is_sgd = optimizer == "sgd";
    refuse(
        !is_sgd && config.momentum.is_some(),
        format!("momentum with optimizer = {optimizer}: it has moments of its own; momentum belongs to sgd"),
    )?;
    refuse(
        !is_sgd && config.nesterov.is_some(),
        format!("nesterov with optimizer = {optimizer}: it is a form of the momentum of sgd"),
    )?;
    refuse(
        is_sgd && config.beta2.is_some(),
        "beta2 with optimizer = sgd: it belongs to adamw and adamw-updates",
    )?;
    let sends_updates = optimizer == "adamw-updates";
    refuse(
        sends_updates && is_gossip(&config.codec),
        format!("optimizer = {optimizer} with codec = {}: gossip exchanges models; use adamw", config.codec),
    )?;
    refuse(
        sends_updates && config.clip_mean.is_some(),
        format!(
            "clip_mean with optimizer = {optimizer}: the mean is one of updates; clip shortens gradients"
        ),
    )
}

/// What does not go with several steps between two exchanges.
fn local_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let Some(count) = config.local_steps else {
        return refuse(
            config.outer_lr.is_some() || config.outer_momentum.is_some() || config.residual_decay.is_some(),
            "outer_lr, outer_momentum, residual_decay: they belong to local_steps",
        );
    };
    let codec = config.spec()?.codec;
    refuse(
        is_gossip(&config.codec) || codec.accumulates_steps(),
        format!(
            "local_steps = {count} with codec = {}: what is exchanged are ways of several steps; use a codec for gradients, without a momentum of its own",
            config.codec
        ),
    )?;
    refuse(
        config.optimizer == "adamw-updates",
        format!(
            "local_steps = {count} with optimizer = adamw-updates: local steps exchange no updates; use adamw"
        ),
    )?;
    refuse(
        config.clip_mean.is_some(),
        format!("clip_mean with local_steps = {count}: the mean is one of ways; clip shortens gradients"),
    )?;
    refuse(
        config.is_delayed(),
        format!("delayed with local_steps = {count}: workers would begin without their own last steps"),
    )?;
    refuse(config.adapt.is_some(), format!("adapt with local_steps = {count}: controllers judge gradients"))
}

/// What a run that may end early needs: evaluations, and workers that all know of them.
fn early_stop_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let stops = config.early_stop.is_some();
    refuse(stops && config.eval_every == 0, "early_stop with eval_every = 0: it needs evaluations")?;
    refuse(
        stops && config.replicas() > 1,
        "early_stop with gossip: replicas differ, so no validation loss holds for all of them",
    )?;
    refuse(
        stops && config.transport == "zmq",
        "early_stop with transport = zmq: workers come and go, and only the server evaluates",
    )
}

/// Keys that say how gradients travel.
fn transport_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    gossip_conflicts(config)?;
    sum_conflicts(config)?;
    link_conflicts(config)?;
    delay_conflicts(config)?;
    pipeline_conflicts(config)?;
    packet_conflicts(config)?;
    mpi_conflicts(config)
}

/// Gossip has its own codec, exchange and topology.
fn gossip_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange.as_str(), &config.codec);
    let is_gossip = is_gossip(codec);
    refuse(
        is_gossip && !matches!(exchange, "auto" | "gossip"),
        format!("exchange = {exchange} with codec = {codec}: neighbours exchange their models; use gossip"),
    )?;
    refuse(
        exchange == "gossip" && !is_gossip,
        format!(
            "exchange = gossip with codec = {codec}: the codec makes a mean over all workers; use codec dpsgd"
        ),
    )?;
    refuse(
        config.clip_mean.is_some() && is_gossip,
        format!("clip_mean with codec = {codec}: gossip makes no mean of gradients; use clip"),
    )?;
    refuse(
        config.topology.is_some() && !is_gossip,
        format!("topology with codec = {codec}: it belongs to gossip, with codec dpsgd"),
    )
}

/// What is summed in transit, and in which width.
fn sum_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange.as_str(), &config.codec);
    let is_summed = matches!(exchange, "all-reduce" | "tree" | "owners" | "native");
    let specs = config.specs()?;
    let not_linear = specs.iter().find(|spec| spec.codec.as_linear().is_none());
    refuse(
        is_summed && not_linear.is_some(),
        format!(
            "exchange = {exchange} with codec = {}: its frames cannot be summed on the way; use all-gather or server",
            not_linear.map_or(codec.clone(), Spec::to_string)
        ),
    )?;
    refuse(
        exchange == "sparse" && specs.iter().all(|spec| spec.codec.sparse_values().is_none()),
        format!(
            "exchange = sparse with codec = {codec}: its frames are not sparse; use auto, or a codec that sends few coordinates: {}",
            sparsifiers().join(", ")
        ),
    )?;
    refuse(
        config.wire.is_some() && !is_summed,
        format!("wire with exchange = {exchange}: it belongs to all-reduce, tree, owners and native"),
    )
}

/// The names of codecs whose frames hold some coordinates.
fn sparsifiers() -> Vec<&'static str> {
    let is_sparse = |entry: &&CodecEntry| {
        let mut specs = entry.examples.iter().filter_map(|example| Spec::parse(example).ok());
        specs.any(|spec| spec.codec.sparse_values().is_some())
    };
    CODECS.iter().filter(is_sparse).flat_map(|entry| entry.names).map(|(name, _)| *name).collect()
}

/// The link that is planned for.
fn link_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let exchange = config.exchange.as_str();
    refuse(
        config.link_gbps.is_some() && !matches!(exchange, "auto" | "all-gather" | "server"),
        format!("link_gbps with exchange = {exchange}: it belongs to auto, all-gather and server"),
    )?;
    refuse(
        config.link_latency_us.is_some() && config.link_gbps.is_none(),
        "link_latency_us: it needs link_gbps",
    )
}

/// Means that are applied one step late.
fn delay_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    refuse(
        config.is_delayed() && config.transport == "zmq",
        "delayed with transport = zmq: a worker that comes in has no gradient of the step before",
    )?;
    refuse(
        config.is_delayed() && config.replicas() > 1,
        "delayed with gossip: gossip makes no mean that could be applied late",
    )
}

/// Steps that travel in parts.
fn pipeline_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange.as_str(), &config.codec);
    let is_pipelined = config.pipeline.is_some();
    refuse(
        is_pipelined && is_gossip(codec),
        format!("pipeline with codec = {codec}: neighbours exchange whole models at once"),
    )?;
    refuse(
        is_pipelined && !matches!(exchange, "auto" | "all-gather" | "sparse" | "all-reduce" | "owners"),
        format!(
            "pipeline with exchange = {exchange}: a step is one message there; it belongs to all-gather, sparse, all-reduce and owners"
        ),
    )
}

/// Frames in packets, and packets that get lost.
fn packet_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange.as_str(), &config.codec);
    let has_packets = config.spec()?.packets.is_some();
    refuse(
        has_packets && !matches!(exchange, "auto" | "server"),
        format!(
            "exchange = {exchange} with codec = {codec}: only a server can tell all workers which packets arrived"
        ),
    )?;
    refuse(
        config.packet_loss.is_some() && !has_packets,
        format!("packet_loss with codec = {codec}: without max_packet_bytes there are no packets to lose"),
    )?;
    refuse(
        config.packet_loss.is_some() && config.transport != "local",
        format!("packet_loss with transport = {}: the network itself loses them", config.transport),
    )
}

/// Settings that only a job of MPI has.
fn mpi_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let is_mpi = config.transport == "mpi";
    refuse(
        config.exchange == "native" && !is_mpi,
        "exchange = native: it is the all-reduce of an MPI library; start the run with mpirun",
    )?;
    refuse(config.patience.is_some() && !is_mpi, "patience with transport = local: it belongs to mpi")
}

/// What does not work with a codec that owns the momentum.
fn own_momentum_conflicts(config: &RunConfig, codec: &Codec) -> Result<(), ConfigError> {
    refuse(
        config.optimizer != "sgd" && codec.accumulates_steps(),
        format!(
            "optimizer = {} with codec = {}: the codec accumulates the steps of sgd with momentum; use sgd",
            config.optimizer, config.codec
        ),
    )?;
    let has_momentum =
        config.momentum.is_some_and(|momentum| momentum > 0.0) || config.nesterov == Some(true);
    refuse(
        codec.momentum().is_some() && has_momentum,
        format!(
            "momentum, nesterov with codec = {}: the codec has its own momentum; set it in the codec",
            config.codec
        ),
    )?;
    refuse(
        codec.local_clip(1).is_some() && config.clip.is_some(),
        format!("clip with codec = {}: the codec clips gradients itself", config.codec),
    )
}

/// Settings that are allowed, but that the user should know about.
fn notes(config: &RunConfig) -> Vec<String> {
    let Ok(spec) = config.spec() else { return Vec::new() };
    let is_sparse = spec.codec.sparse_values().is_some() || matches!(spec.codec, Codec::Linear(_));
    let mut notes = Vec::new();
    let codec = &spec.codec;
    let lacks = codec.density().is_some() || codec.sparse_values().is_some() || codec.rank().is_some();
    if config.optimizer == "adamw" && config.local_steps.is_none() && lacks {
        notes.push(format!(
            "adamw trains worse on what {} leaves of gradients; optimizer = adamw-updates compresses its updates instead: docs/optimizers.md",
            config.codec
        ));
    }
    if is_sparse && spec.memory == MemoryChoice::None && spec.codec.default_memory() != MemoryChoice::None {
        notes.push(format!("{}: without a memory, values that are not sent are lost", config.codec));
    }
    let is_shipped = config.data.parse::<Source>().is_ok_and(Source::is_shipped);
    if let Some(folder) = config.data_dir.as_ref().filter(|_| is_shipped) {
        notes.push(format!(
            "data_dir = {}: not read, because {} ships with the trainer",
            folder.display(),
            config.data
        ));
    }
    notes.extend(adapt_note(config, &spec));
    if config.replicas() > 1 {
        notes.push("gossip: replicas differ; loss and accuracy are those of worker 0".into());
    }
    if config.is_delayed() {
        notes
            .push("delayed: each mean is applied one step late, and that of the last step not at all".into());
    }
    if config.pipeline.is_some_and(|messages| messages > 1) && spec.units == UnitPolicy::default() {
        notes.push(format!(
            "pipeline: {} makes one unit, which is not cut; unit=tensor makes several",
            config.codec
        ));
    }
    if config.exchange == "native" {
        notes.push(
            "exchange = native: the bytes are computed as those of a ring, because an MPI library does not count them"
                .into(),
        );
    }
    notes
}
