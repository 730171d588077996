//! What a run is to do: settings as the user gives them, and the complete configuration that follows from
//! them.
//!
//! [`Settings`] is filled by the command line and by `--config run.toml` alike; [`RunConfig::resolve`] checks
//! it, fills in what was left out, and gives the configuration that a run echoes as `config.toml`. Reading
//! that file again gives the same run.

mod adapt;
mod check;
mod codec;
pub(crate) mod downlink;
mod error;
mod fields;
mod kinds;
pub(crate) mod link_rate;
mod parsed;
mod path;
mod rules;
mod settings;
mod text;
mod written;

use std::borrow::Cow;

use gradwire::Spec;
use gradwire::rules::{Rule, Rules};

pub(crate) use adapt::{adapted, set_first};
pub use codec::RunCodec;
pub use error::ConfigError;
pub use kinds::{ExchangeKind, OptimizerKind, ScheduleKind, TopologyKind, TransportKind, WireKind};
pub(crate) use rules::read as read_rules;
pub use settings::{RunConfig, Settings};
pub(crate) use text::parse_toml;

impl RunConfig {
    /// How the tensors are sent: by rules, or all of them by the codec.
    pub fn rules(&self) -> Cow<'_, Rules> {
        match &self.rules {
            Some(rules) => Cow::Borrowed(rules),
            None => Cow::Owned(self.codec.spec.into()),
        }
    }

    /// How the tensors are sent, as the user spells it.
    pub fn encoding(&self) -> String {
        self.rules.as_ref().map_or_else(|| self.codec.to_string(), Rules::to_string)
    }

    /// What all tensors are encoded with, one for each rule.
    pub(crate) fn specs(&self) -> Vec<Spec> {
        self.rules().rules().iter().map(Rule::spec).copied().collect()
    }

    /// Workers whose steps are recorded: all of them, or over the network only the server, to which the
    /// others report little.
    pub fn reporting_workers(&self) -> usize {
        if self.comes_and_goes() { 1 } else { self.workers }
    }

    /// Whether workers come and go during the run, as they do over the network.
    pub fn comes_and_goes(&self) -> bool {
        self.transport == TransportKind::Zmq
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
        self.local_steps.unwrap_or(1) / self.fragments() as u64
    }

    /// Parts of the model that are exchanged in turn: at least 1.
    pub fn fragments(&self) -> usize {
        self.fragments.unwrap_or(1)
    }

    /// Whether means are applied one step late.
    pub fn is_delayed(&self) -> bool {
        self.delayed == Some(true)
    }
}
