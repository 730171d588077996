//! Models move towards those of their neighbours; no rank waits for all.
//!
//! A [`Mixer`] belongs to one rank. After its own optimizer step the rank calls [`mix`](Mixer::mix): one or
//! more rounds with each neighbour in the [`Topology`], all of which start from the models before the call.
//! Replicas stay different. Their mean stays where it was (except for rounding), and their distance shrinks
//! by the graph's second largest eigenvalue at each step.

mod topology;

use std::time::{Duration, Instant};

use gradwire::arithmetic::first_non_finite;
use gradwire::registry::GossipCodec;
use gradwire::rounds::{Edge, Payload, Round, RoundBuffers};
use gradwire::{Codec, Layout, Spec, StepKey, Unit};

use crate::derived::Kind;
use crate::error::TransportError;
use crate::exchange::ExchangeError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

pub use self::topology::Topology;

/// What one rank reports about one mixing step.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// The neighbours whose models entered this rank's model, ascending.
    pub neighbours: RankSet,
    /// Bytes of the payloads that this rank sent, over all neighbours.
    pub sent_bytes: usize,
    /// Time spent preparing payloads and moving the model.
    pub codec: Duration,
    /// Time spent sending and waiting.
    pub exchange: Duration,
}

/// One rank's part of every mixing step: settings, and buffers that are reused from step to step.
#[derive(Debug)]
pub struct Mixer {
    codec: GossipCodec,
    layout: Layout,
    units: Vec<Unit>,
    topology: Topology,
    surroundings: Option<Surroundings>,
    conversations: Vec<Conversation>,
    outgoing: Vec<u8>,
}

/// The neighbours of this rank in one membership.
#[derive(Clone, Debug)]
struct Surroundings {
    members: Membership,
    neighbours: RankSet,
    /// The entry of the mixing matrix for each of them.
    weight: f32,
}

/// One unit on its way between this rank and one neighbour, with its own working memory.
#[derive(Debug, Default)]
struct Conversation {
    buffers: RoundBuffers,
    incoming: Vec<u8>,
    theirs: Vec<f32>,
    with: Option<(Rank, Round)>,
}

impl Conversation {
    /// Working memory for a unit of `len` elements, and the codec's first round.
    fn begin(
        &mut self,
        codec: &GossipCodec,
        (key, edge): (StepKey, Edge),
        (layout, unit): (&Layout, &Unit),
        (neighbour, model): (Rank, &[f32]),
    ) -> Result<(), ExchangeError> {
        self.buffers.grow(codec.rounds().round_scratch_len(unit.len));
        let (model, mut scratch) = (&model[unit.range()], self.buffers.scratch());
        let round = codec.rounds().begin(key, edge, &layout.as_ref(), unit, model, &mut scratch)?;
        self.with = Some((neighbour, round));
        Ok(())
    }

    /// Writes this round's payload to `out`, little-endian.
    fn write(&mut self, codec: &GossipCodec, round: &Round, out: &mut Vec<u8>) {
        out.clear();
        match codec.rounds().payload(round, &mut self.buffers.scratch()) {
            Payload::F32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Payload::I32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            _ => unreachable!("neighbours exchange f32"),
        }
    }

    /// Checks received payloads before they are used.
    fn read(&mut self, from: Rank, tag: Tag, round: &Round) -> Result<(), ExchangeError> {
        let (expected, actual) = (4 * round.payload_len, self.incoming.len());
        if expected != actual {
            return Err(TransportError::WrongLength { from, tag, expected, actual }.into());
        }
        self.theirs.clear();
        self.theirs.extend(self.incoming.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        match first_non_finite(&self.theirs) {
            Some(index) => Err(ExchangeError::NonFinitePayload { rank: from, index }),
            None => Ok(()),
        }
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
        let units = spec.units.units(&layout.as_ref()).collect();
        let (conversations, outgoing) = (Vec::new(), Vec::new());
        Ok(Self { codec, layout, units, topology, surroundings: None, conversations, outgoing })
    }

    /// Moves `model` towards the models of its neighbours in the current membership.
    ///
    /// # Errors
    /// `Encode` for a model that is not finite; `Transport`; `NonFinitePayload`. The model is then as it was.
    /// A neighbour that received everything may still have moved. Then the mean of the models has moved too,
    /// by at most the edge's weight times their difference.
    ///
    /// # Panics
    /// When `model` has another length than the layout.
    ///
    /// # Determinism
    /// A model moves along its edges in the order of the neighbours' ranks, unit by unit, whatever arrived
    /// first.
    pub fn mix(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        model: &mut [f32],
        deadline: Deadline,
    ) -> Result<Mixed, ExchangeError> {
        assert_eq!(model.len(), self.layout.len(), "model and layout differ in length");
        let started = Instant::now();
        let members = transport.membership();
        let tag = Tag::new(members.epoch, key.step);
        transport.retire(tag);
        let me = transport.rank();
        let Surroundings { neighbours, weight, .. } = self.surroundings(me, members)?;
        self.begin(key, me, neighbours.as_slice(), model)?;
        let (mut sent_bytes, mut exchange) = (0, Duration::ZERO);
        while self.conversations.iter().any(|conversation| conversation.with.is_some()) {
            let waiting = Instant::now();
            sent_bytes += self.send(transport, tag, deadline)?;
            self.receive(transport, tag, deadline)?;
            exchange += waiting.elapsed();
            self.advance(weight, model);
        }
        Ok(Mixed { neighbours, sent_bytes, codec: started.elapsed() - exchange, exchange })
    }

    /// Worked out when the membership changes.
    fn surroundings(&mut self, me: Rank, members: Membership) -> Result<Surroundings, ExchangeError> {
        if let Some(known) = self.surroundings.as_ref().filter(|known| known.members == members) {
            return Ok(known.clone());
        }
        let (world, ranks) = (members.world(), members.ranks.as_slice());
        let position = members.ranks.position(me).ok_or(TransportError::NotAPeer { rank: me })?;
        let neighbours = self.topology.neighbours(world, position).into_iter().map(|at| ranks[at]).collect();
        let weight = self.topology.weight(world);
        Ok(self.surroundings.insert(Surroundings { members, neighbours, weight }).clone())
    }

    /// Every unit with every neighbour, from the same models.
    fn begin(
        &mut self,
        key: StepKey,
        me: Rank,
        neighbours: &[Rank],
        model: &[f32],
    ) -> Result<(), ExchangeError> {
        let pairs = neighbours.iter().flat_map(|&rank| self.units.iter().map(move |unit| (rank, unit)));
        self.conversations.resize_with(neighbours.len() * self.units.len(), Conversation::default);
        for (conversation, (rank, unit)) in self.conversations.iter_mut().zip(pairs) {
            let edge = Edge { low: me.0.min(rank.0), high: me.0.max(rank.0) };
            conversation.begin(&self.codec, (key, edge), (&self.layout, unit), (rank, model))?;
        }
        Ok(())
    }

    /// Sends this round's payloads and returns their bytes.
    fn send(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        deadline: Deadline,
    ) -> Result<usize, ExchangeError> {
        let mut sent = 0;
        for conversation in &mut self.conversations {
            let Some((rank, round)) = conversation.with else { continue };
            conversation.write(&self.codec, &round, &mut self.outgoing);
            transport.send(rank, tag_of(tag, &round)?, &self.outgoing, deadline)?;
            sent += self.outgoing.len();
        }
        Ok(sent)
    }

    /// Receives the payloads of all neighbours. The model moves only after that, when nothing can fail any
    /// more.
    fn receive(
        &mut self,
        transport: &mut dyn Transport,
        tag: Tag,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        for conversation in &mut self.conversations {
            let Some((rank, round)) = conversation.with else { continue };
            let tag = tag_of(tag, &round)?;
            transport.recv(rank, tag, &mut conversation.incoming, deadline)?;
            conversation.read(rank, tag, &round)?;
        }
        Ok(())
    }

    fn advance(&mut self, weight: f32, model: &mut [f32]) {
        for conversation in &mut self.conversations {
            let Some((rank, round)) = conversation.with else { continue };
            let theirs = std::mem::take(&mut conversation.theirs);
            let model = &mut model[round.unit.range()];
            let next = self.codec.rounds().advance(
                round,
                &mut conversation.buffers.scratch(),
                &theirs,
                weight,
                model,
            );
            conversation.theirs = theirs;
            conversation.with = next.map(|round| (rank, round));
        }
    }
}

/// Two neighbours have one conversation a unit, so unit and round name a message.
fn tag_of(tag: Tag, round: &Round) -> Result<Tag, TransportError> {
    tag.unit(round.unit.id).derive(Kind::Gossip, round.index as usize)
}
