//! How workers agree: on the mean of all gradients, or by moving towards their neighbours.

#[cfg(feature = "zmq")]
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Density, Grad, Layout, Memory, Selection, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::gossip::{Mixer, Topology};
use gradwire_transports::{Deadline, Transport};

use crate::config::{ExchangeKind, RunConfig};

/// How a run was told to agree.
#[derive(Clone, Debug, PartialEq)]
pub enum Averaging {
    /// Every worker applies the mean of all gradients, so replicas are equal.
    Mean(Route),
    /// Every worker applies its own gradient, and its replica moves towards those of its neighbours.
    Gossip(Topology),
}

/// A switched Ethernet, by default.
const LINK_LATENCY_US: f64 = 50.0;

/// The link that the user states, if any.
pub(crate) fn link(config: &RunConfig) -> Option<Link> {
    let latency_us = config.link_latency_us.unwrap_or(LINK_LATENCY_US);
    config.link_gbps.map(|gbps| Link::from_gbps(gbps, latency_us * 1e-6))
}

/// A server that sends its mean back as the configuration says.
fn with_downlink(options: ServerOptions, config: &RunConfig) -> ServerOptions {
    ServerOptions { downlink: config.downlink.unwrap_or(options.downlink), ..options }
}

impl Averaging {
    /// What the checked configuration means for gradients that are encoded so.
    pub(crate) fn of(config: &RunConfig, plan: &Plan) -> Self {
        if let Some(topology) = config.topology {
            return Self::Gossip(topology.into());
        }
        let wire = config.wire.map_or(Wire::F32, Wire::from);
        Self::Mean(match config.exchange {
            ExchangeKind::AllGather => Route::AllGather,
            ExchangeKind::Sparse => Route::SparseAllReduce,
            ExchangeKind::AllReduce => Route::AllReduce { wire },
            ExchangeKind::Tree => Route::Tree { wire },
            ExchangeKind::Owners => Route::Owners { wire },
            ExchangeKind::Native => Route::Native { wire },
            // Gossip has a topology.
            exchange @ (ExchangeKind::Auto | ExchangeKind::Server | ExchangeKind::Gossip) => {
                match (Exchange::best_route(plan), link(config)) {
                    // Packets go to a server, with options of their own.
                    (Route::Server(options), _) => Route::Server(with_downlink(options, config)),
                    _ if exchange == ExchangeKind::Server => {
                        Route::Server(with_downlink(ServerOptions::default(), config))
                    }
                    (_, Some(link)) => Exchange::route_over(plan, config.workers, &link),
                    (route, None) => route,
                }
            }
        })
    }

    /// Builds one worker's part of this. If a number is given, a step is cut into at most that many parts.
    ///
    /// # Errors
    ///
    /// If the codec does not fit this way to agree, or this way has no pipeline.
    pub(crate) fn begin(
        &self,
        rules: &Rules,
        layout: Layout,
        pipeline: Option<usize>,
    ) -> Result<Agreement, ExchangeError> {
        Ok(match self {
            Self::Mean(route) => Agreement::Mean(Box::new(Means::new(rules, layout, route, pipeline)?)),
            Self::Gossip(topology) => {
                Agreement::Gossip(Box::new(Mixer::new(*rules.others(), layout, *topology)?))
            }
        })
    }
}

/// One worker's part in every step.
#[derive(Debug)]
pub(crate) enum Agreement {
    Mean(Box<Means>),
    Gossip(Box<Mixer>),
}

impl Agreement {
    /// The server's residual of its means.
    pub(crate) fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        match self {
            Self::Mean(means) => means.exchange.downlink_memory(),
            Self::Gossip(_) => None,
        }
    }

    /// Sets the quorum of a server.
    #[cfg(feature = "zmq")]
    pub(crate) fn set_quorum(&mut self, quorum: usize) {
        if let Self::Mean(means) = self {
            means.exchange.set_quorum(quorum);
        }
    }

    /// Sets how long a server waits for frames.
    #[cfg(feature = "zmq")]
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        if let Self::Mean(means) = self {
            means.exchange.set_patience(patience);
        }
    }

    /// The state of a server's cap on norms.
    pub(crate) fn norms(&self) -> Vec<f64> {
        match self {
            Self::Mean(means) => means.exchange.norms(),
            Self::Gossip(_) => Vec::new(),
        }
    }

    /// Continues from [`norms`](Self::norms).
    pub(crate) fn restore_norms(&mut self, norms: &[f64]) {
        if let Self::Mean(means) = self {
            means.exchange.restore_norms(norms);
        }
    }
}

/// The same tensors, all sent whole as `none` does, with a residual where there is one.
fn everything_of(rules: &Rules) -> Rules {
    let keeps = rules.rules().iter().any(|rule| rule.spec().memory != MemoryChoice::None);
    let memory = if keeps { MemoryChoice::ErrorFeedback } else { MemoryChoice::None };
    Spec { units: rules.others().units, memory, ..Spec::new(Codec::NONE) }.into()
}

/// One worker's part in the mean of every step. Steps that send everything do it as `none` does: by a ring
/// where the codec's frames go to all, and otherwise the way that the codec goes.
#[derive(Debug)]
pub(crate) struct Means {
    exchange: Exchange,
    dense: Exchange,
    /// Whether everything was sent in the step under way.
    sends_all: bool,
}

impl Means {
    fn new(
        rules: &Rules,
        layout: Layout,
        route: &Route,
        pipeline: Option<usize>,
    ) -> Result<Self, ExchangeError> {
        let everything = everything_of(rules);
        let ring = match route {
            Route::AllGather | Route::SparseAllReduce => Route::AllReduce { wire: Wire::F32 },
            route => route.clone(),
        };
        let exchange = |rules: &Rules, layout, route| match pipeline {
            Some(messages) => Exchange::new(rules, layout, route)?.pipelined(messages),
            None => Exchange::new(rules, layout, route),
        };
        let dense = exchange(&everything, layout.clone(), ring)?;
        Ok(Self { exchange: exchange(rules, layout, route.clone())?, dense, sends_all: false })
    }

    /// Sets the density of each codec that has one to that of its warm-up in an epoch.
    pub(crate) fn set_epoch(&mut self, epoch: u64) -> Result<(), ExchangeError> {
        self.exchange.set_epoch(epoch)
    }

    /// Sets the density of each codec that has one.
    pub(crate) fn set_density(&mut self, density: Density) -> Result<(), ExchangeError> {
        self.exchange.set_density(density)
    }

    /// Gives each unit a density for the steps to come, until a step begins with a codec.
    pub(crate) fn set_densities(&mut self, densities: &[Density]) -> Result<(), ExchangeError> {
        self.exchange.set_densities(densities)
    }

    /// Sets the rank of the steps to come, and turns the factors in the memory into those of that rank.
    pub(crate) fn set_rank(&mut self, rank: u16, memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        self.exchange.set_rank(rank, memory)
    }

    /// The same with a rank for each unit.
    pub(crate) fn set_ranks(&mut self, ranks: &[u16], memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        self.exchange.set_ranks(ranks, memory)
    }

    /// Begins a step.
    pub(crate) fn start(
        &mut self,
        transport: &mut dyn Transport,
        (key, grad): (StepKey, Grad<'_>),
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        self.sends_all = false;
        self.exchange.start(transport, key, grad, memory, deadline)
    }

    /// Begins a step with what was selected at the density with that position.
    pub(crate) fn start_selected(
        &mut self,
        transport: &mut dyn Transport,
        (selection, at): (&mut Selection, usize),
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        self.sends_all = false;
        self.exchange.start_selected(transport, selection, at, memory, deadline)
    }

    /// Begins a step that sends residual + gradient whole.
    pub(crate) fn start_all(
        &mut self,
        transport: &mut dyn Transport,
        (key, grad): (StepKey, Grad<'_>),
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        self.sends_all = true;
        self.dense.start(transport, key, grad, memory, deadline)
    }

    /// Ends the step under way; see [`Exchange::finish`].
    pub(crate) fn finish(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<Report, ExchangeError> {
        let exchange = if self.sends_all { &mut self.dense } else { &mut self.exchange };
        exchange.finish(transport, mean, memory, deadline)
    }
}
