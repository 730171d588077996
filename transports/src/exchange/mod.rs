//! How the gradients of a step become one mean over the workers.
//!
//! An [`Exchange`] belongs to one rank. [`start`](Exchange::start) encodes and sends, [`finish`](Exchange::finish)
//! receives, decodes and divides; what a rank computes between the two overlaps with the network.
//!
//! | route | codecs | order of the sum | bytes each rank sends |
//! | --- | --- | --- | --- |
//! | [`Route::AllGather`] | all | ranks ascending, coordinates ascending | (N−1)·frame |
//! | [`Route::SparseAllReduce`] | sparse | as all-gather, at the owner of each coordinate | about (N−1)/N·(frame + union of all frames) |
//! | [`Route::AllReduce`] | linear | [`collective::reduce_scatter`](crate::collective::reduce_scatter) | 2(N−1)/N·payload |
//! | [`Route::Tree`] | linear | [`collective::tree_all_reduce`](crate::collective::tree_all_reduce) | payload; at most ⌈log₂N⌉·payload |
//! | [`Route::Native`] | linear | the library's own | the library's affair |
//! | [`Route::Server`] | all | ranks ascending at the server; its frame is what all decode | frame; the server (N−1)·downlink |
//!
//! Around the ring all units travel at the same time, and with [`Exchange::pipelined`] encoding, travel and decoding overlap.
//!
//! Frames are added as they are decoded, so memory does not grow with the number of workers; the divisor is the number
//! of workers whose frame entered the sum. The owner of a frame decodes its own bytes like everyone else.
//!
//! # Packets
//! With `max_packet_bytes`, a worker of [`Route::Server`] sends its gradient as packets that may be
//! lost ([`Transport::send_packet`]), and a lost packet is a lost range, not a lost step: each coordinate of the mean is divided
//! by the number of workers whose packet with it arrived, and the server's answer names to each worker those of its packets
//! that did not. Other routes have nobody who could say so to all.
//!
//! # Conservation
//! Whatever the mean does not include goes back to the sender's [`Memory`]: a step that fails, a frame or packet that was
//! lost, that the server refused, or that it did not wait for. With a norm cap, off by default, a server leaves out a part of
//! frames that are too long; that part is lost, and [`Report::capped`] says whose it was and how much. So what was sent is
//! what was applied, what is kept, and what was reported as lost.

mod all_gather;
mod all_reduce;
mod error;
mod incoming;
mod intake;
mod norm_cap;
mod own;
mod packets;
mod pipeline;
mod server;
mod slip;
mod sparse;
mod underway;
mod verdict;

use std::time::{Duration, Instant};

use gradwire::codecs::ValueChoice;
use gradwire::{Codec, DecodeError, Density, Grad, Layout, Memory, Spec, StepKey, Unit};

use crate::collective::Wire;
use crate::cost::{Link, sparse_frame_bytes};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

use self::all_gather::AllGather;
use self::all_reduce::{AllReduce, Order};
pub use self::error::ExchangeError;
pub use self::norm_cap::Capped;
use self::pipeline::Pipeline;
use self::server::Server;
use self::sparse::SparseAllReduce;
use self::underway::Underway;

/// How frames travel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Route {
    /// Every frame goes to every rank. A step is all or nothing for each rank, but it may fail at one and succeed at
    /// another: a rank whose step failed must leave the run or fetch the parameters anew.
    AllGather,
    /// Every rank owns blocks of the coordinates: it is sent what the others' frames hold of them, sums, and sends the sums
    /// to all. For codecs that send few coordinates; the mean has the bits of [`Route::AllGather`]. Blocks in which nearly
    /// nothing is zero travel dense. A rank whose part was refused tells all others, for whom the step then fails too.
    ///
    /// # Source
    /// Renggli et al.: SparCML (arXiv 1802.08021), split and all-gather with its switch to dense; Li, Hoefler: Near-Optimal
    /// Sparse Allreduce for Distributed Deep Learning (Ok-Topk, arXiv 2201.07598), whose balanced regions are blocks dealt in
    /// turn here. Nothing is dropped on the way.
    SparseAllReduce,
    /// Payloads are summed around a ring; for linear codecs, and for `none`. Fails as [`Route::AllGather`] does.
    AllReduce {
        /// What an f32 takes between two hops.
        wire: Wire,
    },
    /// As [`Route::AllReduce`], but summed up a binomial tree and sent down again: in ⌈log₂N⌉ steps each way instead of
    /// N−1, each with the whole payload. For short payloads and long round trips.
    Tree {
        /// What an f32 takes between two hops.
        wire: Wire,
    },
    /// As [`Route::AllReduce`], but summed by the all-reduce of the transport's own library, where it has one: in an
    /// order that only the library knows, so with other bits than elsewhere.
    Native {
        /// What an f32 takes in the library's sums.
        wire: Wire,
    },
    /// Every frame goes to one rank, which sends back the mean.
    Server(ServerOptions),
}

/// Settings of a parameter server. The server is a member that contributes a gradient of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// Which rank serves.
    pub server: Rank,
    /// Frames, the server's own included, without which a step fails; 0 stands for all.
    pub quorum: usize,
    /// How long the server waits for frames; it then goes on with those it has. A worker's packets that did not get through
    /// by then are not sent again. `None`: until the deadline of the step.
    pub patience: Option<Duration>,
    /// How the mean is sent back; error feedback, if the spelling has any, is kept by the server.
    pub downlink: Spec,
    /// A frame whose Euclidean norm is more than this multiple, at least 1, of a running median enters the sum scaled down to
    /// it, the server's own too. `None`: none is. Only the server's setting matters.
    ///
    /// The median is that of the last 64 decoded norms before the frame, zeros left out and the lower one of two; the first
    /// 8 pass. [`Exchange::norms`] saves them for a server that is started again. What is cut off is lost, not given back: with error feedback it would
    /// come again with the next frame. One member can then move a mean no further than that multiple of the others' median,
    /// in a direction of its choice.
    pub norm_cap: Option<f32>,
}

impl Default for ServerOptions {
    /// Rank 0 serves, waits for all, answers with dense f32, and caps no norm.
    fn default() -> Self {
        let downlink = Spec::new(Codec::NONE);
        Self { server: Rank(0), quorum: 0, patience: None, downlink, norm_cap: None }
    }
}

/// What one rank has to say of a step's exchange.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whose gradients the mean is made of.
    pub contributors: RankSet,
    /// Frames that this rank refused, and why. Known to the server alone.
    pub refused: Vec<(Rank, DecodeError)>,
    /// Frames that were scaled down to [`ServerOptions::norm_cap`]. Known to the server alone.
    pub capped: Vec<Capped>,
    /// Bytes of this rank's own frame or packets, of its all-reduce payload, or of its parts and sums in a sparse all-reduce.
    pub frame_bytes: usize,
    /// What became of this rank's own packets.
    pub packets: PacketTally,
    /// Coordinates that this rank sent.
    pub held: usize,
    /// Time spent encoding.
    pub encode: Duration,
    /// Time spent sending and waiting.
    pub exchange: Duration,
    /// Time spent parsing, adding and dividing.
    pub decode: Duration,
}

/// A step in packets; zero and zero for one in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketTally {
    /// Packets that this rank sent.
    pub sent: usize,
    /// Those that are not in the mean: lost on the way, late or refused. They were given back.
    pub lost: usize,
}

/// One rank's part of every step's exchange: settings, and buffers that are reused from step to step.
#[derive(Debug)]
pub struct Exchange {
    spec: Spec,
    layout: Layout,
    units: Vec<Unit>,
    route: State,
    underway: Underway,
    started: Option<Started>,
}

#[derive(Debug)]
enum State {
    AllGather(Pipeline<AllGather>),
    SparseAllReduce(Box<Pipeline<SparseAllReduce>>),
    AllReduce(Pipeline<AllReduce>),
    Server(Box<Server>),
}

/// A step between its start and its finish.
#[derive(Clone, Copy, Debug)]
struct Started {
    key: StepKey,
    tag: Tag,
    clock: Clock,
}

/// What every route works with in a step.
struct Step<'a> {
    transport: &'a mut dyn Transport,
    underway: &'a mut Underway,
    spec: &'a Spec,
    layout: &'a Layout,
    units: &'a [Unit],
    key: StepKey,
    tag: Tag,
    deadline: Deadline,
    clock: Clock,
}

impl Step<'_> {
    /// The place of this rank among the members, of whom it is one.
    fn place_in(&self, members: &RankSet) -> usize {
        members.position(self.transport.rank()).unwrap_or(0)
    }

    /// The other members and their places, beginning with the one after this rank, so that not all send to the same one first.
    fn others_in<'m>(&self, members: &'m RankSet) -> impl Iterator<Item = (usize, Rank)> + use<'m> {
        let me = self.place_in(members);
        (me + 1..members.len()).chain(0..me).map(|place| (place, members.as_slice()[place]))
    }

    /// Sends a message of a pipeline.
    fn send(&mut self, to: Rank, tag: Tag, message: &[u8]) -> Result<(), TransportError> {
        let (underway, transport, deadline) = (&mut *self.underway, &mut *self.transport, self.deadline);
        timed(&mut self.clock.exchange, || underway.send(transport, (to, tag), message, deadline))
    }

    /// Notes that every other member sends this rank a message with that tag.
    fn expect_from_all(&mut self, tag: Tag) {
        let (members, me) = (self.transport.membership().ranks, self.transport.rank());
        members.iter().filter(|rank| *rank != me).for_each(|from| self.underway.expect(from, tag));
    }

    /// Takes the message of a pipeline that was promised first.
    fn take(&mut self, into: &mut Vec<u8>) -> Result<(), TransportError> {
        let (underway, transport, deadline) = (&mut *self.underway, &mut *self.transport, self.deadline);
        timed(&mut self.clock.exchange, || underway.take(transport, into, deadline))
    }
}

/// Adds up where the time goes.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    encode: Duration,
    exchange: Duration,
    decode: Duration,
}

/// About what a value takes.
fn value_bits(values: ValueChoice) -> f64 {
    match values {
        ValueChoice::Q2 => 2.0,
        ValueChoice::Q4 => 4.0,
        ValueChoice::Q8 => 8.0,
        ValueChoice::F16 | ValueChoice::Bf16 => 16.0,
        _ => 32.0,
    }
}

/// Runs `work` and adds its time to `sum`.
fn timed<T>(sum: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *sum += start.elapsed();
    result
}

impl Exchange {
    /// An exchange of gradients of that layout, by that route.
    ///
    /// # Errors
    /// `NotLinear` for [`Route::AllReduce`], [`Route::Tree`] and [`Route::Native`] with a codec whose payloads cannot be summed; `Gossip` for a codec between
    /// neighbours, which makes no mean over all; `NotSparse` for [`Route::SparseAllReduce`] with a codec whose frames are dense;
    /// `NoFrames` for a route of frames with a codec of rounds alone; `Packets` for a gradient that is to be cut, by a route without a server;
    /// `NormCap` for a multiple below 1 or not finite; `CappedPackets` for one with packets.
    pub fn new(spec: Spec, layout: Layout, route: Route) -> Result<Self, ExchangeError> {
        if spec.packets.is_some() && !matches!(route, Route::Server(_)) {
            return Err(ExchangeError::Packets);
        }
        if matches!(spec.codec, Codec::Gossip(_)) {
            return Err(ExchangeError::Gossip { codec: spec.codec.name() });
        }
        let is_summed = matches!(route, Route::AllReduce { .. } | Route::Tree { .. } | Route::Native { .. });
        if !is_summed && !spec.codec.capabilities().has_frames {
            return Err(ExchangeError::NoFrames { codec: spec.codec.name() });
        }
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let route = match route {
            Route::AllGather => State::AllGather(Pipeline::new(AllGather::default(), &units)),
            Route::SparseAllReduce => {
                let sparse = SparseAllReduce::new(&spec.codec);
                let sparse = sparse.ok_or(ExchangeError::NotSparse { codec: spec.codec.name() })?;
                State::SparseAllReduce(Box::new(Pipeline::new(sparse, &units)))
            }
            Route::AllReduce { wire } | Route::Tree { wire } | Route::Native { wire } => {
                let linear =
                    spec.codec.as_linear().ok_or(ExchangeError::NotLinear { codec: spec.codec.name() })?;
                let order = match route {
                    Route::Tree { .. } => Order::Tree,
                    Route::Native { .. } => Order::Native,
                    _ => Order::Ring,
                };
                State::AllReduce(Pipeline::new(AllReduce::new(linear, wire, order, units.len()), &units))
            }
            Route::Server(options) => State::Server(Box::new(Server::new(options, &spec, &layout.as_ref())?)),
        };
        Ok(Self { spec, layout, units, route, underway: Underway::default(), started: None })
    }

    /// The same, with the step in at most `messages` parts of neighbouring units instead of one: while the messages of one
    /// travel the next is encoded, and those before it are worked on. [`start`](Self::start) then waits for others too: a
    /// part that begins gives each part under way a turn, in which it takes the messages that it waits for and sends those
    /// that follow from them. A unit is not cut, so a spelling with `unit=tensor` gains most.
    ///
    /// | route | what is a part | its turns |
    /// | --- | --- | --- |
    /// | [`Route::AllGather`] | a frame | frames of all others |
    /// | [`Route::SparseAllReduce`] | a frame, and blocks of an owner for each rank | the own blocks of all others; their sums |
    /// | [`Route::AllReduce`] | units | 2(N−1) hops of each round |
    ///
    /// Every member does the same. A gradient that is refused leaves in the memory what was encoded before it, as a step
    /// that failed does.
    ///
    /// # Errors
    /// `OneMessage` for the other routes, where there is nothing to gain or no way to it. [`Route::Tree`] is for payloads that
    /// are too short to be cut, and a library sums a payload of [`Route::Native`] in one call. The frame of a worker of
    /// [`Route::Server`] is in the mean whole or not at all, by quorum, patience and norm cap, so nothing of it can be added
    /// before the last message; transports send it while the worker goes on as it is, and the server works on one
    /// worker's while the others' travel.
    ///
    /// # Panics
    /// When `messages` is zero.
    ///
    /// # Determinism
    /// The mean and the memory have the bits that they have with one part.
    pub fn pipelined(mut self, messages: usize) -> Result<Self, ExchangeError> {
        assert_ne!(messages, 0, "a step takes a message");
        match &mut self.route {
            State::AllGather(gather) => gather.cut(&self.units, messages),
            State::SparseAllReduce(sparse) => sparse.cut(&self.units, messages),
            State::AllReduce(reduce) if reduce.route.has_hops() => reduce.cut(&self.units, messages),
            State::AllReduce(_) | State::Server(_) => return Err(ExchangeError::OneMessage),
        }
        Ok(self)
    }

    /// All-reduce where the codec allows it, a server for packets, else all-gather.
    pub fn best_route(spec: &Spec) -> Route {
        if spec.packets.is_some() {
            // A worker may lose all of them, and the others go on.
            return Route::Server(ServerOptions { quorum: 1, ..ServerOptions::default() });
        }
        match spec.codec.as_linear() {
            Some(_) => Route::AllReduce { wire: Wire::F32 },
            None => Route::AllGather,
        }
    }

    /// The same with a known link between `world` ranks, for a gradient of `len` elements: sparse all-reduce where the
    /// codec has a density and the cost model predicts less time for it than for all-gather, each with the frames that
    /// random coordinates would have.
    ///
    /// # Determinism
    /// The same on every machine, so that all ranks choose alike.
    pub fn route_over(spec: &Spec, len: usize, world: usize, link: &Link) -> Route {
        let route = Self::best_route(spec);
        let (Route::AllGather, Some(density), Some(values)) =
            (&route, spec.codec.density(), spec.codec.sparse_values())
        else {
            return route;
        };
        let frame = sparse_frame_bytes(len, density.fraction(), value_bits(values));
        let is_cheaper =
            link.sparse_all_reduce_s(world, len, density.fraction()) < link.all_gather_s(world, frame);
        if is_cheaper { Route::SparseAllReduce } else { route }
    }

    /// Sets the density of the steps from here on, where the codec has one; schedules and controllers call this between
    /// steps. Every member sets the same one for the same steps: frames that are longer than it allows are refused.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish.
    pub fn set_density(&mut self, density: Density) -> Result<(), ExchangeError> {
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        self.spec.codec = self.spec.codec.with_density(density);
        if let (State::AllReduce(reduce), Some(linear)) = (&mut self.route, self.spec.codec.as_linear()) {
            reduce.route.set_codec(linear);
        }
        Ok(())
    }

    /// Sets the quorum of [`ServerOptions::quorum`] for the steps from here on. Only the server's matters.
    pub fn set_quorum(&mut self, quorum: usize) {
        if let State::Server(server) = &mut self.route {
            server.set_quorum(quorum);
        }
    }

    /// What the server of [`Route::Server`] keeps back of its means, where its downlink has error feedback. Only the server's
    /// is ever used; a run that goes on elsewhere saves it and loads it.
    pub fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        match &mut self.route {
            State::Server(server) => server.downlink_memory(),
            _ => None,
        }
    }

    /// The norms of frames that the median of [`ServerOptions::norm_cap`] is taken over, oldest first, at most 64; empty without
    /// a cap, and at workers. A server that goes on elsewhere saves them and hands them to [`restore_norms`](Self::restore_norms).
    pub fn norms(&self) -> Vec<f64> {
        match &self.route {
            State::Server(server) => server.norms(),
            _ => Vec::new(),
        }
    }

    /// Goes on from what [`norms`](Self::norms) was; without a cap, nothing changes. Norms that are not finite and positive are
    /// left out.
    pub fn restore_norms(&mut self, norms: &[f64]) {
        if let State::Server(server) = &mut self.route {
            server.restore_norms(norms);
        }
    }

    /// The units that every frame holds.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Encodes `grad` and sends what can be sent without waiting for others. The memory is the one that the spelling asks
    /// for, as [`Memory::for_spec`] makes it.
    ///
    /// Every member starts the same steps in the same order, and finishes each before it starts the next.
    ///
    /// # Errors
    /// `Encode` (the memory is then as it was), `Transport` (the memory holds everything), `Busy`; in
    /// [several parts](Self::pipelined) also those of [`finish`](Self::finish) but for `NonFiniteMean`, with everything in the
    /// memory.
    ///
    /// # Panics
    /// When `grad` or the memory has another length than the layout.
    pub fn start(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        grad: Grad<'_>,
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        let tag = Tag::new(transport.membership().epoch, key.step);
        transport.retire(tag);
        self.underway.clear();
        let (underway, clock) = (&mut self.underway, Clock::default());
        let (spec, layout, units) = (&self.spec, &self.layout, self.units.as_slice());
        let mut step = Step { transport, underway, spec, layout, units, key, tag, deadline, clock };
        match &mut self.route {
            State::AllGather(gather) => gather.start(&mut step, grad, &mut memory)?,
            State::SparseAllReduce(sparse) => sparse.start(&mut step, grad, &mut memory)?,
            State::AllReduce(reduce) => reduce.start(&mut step, grad, &mut memory)?,
            State::Server(server) => server.start(&mut step, grad, &mut memory)?,
        }
        self.started = Some(Started { key, tag, clock: step.clock });
        Ok(())
    }

    /// Receives, decodes in rank order, and writes the mean over the contributors to `mean`, one element a coordinate,
    /// every one of them finite.
    ///
    /// # Errors
    /// `NotStarted`, `Transport`, `Frame`, `WrongStep`, `WrongUnits`, `NonFiniteMean`, `NoQuorum`, `NoSum`. The step is then
    /// refused: the memory holds everything again (but see [`ExchangeError::Transport`] for a server that is gone),
    /// and `mean` is unspecified.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the layout.
    ///
    /// # Determinism
    /// The mean has the same bits at every rank, on every transport, whatever arrived first.
    pub fn finish(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<Report, ExchangeError> {
        assert_eq!(mean.len(), self.layout.len(), "mean and layout differ in length");
        let started = self.started.take().ok_or(ExchangeError::NotStarted)?;
        let Started { key, tag, clock } = started;
        let (spec, layout, units) = (&self.spec, &self.layout, self.units.as_slice());
        let underway = &mut self.underway;
        let mut step = Step { transport, underway, spec, layout, units, key, tag, deadline, clock };
        match &mut self.route {
            State::AllGather(gather) => gather.finish(&mut step, mean, &mut memory),
            State::SparseAllReduce(sparse) => sparse.finish(&mut step, mean, &mut memory),
            State::AllReduce(reduce) => reduce.finish(&mut step, mean, &mut memory),
            State::Server(server) => server.finish(&mut step, mean, &mut memory),
        }
    }
}
