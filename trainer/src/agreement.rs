//! How workers agree: on the mean of all gradients, or by moving towards their neighbours.

use gradwire::{Layout, Memory, Spec};
use gradwire_transports::collective::Wire;
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::gossip::{Mixer, Topology};

use crate::config::RunConfig;

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

impl Averaging {
    /// What the checked configuration means for a gradient of `len` elements.
    pub(crate) fn of(config: &RunConfig, spec: &Spec, len: usize) -> Self {
        let wire = if config.wire.as_deref() == Some("bf16") { Wire::Bf16 } else { Wire::F32 };
        let topology = match config.topology.as_deref() {
            Some("ring") => Some(Topology::Ring),
            Some("torus") => Some(Topology::Torus),
            Some("complete") => Some(Topology::Complete),
            _ => None,
        };
        match (topology, config.exchange.as_str()) {
            (Some(topology), _) => Self::Gossip(topology),
            (None, "all-gather") => Self::Mean(Route::AllGather),
            (None, "sparse") => Self::Mean(Route::SparseAllReduce),
            (None, "all-reduce") => Self::Mean(Route::AllReduce { wire }),
            (None, "tree") => Self::Mean(Route::Tree { wire }),
            (None, "native") => Self::Mean(Route::Native { wire }),
            (None, "server") if spec.packets.is_none() => Self::Mean(Route::Server(ServerOptions::default())),
            (None, _) => Self::Mean(match link(config) {
                Some(link) => Exchange::route_over(spec, len, config.workers, &link),
                None => Exchange::best_route(spec),
            }),
        }
    }

    /// Builds one worker's part of this. If a number is given, a step is cut into at most that many parts.
    ///
    /// # Errors
    ///
    /// If the codec does not fit this way to agree, or this way has no pipeline.
    pub(crate) fn begin(
        &self,
        spec: Spec,
        layout: Layout,
        pipeline: Option<usize>,
    ) -> Result<Agreement, ExchangeError> {
        Ok(match self {
            Self::Mean(route) => {
                let exchange = Exchange::new(spec, layout, route.clone())?;
                let exchange = match pipeline {
                    Some(messages) => exchange.pipelined(messages)?,
                    None => exchange,
                };
                Agreement::Mean(Box::new(exchange))
            }
            Self::Gossip(topology) => Agreement::Gossip(Box::new(Mixer::new(spec, layout, *topology)?)),
        })
    }
}

/// One worker's part in every step.
#[derive(Debug)]
pub(crate) enum Agreement {
    Mean(Box<Exchange>),
    Gossip(Box<Mixer>),
}

impl Agreement {
    /// The server's residual of its means.
    pub(crate) fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        match self {
            Self::Mean(exchange) => exchange.downlink_memory(),
            Self::Gossip(_) => None,
        }
    }

    /// Sets the quorum of a server.
    #[cfg(feature = "zmq")]
    pub(crate) fn set_quorum(&mut self, quorum: usize) {
        if let Self::Mean(exchange) = self {
            exchange.set_quorum(quorum);
        }
    }

    /// The state of a server's cap on norms.
    pub(crate) fn norms(&self) -> Vec<f64> {
        match self {
            Self::Mean(exchange) => exchange.norms(),
            Self::Gossip(_) => Vec::new(),
        }
    }

    /// Continues from [`norms`](Self::norms).
    pub(crate) fn restore_norms(&mut self, norms: &[f64]) {
        if let Self::Mean(exchange) = self {
            exchange.restore_norms(norms);
        }
    }
}
