//! Defaults, ranges and conflicts.

use std::iter::once;

use gradwire::registry::{CodecEntry, codecs};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Spec, UnitPolicy};

use super::adapt::{self, adapt_conflicts, adapt_note};
use super::downlink::{self, downlink_conflicts};
use super::parsed::Parsed;
use super::rules::{self, rules_conflicts};
use super::{
    ConfigError, ExchangeKind, OptimizerKind, RunCodec, RunConfig, ScheduleKind, Settings, TopologyKind,
    TransportKind,
};
use crate::model::ModelKind;
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
        let config = settings.complete(parsed(settings)?);
        ranges(&config)?;
        conflicts(&config)?;
        Ok(config)
    }

    /// What the user should know about this combination, in plain words.
    pub fn notes(&self) -> Vec<String> {
        notes(self)
    }

    /// Of [`notes`](Self::notes), what the user should know before the run: that the optimizer trains worse
    /// with the codec, or with that of a rule.
    pub fn doubt(&self) -> Option<String> {
        if self.local_steps.is_some() {
            // Differences of parameters are exchanged, and no gradients.
            return None;
        }
        let ruled = self.rules.iter().flat_map(|rules| rules.rules()).map(|rule| rule.spec());
        let mut specs = once(&self.codec.spec).chain(ruled);
        let misfit = specs.find(|spec| self.optimizer.trains_worse_with(&spec.codec))?;
        Some(format!(
            "{} trains worse on what {misfit} leaves of gradients; qsgd:bits=4 goes with it, and with local_steps = 4 topk does, too: docs/optimizers.md",
            self.optimizer
        ))
    }
}

/// Reads what the settings spell.
fn parsed(settings: &Settings) -> Result<Parsed, ConfigError> {
    let rules = settings.rules.as_deref().map(rules::read).transpose()?;
    let codec = match (&settings.codec, &rules) {
        (Some(spelling), _) => RunCodec::parse(spelling, settings.link_gbps.is_some())?,
        (None, Some(rules)) => (*rules.others()).into(),
        (None, None) => RunCodec::parse("topk:density=0.01", false)?,
    };
    let topology = settings.topology.or(codec.is_gossip().then_some(TopologyKind::Ring));
    let set = rules.as_ref().map_or(codec.spec, adapt::set_first);
    let adapt = settings.adapt.as_deref().map(|spelling| adapt::read(spelling, &set)).transpose()?;
    let downlink = settings.downlink.as_deref().map(downlink::read).transpose()?;
    Ok(Parsed { codec, rules, topology, downlink, adapt })
}

/// Every key on its own.
fn ranges(config: &RunConfig) -> Result<(), ConfigError> {
    let (gbps, latency) = (config.link_gbps.unwrap_or(1.0), config.link_latency_us.unwrap_or(0.0));
    require(gbps.is_finite() && gbps > 0.0, "link_gbps", gbps, "above 0")?;
    require(latency.is_finite() && latency >= 0.0, "link_latency_us", latency, "not negative")?;
    require(config.pipeline != Some(0), "pipeline", 0, "at least 1")?;
    require(config.patience != Some(0), "patience", 0, "at least 1")?;
    let workers = config.workers;
    require((1..=MAX_WORKERS).contains(&workers), "workers", workers, format!("1 to {MAX_WORKERS}"))?;
    let shared = config.batch > 0 && config.batch.is_multiple_of(workers);
    require(shared, "batch", config.batch, format!("a multiple of the {workers} workers"))?;
    batch_in_parts(config)?;
    require(config.early_stop != Some(0), "early_stop", 0, "at least 1")?;
    let local_steps = config.local_steps.unwrap_or(2);
    require(local_steps >= 2, "local_steps", local_steps, "at least 2")?;
    if let Some(fragments) = config.fragments {
        let cuts = fragments > 0 && local_steps.is_multiple_of(fragments as u64);
        require(cuts, "fragments", fragments, format!("a divisor of local_steps, which are {local_steps}"))?;
    }
    let outer_lr = config.outer_lr.unwrap_or(1.0);
    require(outer_lr.is_finite() && outer_lr > 0.0, "outer_lr", outer_lr, "above 0")?;
    let outer_momentum = config.outer_momentum.unwrap_or(0.0);
    require((0.0..1.0).contains(&outer_momentum), "outer_momentum", outer_momentum, "at least 0, below 1")?;
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
    let is_lstm = config.model == ModelKind::Lstm;
    let is_resnet = config.model == ModelKind::Resnet20;
    refuse(
        !is_resnet && config.augment.is_some(),
        format!("augment with model = {}: it belongs to resnet20", config.model),
    )?;
    refuse(
        is_resnet && config.transport == TransportKind::Zmq,
        "model = resnet20 with transport = zmq: workers that come and go have no common statistics",
    )?;
    refuse(
        config.hidden.is_some() && !matches!(config.model, ModelKind::Mlp | ModelKind::Gpt | ModelKind::Lstm),
        format!("hidden with model = {}: it belongs to mlp, gpt and lstm", config.model),
    )?;
    refuse(
        is_lstm && config.hidden.as_ref().is_some_and(|widths| widths.len() != 1),
        "hidden with model = lstm: give one width, which all its layers have",
    )?;
    let widths = config.hidden.as_deref().unwrap_or_default();
    refuse(
        config.model == ModelKind::Gpt && widths.windows(2).any(|pair| pair[0] != pair[1]),
        "hidden with model = gpt: give the same width for each block",
    )?;
    refuse(
        !is_lstm && (config.bptt.is_some() || config.dropout.is_some()),
        format!("bptt, dropout with model = {}: they belong to lstm", config.model),
    )?;
    optimizer_conflicts(config)?;
    local_conflicts(config)?;
    let steps_down = config.schedule == ScheduleKind::Step;
    refuse(steps_down && config.decay_every.is_none(), "schedule = step: decay_every is missing")?;
    refuse(
        !steps_down && (config.decay_every.is_some() || config.decay_factor.is_some()),
        format!(
            "decay_every, decay_factor with schedule = {}: they belong to schedule = step",
            config.schedule
        ),
    )?;
    refuse(
        config.micro_batches() > 1 && config.model == ModelKind::Lstm,
        "accumulate with model = lstm: its state is carried from batch to batch, and parts of a batch have none to carry",
    )?;
    early_stop_conflicts(config)?;
    rules_conflicts(config)?;
    config.specs().iter().try_for_each(|spec| own_momentum_conflicts(config, &spec.codec))?;
    adapt_conflicts(config)?;
    transport_conflicts(config)
}

/// What belongs to one optimizer alone.
fn optimizer_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let optimizer = config.optimizer;
    let is_sgd = optimizer == OptimizerKind::Sgd;
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
        "beta2 with optimizer = sgd: it belongs to adamw, adamw-updates and muon",
    )?;
    let sends_updates = optimizer == OptimizerKind::AdamwUpdates;
    refuse(
        sends_updates && config.codec.is_gossip(),
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
            config.outer_lr.is_some() || config.outer_momentum.is_some() || config.fragments.is_some(),
            "fragments, outer_lr, outer_momentum: they belong to local_steps",
        );
    };
    let codec = config.codec.spec.codec;
    refuse(
        config.codec.is_gossip() || codec.accumulates_steps(),
        format!(
            "local_steps = {count} with codec = {}: what is exchanged are ways of several steps; use a codec for gradients, without a momentum of its own",
            config.codec
        ),
    )?;
    refuse(
        config.optimizer == OptimizerKind::AdamwUpdates,
        format!(
            "local_steps = {count} with optimizer = adamw-updates: local steps exchange no updates; use adamw"
        ),
    )?;
    refuse(
        config.clip_mean.is_some(),
        format!("clip_mean with local_steps = {count}: the mean is one of ways; clip shortens gradients"),
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
        stops && config.transport == TransportKind::Zmq,
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
    downlink_conflicts(config)?;
    mpi_conflicts(config)
}

/// Gossip has its own codec, exchange and topology.
fn gossip_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange, &config.codec);
    let is_gossip = codec.is_gossip();
    refuse(
        is_gossip && !matches!(exchange, ExchangeKind::Auto | ExchangeKind::Gossip),
        format!("exchange = {exchange} with codec = {codec}: neighbours exchange their models; use gossip"),
    )?;
    refuse(
        exchange == ExchangeKind::Gossip && !is_gossip,
        format!(
            "exchange = gossip with codec = {codec}: the codec makes a mean over all workers; use codec {}",
            gossips().join(" or ")
        ),
    )?;
    refuse(
        config.clip_mean.is_some() && is_gossip,
        format!("clip_mean with codec = {codec}: gossip makes no mean of gradients; use clip"),
    )?;
    refuse(
        config.topology.is_some() && !is_gossip,
        format!("topology with codec = {codec}: it belongs to gossip, with codec {}", gossips().join(" or ")),
    )
}

/// The names of codecs for gossip.
fn gossips() -> Vec<&'static str> {
    names_of(|spec| matches!(spec.codec, Codec::Gossip(_)))
}

/// What is summed in transit, and in which width.
fn sum_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange, &config.codec);
    let is_summed = exchange.is_summed();
    let specs = config.specs();
    let not_linear = specs.iter().find(|spec| spec.codec.as_linear().is_none());
    refuse(
        is_summed && not_linear.is_some(),
        format!(
            "exchange = {exchange} with codec = {}: its frames cannot be summed on the way; use all-gather or server",
            not_linear.map_or(codec.to_string(), Spec::to_string)
        ),
    )?;
    refuse(
        exchange == ExchangeKind::Sparse && specs.iter().all(|spec| spec.codec.sparse_values().is_none()),
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
    names_of(|spec| spec.codec.sparse_values().is_some())
}

/// The names of codecs of which an example is like that.
fn names_of(is_one: impl Fn(&Spec) -> bool) -> Vec<&'static str> {
    let has_one = |entry: &CodecEntry| {
        entry.examples.iter().filter_map(|example| Spec::parse(example).ok()).any(|spec| is_one(&spec))
    };
    codecs().filter(has_one).flat_map(|entry| entry.names).map(|(name, _)| *name).collect()
}

/// The link that is planned for.
fn link_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let exchange = config.exchange;
    refuse(
        config.link_gbps.is_some()
            && !matches!(exchange, ExchangeKind::Auto | ExchangeKind::AllGather | ExchangeKind::Server),
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
        config.is_delayed() && config.replicas() > 1,
        "delayed with gossip: gossip makes no mean that could be applied late",
    )
}

/// Steps that travel in parts.
fn pipeline_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange, &config.codec);
    let is_pipelined = config.pipeline.is_some();
    refuse(
        is_pipelined && codec.is_gossip(),
        format!("pipeline with codec = {codec}: neighbours exchange whole models at once"),
    )?;
    refuse(
        is_pipelined && !cuts_steps(exchange),
        format!(
            "pipeline with exchange = {exchange}: a step is one message there; it belongs to all-gather, sparse, all-reduce and owners"
        ),
    )
}

fn cuts_steps(exchange: ExchangeKind) -> bool {
    use ExchangeKind::{AllGather, AllReduce, Auto, Owners, Sparse};
    matches!(exchange, Auto | AllGather | Sparse | AllReduce | Owners)
}

/// Frames in packets, and packets that get lost.
fn packet_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (exchange, codec) = (config.exchange, &config.codec);
    let has_packets = codec.spec.packets.is_some();
    refuse(
        has_packets && !matches!(exchange, ExchangeKind::Auto | ExchangeKind::Server),
        format!(
            "exchange = {exchange} with codec = {codec}: only a server can tell all workers which packets arrived"
        ),
    )?;
    refuse(
        config.packet_loss.is_some() && !has_packets,
        format!("packet_loss with codec = {codec}: without max_packet_bytes there are no packets to lose"),
    )?;
    refuse(
        config.packet_loss.is_some() && config.transport != TransportKind::Local,
        format!("packet_loss with transport = {}: the network itself loses them", config.transport),
    )
}

/// Settings that only a job of MPI has.
fn mpi_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let is_mpi = config.transport == TransportKind::Mpi;
    refuse(
        config.exchange == ExchangeKind::Native && !is_mpi,
        "exchange = native: it is the all-reduce of an MPI library; start the run with mpirun",
    )?;
    refuse(
        config.patience.is_some() && !is_mpi,
        format!("patience with transport = {}: it belongs to mpi", config.transport),
    )
}

/// What does not work with a codec that owns the momentum.
fn own_momentum_conflicts(config: &RunConfig, codec: &Codec) -> Result<(), ConfigError> {
    refuse(
        config.optimizer != OptimizerKind::Sgd && codec.accumulates_steps(),
        format!(
            "optimizer = {} with codec = {}: the codec accumulates the steps of sgd; use sgd",
            config.optimizer, config.codec
        ),
    )?;
    let has_momentum =
        config.momentum.is_some_and(|momentum| momentum > 0.0) || config.nesterov == Some(true);
    refuse(
        (codec.momentum().is_some() || matches!(codec, Codec::Linear(_)) && codec.accumulates_steps())
            && has_momentum,
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
    let spec = &config.codec.spec;
    let is_sparse = spec.codec.sparse_values().is_some() || matches!(spec.codec, Codec::Linear(_));
    let mut notes = Vec::new();
    notes.extend(config.doubt());
    if is_sparse && spec.memory == MemoryChoice::None && spec.codec.default_memory() != MemoryChoice::None {
        notes.push(format!("{}: without a memory, values that are not sent are lost", config.codec));
    }
    if let Some(folder) = config.data_dir.as_ref().filter(|_| config.data.is_shipped()) {
        notes.push(format!(
            "data_dir = {}: not read, because {} ships with the trainer",
            folder.display(),
            config.data
        ));
    }
    notes.extend(adapt_note(config));
    if config.replicas() > 1 {
        notes.push("gossip: replicas differ; validation and test results are those of their mean".into());
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
    if config.exchange == ExchangeKind::Native {
        notes.push(
            "exchange = native: the bytes are computed as those of a ring, because an MPI library does not count them"
                .into(),
        );
    }
    notes
}
