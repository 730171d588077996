//! Models move towards those of their neighbours; no rank waits for all.
//!
//! A [`Mixer`] belongs to one rank. After its own optimizer step the rank calls [`mix`](Mixer::mix): one or
//! more rounds with each neighbour in the [`Topology`], each of which starts from the models before it.
//! Replicas stay different. Their mean stays where it was (except for rounding), and their distance shrinks
//! by the graph's second largest eigenvalue at each step.
//!
//! A mixer is a [`Machine`](crate::exchange::Machine), like an exchange: it has no sockets, threads or
//! clocks. [`begin`](Mixer::begin) and [`work`](Mixer::work) are its steps for drivers of one's own.
//!
//! # What an edge keeps
//! Some codecs keep something for each edge, the same at both ends. The first message of a step carries a
//! fingerprint of it. If the two ends differ, both start that edge from zeros, in the same step: one of them
//! could not end the step before, left the run and came back, or continues from an older checkpoint. When
//! the membership changes, an edge between ranks that are still neighbours keeps what it has.
//!
//! # A step that fails
//! The model and all edges of this rank are then as they were before the step, and its neighbours are told,
//! so that none of them waits for messages that do not come.

mod end;
mod machine;
mod topology;

use std::fmt;
use std::time::Duration;

use gradwire::registry::GossipCodec;
use gradwire::rounds::Gossip;
use gradwire::{Codec, Layout, Spec, Unit, UnitPolicy};

use self::end::End;
pub use self::machine::Mixing;
use self::machine::Step;
pub use self::topology::Topology;
use crate::error::TransportError;
use crate::exchange::port::Port;
use crate::exchange::{EARLY, ExchangeError};
use crate::inbox::InboxLimits;
use crate::rank::{Membership, Rank, RankSet};

/// What one rank reports about one mixing step.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// The neighbours whose models entered this rank's model, ascending.
    pub neighbours: RankSet,
    /// Bytes of the messages that this rank sent, over all neighbours.
    pub sent_bytes: usize,
    /// Time spent preparing payloads and moving the model.
    pub codec: Duration,
    /// Time spent sending and waiting.
    pub exchange: Duration,
}

/// One rank's part of every mixing step: settings, what its edges keep, and buffers that are reused from step
/// to step.
pub struct Mixer {
    codec: Method,
    layout: Layout,
    units: Vec<Unit>,
    topology: Topology,
    /// This rank, and the members of the last step.
    place: Option<(Rank, Membership)>,
    neighbours: RankSet,
    /// The entry of the mixing matrix for each of them.
    weight: f32,
    /// One for each neighbour, by ascending rank.
    ends: Vec<End>,
    port: Port,
    step: Step,
}

/// A codec of this project or of another crate.
enum Method {
    Listed(GossipCodec),
    Own(Box<dyn Gossip>),
}

impl Method {
    fn codec(&self) -> &dyn Gossip {
        match self {
            Self::Listed(codec) => codec.rounds(),
            Self::Own(codec) => &**codec,
        }
    }
}

impl fmt::Debug for Mixer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mixer").field("topology", &self.topology).field("place", &self.place).finish()
    }
}

impl Mixer {
    /// For models of this layout.
    ///
    /// # Errors
    /// `NotGossip` for a codec that makes a mean over all workers.
    pub fn new(spec: Spec, layout: Layout, topology: Topology) -> Result<Self, ExchangeError> {
        let Codec::Gossip(codec) = spec.codec else {
            return Err(ExchangeError::NotGossip { codec: spec.codec.name() });
        };
        Ok(Self::of(Method::Listed(codec), spec.units, layout, topology))
    }

    /// For models of this layout, with a codec of another crate.
    pub fn with_codec(
        codec: impl Gossip + 'static,
        units: UnitPolicy,
        layout: Layout,
        topology: Topology,
    ) -> Self {
        Self::of(Method::Own(Box::new(codec)), units, layout, topology)
    }

    fn of(codec: Method, units: UnitPolicy, layout: Layout, topology: Topology) -> Self {
        let units = units.units(&layout.as_ref()).collect();
        let (place, neighbours, ends, step) = Default::default();
        let port = Port::new(EARLY);
        Self { codec, layout, units, topology, place, neighbours, weight: 1.0, ends, port, step }
    }

    /// The same, with another bound on messages that arrive before this rank asks for them. A driver that
    /// receives by name never hands in any.
    #[must_use]
    pub fn keeping_early(mut self, limits: InboxLimits) -> Self {
        self.port = Port::new(limits);
        self
    }

    /// What each edge keeps, by ascending rank of the neighbour; of all units, one after the other. A run
    /// that continues elsewhere saves it and passes it to [`restore_edge`](Self::restore_edge). Edges that
    /// keep nothing are left out.
    pub fn edges(&self) -> impl Iterator<Item = (Rank, &[f32])> {
        self.ends.iter().map(|end| (end.neighbour, end.kept())).filter(|(_, kept)| !kept.is_empty())
    }

    /// Continues an edge to a neighbour from what [`edges`](Self::edges) returned. Returns whether the codec
    /// keeps as much; if not, the edge is as it was. What belongs to a rank that is no neighbour in the next
    /// step is forgotten.
    ///
    /// # Panics
    /// During a step.
    pub fn restore_edge(&mut self, me: Rank, neighbour: Rank, kept: &[f32]) -> bool {
        assert!(self.step.is_over(), "an edge cannot be restored during a step");
        if kept.len() != self.kept_len() {
            return false;
        }
        let mut end = End::new(me, neighbour, kept.len());
        end.kept_mut().copy_from_slice(kept);
        self.ends.retain(|end| end.neighbour != neighbour);
        let at = self.ends.partition_point(|end| end.neighbour < neighbour);
        self.ends.insert(at, end);
        self.place = None;
        true
    }

    /// Elements that an edge keeps.
    fn kept_len(&self) -> usize {
        let (codec, layout) = (self.codec.codec(), self.layout.as_ref());
        self.units.iter().map(|unit| codec.kept_len(&layout, unit)).sum()
    }

    /// Finds the neighbours, when the membership has changed. Edges to ranks that were neighbours before keep
    /// what they have.
    fn look_around(&mut self, me: Rank, members: &Membership) -> Result<(), ExchangeError> {
        if self.place.as_ref().is_some_and(|(rank, known)| *rank == me && known == members) {
            return Ok(());
        }
        let (world, ranks) = (members.world(), members.ranks.as_slice());
        let position = members.ranks.position(me).ok_or(TransportError::NotAPeer { rank: me })?;
        self.neighbours = self.topology.neighbours(world, position).into_iter().map(|at| ranks[at]).collect();
        self.weight = self.topology.weight(world);
        let (kept_len, mut before) = (self.kept_len(), std::mem::take(&mut self.ends));
        let mut end_to = |neighbour| match before.iter().position(|end| end.neighbour == neighbour) {
            Some(at) => before.swap_remove(at),
            None => End::new(me, neighbour, kept_len),
        };
        self.ends = self.neighbours.iter().map(&mut end_to).collect();
        self.place = Some((me, members.clone()));
        Ok(())
    }
}
