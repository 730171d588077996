//! How the gradients of a step become one mean over the workers.
//!
//! An [`Exchange`] belongs to one rank. [`start`](Exchange::start) encodes and sends;
//! [`finish`](Exchange::finish) receives, decodes and divides. Work that a rank does between the two overlaps
//! with the network.
//!
//! | route | codecs | order of the sum | bytes each rank sends |
//! | --- | --- | --- | --- |
//! | [`Route::AllGather`] | all | ranks ascending, coordinates ascending | (N−1)·frame |
//! | [`Route::SparseAllReduce`] | sparse | as all-gather, at the owner of each coordinate | about (N−1)/N·(frame + union of all frames) |
//! | [`Route::AllReduce`] | linear | [`collective::reduce_scatter`](crate::collective::reduce_scatter) | 2(N−1)/N·payload |
//! | [`Route::Tree`] | linear | [`collective::tree_all_reduce`](crate::collective::tree_all_reduce) | payload; at most ⌈log₂N⌉·payload |
//! | [`Route::Native`] | linear | chosen by the library | chosen by the library |
//! | [`Route::Server`] | all | ranks ascending at the server; its frame is what all decode | frame; the server (N−1)·downlink |
//!
//! Around the ring all units travel at the same time. With [`Exchange::pipelined`], encoding, travel and
//! decoding overlap.
//!
//! Frames are added as they are decoded, so the sum takes the same memory for any number of workers. The
//! divisor is the number of workers whose frame entered the sum. A rank decodes its own frame as every other
//! rank does.
//!
//! # Codecs of other crates
//! [`Exchange::new`] takes a spelling. [`Exchange::with_gather`] takes any [`Gather`] codec instead, so that
//! frames of an [experiment](gradwire::experiments) travel by [`Route::AllGather`] and [`Route::Server`].
//! [`Exchange::with_linear`] takes any [`Linear`] codec. The example `own_codec` has a codec in one file.
//!
//! # Rounds before a frame
//! A codec may let all ranks agree on a few numbers before any of them encodes, for instance on one scale:
//! [`RoundsFirst`](gradwire::rounds::RoundsFirst). By [`Route::AllGather`] every rank then sends its numbers
//! to all others, and [`start`](Exchange::start) waits for theirs. Numbers are reduced in rank order, so all
//! ranks have the same bits. A step that fails in a round has the same consequences as one that fails later:
//! a rank whose gradient is refused makes it void, and its own memory stays as it was. The others keep
//! residual + gradient unless void steps are undone. Other routes refuse such a codec by name.
//!
//! # A server's own codec and state
//! The server encodes the mean with [`ServerOptions::downlink`], with error feedback if that spelling has it.
//! Or it uses the codec of [`Exchange::with_downlink`] and its memory, which may have named arrays. The
//! server applies the mean that it sent. For the server too, sent + kept = residual + mean: bit for bit, or
//! by the law of the codec. Save [`Exchange::downlink_memory`] with a checkpoint.
//!
//! # Packets
//! With `max_packet_bytes`, a worker of [`Route::Server`] sends its gradient as packets that may be lost
//! ([`Transport::send_packet`]). A lost packet loses a range, not the step. Each coordinate of the mean is
//! divided by the number of workers whose packet with that coordinate arrived. The server's answer tells each
//! worker which of its packets did not arrive. On other routes no rank could tell all others.
//!
//! # Void steps
//! If a rank cannot encode its gradient, because it is not finite, it says so in the same step. Every other
//! rank's step fails with [`ExchangeError::Void`], which names the rank and the coordinate.
//!
//! | route | how the others learn of it |
//! | --- | --- |
//! | frames | a [void frame](gradwire::format::VoidFrame) takes the place of the rank's frame |
//! | payloads | the void frame is a message of its own, which the others look for while they wait |
//! | server | a server that has a quorum without that rank continues; otherwise the error is [`ExchangeError::NoQuorum`], which also names rank and coordinate |
//! | [`Route::Native`] | they do not: the library cannot be told |
//!
//! | | the rank itself | all others |
//! | --- | --- | --- |
//! | by default | the memory is as it was; in [several parts](Exchange::pipelined), what was encoded before is given back | everything is given back: the residual is fl(residual + gradient), momentum and states are as the encode left them |
//! | [`Exchange::undoing_void_steps`] | the memory is as it was | the memory is as it was |
//!
//! So by default, error feedback keeps the gradients of the other ranks, and a later step sends them. With
//! the option they are dropped. This suits trainers that skip a step whose loss was scaled too far.
//!
//! # The end of a step
//! Over a transport that is [fail-stop](Transport::is_fail_stop), a step of all-gather, sparse all-reduce or
//! all-reduce can fail at one rank and succeed at another only if a rank is about to end the job, or if a
//! deadline passes in between. Over any other transport, such as ZeroMQ, all ranks vote at the end of a step:
//! each says whether it has the mean, and no rank uses the mean unless all have it. So if a frame reached
//! some ranks and not others, all ranks undo the step. This costs two messages of one byte to each peer a
//! step, and the wait for one of them: one latency. Frames must arrive within three quarters of the time that
//! [`finish`](Exchange::finish) is given.
//!
//! | at a rank, [`finish`](Exchange::finish) gives | then at all others the step |
//! | --- | --- |
//! | `Ok` | is `Ok`, or `Undecided` |
//! | [`Undecided`](ExchangeError::Undecided) | may be anything |
//! | any other error, or an error of [`start`](Exchange::start) | failed |
//!
//! `Undecided` cannot be avoided entirely, because the sender of a last message cannot know that it arrives.
//! It happens only if all frames arrived, then another rank's vote was lost, and then also every message of
//! those ranks that have that vote. With three ranks or more, no single broken connection causes it, wherever
//! in the step it breaks. With two ranks, a connection that breaks between the frame and the vote does. A
//! rank that leaves in between counts as a lost vote. A rank that gets `Undecided` has undone the step; it
//! must fetch the parameters anew or leave. With a server, one rank decides: see
//! [`Transport`](ExchangeError::Transport).
//!
//! # Conservation
//! Whatever the mean does not include goes back to the sender's [`Memory`]: the gradient of a step that
//! failed, or a frame or packet that was lost, that the server refused, or that it did not wait for. With a
//! norm cap, off by default, a server scales down frames whose norm is too large. What it cuts off is lost,
//! and [`Report::capped`] says whose it was and how much. So every part of a gradient was applied, is kept,
//! or was reported as lost.

mod all_gather;
mod all_reduce;
mod ending;
mod error;
mod foreign;
mod incoming;
mod intake;
mod measure;
mod norm_cap;
mod own;
mod packet_set;
mod packets;
mod pipeline;
mod report;
mod rounds_first;
mod route;
mod senders;
mod server;
mod sparse;
mod step;
mod underway;
mod verdict;
mod void;

use std::time::Duration;

use gradwire::arithmetic::gain::Gain;
use gradwire::codecs::{PowerSgd, PowerSgdByUnit, ValueChoice};
use gradwire::format::Divisor;
use gradwire::registry::LinearCodec;
use gradwire::rules::ByUnit;
use gradwire::state::{Keeper, MemoryChoice, Snapshot};
use gradwire::{
    Codec, Density, Gather, Grad, Layout, Linear, Memory, Selection, Spec, StepKey, Unit, UnitPolicy,
};

use crate::collective::Wire;
use crate::cost::{Link, sparse_frame_bytes};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

use self::all_gather::AllGather;
use self::all_reduce::{AllReduce, Order};
pub use self::error::ExchangeError;
use self::foreign::{Foreign, Rounds};
use self::measure::Measure;
pub use self::norm_cap::Capped;
use self::pipeline::Pipeline;
pub use self::report::{PacketTally, Report};
pub use self::route::{Route, ServerOptions};
use self::server::Server;
use self::sparse::SparseAllReduce;
use self::step::{Clock, Step};
use self::underway::Underway;

/// One rank's part of every step's exchange: settings, and buffers that are reused from step to step.
///
/// # Examples
/// Two ranks; each sends half of its coordinates and keeps the rest back.
/// ```
/// use std::thread;
///
/// use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
/// use gradwire_transports::exchange::{Exchange, Route};
/// use gradwire_transports::{Deadline, Transport, local};
///
/// let spec = Spec::parse("topk:density=0.5").unwrap();
/// let layout = Layout::packed([("w", vec![4])]).unwrap();
/// let grads = [[1.0, 8.0, 0.5, -6.0], [4.0, 2.0, 0.25, -8.0]];
/// let ranks: Vec<_> = local::world(2)
///     .into_iter()
///     .map(|mut end| {
///         let (layout, rank) = (layout.clone(), end.rank().0);
///         thread::spawn(move || {
///             let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
///             let mut exchange = Exchange::new(spec, layout, Route::AllGather).unwrap();
///             let (key, mut mean) = (StepKey { seed: 1, step: 0, source: Source::Rank(rank) }, [0.0; 4]);
///             let (grad, by) = (Grad::F32(&grads[rank as usize]), Deadline::NEVER);
///             exchange.start(&mut end, key, grad, Some(&mut memory), by).unwrap();
///             exchange.finish(&mut end, &mut mean, Some(&mut memory), by).unwrap();
///             (mean, memory.residual().to_vec())
///         })
///     })
///     .collect();
/// let kept = [[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.25, 0.0]];
/// for (rank, kept) in ranks.into_iter().zip(kept) {
///     assert_eq!(rank.join().unwrap(), ([2.0, 4.0, 0.0, -7.0], kept.to_vec()));
/// }
/// ```
#[derive(Debug)]
pub struct Exchange {
    /// With a codec of another crate, the units of [`with_gather`](Exchange::with_gather) and the defaults of
    /// `none`.
    spec: Spec,
    foreign: Option<Foreign>,
    /// The codec at the densities of the units, if these have densities of their own.
    by_unit: Option<ByUnit>,
    /// The codec at the ranks of the units, if these differ.
    by_rank: Option<PowerSgdByUnit>,
    layout: Layout,
    units: Vec<Unit>,
    route: State,
    divisor: Divisor,
    underway: Underway,
    /// The memory before the step, if void steps are undone.
    before: Option<Snapshot>,
    started: Option<Started>,
    /// Measures gains, if that was requested.
    measure: Option<Measure>,
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

/// Approximate bits of a value.
fn value_bits(values: ValueChoice) -> f64 {
    match values {
        ValueChoice::Q2 => 2.0,
        ValueChoice::Q4 => 4.0,
        ValueChoice::Q8 => 8.0,
        ValueChoice::F16 | ValueChoice::Bf16 => 16.0,
        _ => 32.0,
    }
}

/// Refuses a mean over senders if the route does not count them, or if all ranks send the same coordinates.
fn require_senders(route: &State, spec: &Spec, divisor: Divisor) -> Result<(), ExchangeError> {
    let why = match route {
        _ if divisor == Divisor::Contributors => return Ok(()),
        State::AllReduce(_) | State::SparseAllReduce(_) => {
            "only all-gather and a server count who sent a coordinate"
        }
        _ if spec.packets.is_some() => "packets are divided by the workers that they came from",
        _ if spec.codec.sparse_values().is_none() => "all ranks send the same coordinates with this codec",
        _ => return Ok(()),
    };
    Err(ExchangeError::NoSenders { why })
}

/// Restores the memory as it was before a step that is void.
fn undo_if_void<T>(
    before: Option<&Snapshot>,
    result: Result<T, ExchangeError>,
    memory: Option<&mut Memory<'_>>,
) -> Result<T, ExchangeError> {
    let is_void = result.as_ref().is_err_and(ExchangeError::is_void);
    let (true, Some(before), Some(memory)) = (is_void, before, memory) else { return result };
    before.restore(memory);
    result.map_err(|error| match error {
        // Nothing is lost.
        ExchangeError::NotGivenBack { cause, .. } => *cause,
        error => error,
    })
}

/// Refuses a codec that makes no mean, or none by such a route.
fn require_mean(codec: &Codec, is_summed: bool) -> Result<(), ExchangeError> {
    match codec {
        Codec::Gossip(_) => Err(ExchangeError::Gossip { codec: codec.name() }),
        _ if !is_summed && !codec.capabilities().has_frames => {
            Err(ExchangeError::NoFrames { codec: codec.name() })
        }
        _ => Ok(()),
    }
}

/// The codec as a codec whose payloads can be summed.
fn require_linear(codec: &Codec) -> Result<LinearCodec, ExchangeError> {
    codec.as_linear().ok_or(ExchangeError::NotLinear { codec: codec.name() })
}

/// The route of sums; `None` for one of frames.
fn all_reduce(rounds: Rounds, route: &Route, units: &[Unit]) -> Option<State> {
    let (wire, order) = match *route {
        Route::AllReduce { wire } => (wire, Order::Ring),
        Route::Tree { wire } => (wire, Order::Tree),
        Route::Native { wire } => (wire, Order::Native),
        _ => return None,
    };
    Some(State::AllReduce(Pipeline::new(AllReduce::new(rounds, wire, order, units.len()), units)))
}

impl Exchange {
    /// An exchange of gradients of that layout, by that route.
    ///
    /// # Errors
    /// `NotLinear` for [`Route::AllReduce`], [`Route::Tree`] and [`Route::Native`] with a codec whose
    /// payloads cannot be summed; `Gossip` for a codec between neighbours, which makes no mean over all, also
    /// of a server's downlink; `NotSparse` for [`Route::SparseAllReduce`] with a codec whose frames are
    /// dense; `NoFrames` for a route of frames, or a server's downlink, with a codec of rounds alone;
    /// `Packets` for a gradient that is to be cut, by a route without a server; `NormCap` for a multiple
    /// below 1 or not finite; `CappedPackets` for one with packets.
    pub fn new(spec: Spec, layout: Layout, route: Route) -> Result<Self, ExchangeError> {
        if spec.packets.is_some() && !matches!(route, Route::Server(_)) {
            return Err(ExchangeError::Packets);
        }
        let is_summed = matches!(route, Route::AllReduce { .. } | Route::Tree { .. } | Route::Native { .. });
        require_mean(&spec.codec, is_summed)?;
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let route = match route {
            Route::AllGather => State::AllGather(Pipeline::new(AllGather::default(), &units)),
            Route::SparseAllReduce => {
                let sparse = SparseAllReduce::new(&spec.codec);
                let sparse = sparse.ok_or(ExchangeError::NotSparse { codec: spec.codec.name() })?;
                State::SparseAllReduce(Box::new(Pipeline::new(sparse, &units)))
            }
            Route::Server(options) => {
                require_mean(&options.downlink.codec, false)?;
                State::Server(Box::new(Server::new(options, &spec, &layout.as_ref())?))
            }
            route => all_reduce(Rounds::Listed(require_linear(&spec.codec)?), &route, &units)
                .ok_or(ExchangeError::NoFrames { codec: spec.codec.name() })?,
        };
        Ok(Self::of(spec, None, layout, units, route))
    }

    fn of(spec: Spec, foreign: Option<Foreign>, layout: Layout, units: Vec<Unit>, route: State) -> Self {
        let (divisor, underway) = Default::default();
        let (by_unit, by_rank, before, started, measure) = Default::default();
        Self {
            spec,
            foreign,
            by_unit,
            by_rank,
            layout,
            units,
            route,
            divisor,
            underway,
            before,
            started,
            measure,
        }
    }

    /// An exchange of gradients of that layout with frames of any codec, including codecs of other crates:
    /// see [`experiments`](gradwire::experiments). By [`Route::AllGather`] or [`Route::Server`].
    ///
    /// The caller supplies what a spelling would say besides the codec. `units` is how the gradient is cut,
    /// the same at all ranks. The memory is the one that the codec needs; for experiments it is
    /// `Memory::new(vec![0.0; layout.len()])` or none. [`start`](Self::start) refuses a memory that does not
    /// fit the codec. The codec stays; [`set_codec`](Self::set_codec) refuses every other.
    ///
    /// # Errors
    /// `NotSparse` and `NotLinear` for the other routes, which need to know more of a codec; `RoundsFirst`
    /// for a server with a codec that has rounds before its frame; `NormCap` and `NoFrames` as
    /// [`new`](Self::new).
    pub fn with_gather<C: Gather + 'static>(
        codec: C,
        units: UnitPolicy,
        layout: Layout,
        route: Route,
    ) -> Result<Self, ExchangeError> {
        let has_rounds = codec.rounds_first().is_some();
        let foreign = Foreign::gather(codec);
        match route {
            Route::Server(_) if has_rounds => Err(ExchangeError::RoundsFirst { codec: foreign.name() }),
            Route::AllGather | Route::Server(_) => {
                let spec = Spec { units, ..Spec::new(Codec::NONE) };
                Ok(Self { foreign: Some(foreign), ..Self::new(spec, layout, route)? })
            }
            Route::SparseAllReduce => Err(ExchangeError::NotSparse { codec: foreign.name() }),
            _ => Err(ExchangeError::NotLinear { codec: foreign.name() }),
        }
    }

    /// An exchange of gradients of that layout with the sums of any linear codec, including codecs of other
    /// crates: by [`Route::AllReduce`], [`Route::Tree`] or [`Route::Native`]. Units, memory and
    /// [`set_codec`](Self::set_codec) are as in [`with_gather`](Self::with_gather); units that are sent dense
    /// are plain sums.
    ///
    /// # Errors
    /// `NoFrames` for the other routes.
    pub fn with_linear<C: Linear + 'static>(
        codec: C,
        units: UnitPolicy,
        layout: Layout,
        route: Route,
    ) -> Result<Self, ExchangeError> {
        let foreign = Foreign::linear(&codec);
        let spec = Spec { units, ..Spec::new(Codec::NONE) };
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let route = all_reduce(Rounds::foreign(codec), &route, &units);
        let route = route.ok_or(ExchangeError::NoFrames { codec: foreign.name() })?;
        Ok(Self::of(spec, Some(foreign), layout, units, route))
    }

    /// The same, with the step in at most `messages` parts of neighbouring units instead of one. While the
    /// messages of one part travel, the next part is encoded. After encoding each part,
    /// [`start`](Self::start) polls every part in flight: it receives the messages that the part waits for
    /// and sends what comes next. So `start` then waits for other ranks too. A unit is not cut, so a spelling
    /// with `unit=tensor` gains most.
    ///
    /// | route | what is a part | what each poll receives |
    /// | --- | --- | --- |
    /// | [`Route::AllGather`] | a frame | frames of all others |
    /// | [`Route::SparseAllReduce`] | a frame, and blocks of an owner for each rank | the own blocks of all others; their sums |
    /// | [`Route::AllReduce`] | units | 2(N−1) hops of each round |
    ///
    /// Every member must do the same. If a part of the gradient is refused, the parts that were encoded
    /// before it go back to the memory, as after any step that failed.
    ///
    /// # Errors
    /// `OneMessage` for the other routes, which would gain nothing. [`Route::Tree`] is for payloads that are
    /// too short to be cut, and a library sums a payload of [`Route::Native`] in one call. With
    /// [`Route::Server`], the frame of a worker enters the mean whole or not at all (quorum, patience, norm
    /// cap), so the server cannot add any of it before the last message. Transports already send a frame
    /// while the worker continues, and the server already decodes one frame while others travel.
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

    /// The same, with the gain of each step in its [report](Report::gain): the share of p, this rank's
    /// gradient plus its residual, that its own frames or packets hold. Add the [`Gain`]s of all ranks for
    /// that of the step.
    ///
    /// This costs one more decode of the rank's own frames, and one read of the residual (without a memory,
    /// of the gradient). That time counts as encoding. Payloads that are summed are not measured.
    #[must_use]
    pub fn measuring_gain(mut self) -> Self {
        if !matches!(self.route, State::AllReduce(_)) {
            self.measure = Some(Measure::default());
        }
        self
    }

    /// The same, with the mean over senders for [`Divisor::Senders`]: every coordinate is divided by the
    /// number of ranks whose frame held it, and is +0.0 if none did. Every member must do the same: a frame
    /// that asks for another divisor is refused. A frame counts as a sender of every coordinate that it
    /// holds, whatever the values. A unit that is sent dense holds every coordinate.
    ///
    /// Each worker's residual is the same as without: sent + kept = residual + gradient. But the mean is no
    /// longer 1/N of everything sent: a coordinate that one rank of N sends moves the parameters N times as
    /// far. Σ sent = mean · senders holds for each coordinate, except for the roundings of sum and division.
    ///
    /// # Errors
    /// `NoSenders` for `Divisor::Senders` with packets, with a codec that sends every coordinate or the same
    /// ones at every rank, and on routes other than [`Route::AllGather`] and [`Route::Server`]. Frames of a
    /// server's downlink are not part of a mean and do not change.
    pub fn with_divisor(mut self, divisor: Divisor) -> Result<Self, ExchangeError> {
        require_senders(&self.route, &self.spec, divisor)?;
        self.divisor = divisor;
        Ok(self)
    }

    /// The same, with [void steps](self#void-steps) that leave the memory of every rank bit for bit as it was
    /// before the step: residual, momentum, unit states, factors and arrays. Nothing of a void step is then
    /// ever applied, not even the gradients of the other ranks. Every member must do the same.
    ///
    /// This costs a copy of the memory at every [`start`](Self::start), and the room for it: 4 bytes a
    /// coordinate, 8 with momentum ([`Snapshot`] has the size of all parts). A step that spans several
    /// exchanges takes a [`Snapshot`] of its own instead.
    #[must_use]
    pub fn undoing_void_steps(mut self) -> Self {
        self.before = Some(Snapshot::new());
        self
    }

    /// All-reduce where the codec allows it, a server for packets, else all-gather.
    pub fn best_route(spec: &Spec) -> Route {
        if spec.packets.is_some() {
            // A worker may lose all of them, and the others continue.
            return Route::Server(ServerOptions { quorum: 1, ..ServerOptions::default() });
        }
        match spec.codec.as_linear() {
            Some(_) => Route::AllReduce { wire: Wire::F32 },
            None => Route::AllGather,
        }
    }

    /// The same with a known link between `world` ranks, for a gradient of `len` elements. The result is
    /// sparse all-reduce if the codec has a density and the cost model predicts less time for it than for
    /// all-gather, each with the frames that random coordinates would have.
    ///
    /// # Determinism
    /// The same on every machine, so that all ranks make the same choice.
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

    /// Sets the codec of the steps from here on. Schedules and controllers call this between steps, with
    /// [`Spec::codec_in`](gradwire::Spec::codec_in) or their own choice. Every member must set the same codec
    /// for the same steps: frames of another codec are refused.
    ///
    /// The units stay, including those that are sent dense, and so do the spelling's memory and packets. The
    /// memory must suit both codecs: both or neither keep a [state](gradwire::state::UnitState) of each unit,
    /// and both keep the same number of factors. A step then gives and keeps what a new exchange with that
    /// codec would have given and kept, from the same memory.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `OtherMemory` for a codec that keeps other parts;
    /// `Conflict` if the spelling's memory or packets do not work with it; those of [`new`](Self::new) for a
    /// codec that does not fit the route. Nothing has changed then.
    pub fn set_codec(&mut self, codec: Codec) -> Result<(), ExchangeError> {
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        if let Some(foreign) = &self.foreign {
            let why = "the exchange was made for a codec of another crate";
            return Err(ExchangeError::Conflict { codec: foreign.name(), why });
        }
        require_mean(&codec, matches!(self.route, State::AllReduce(_)))?;
        let (name, layout) = (codec.name(), self.layout.as_ref());
        if matches!(self.route, State::SparseAllReduce(_)) && codec.sparse_values().is_none() {
            return Err(ExchangeError::NotSparse { codec: name });
        }
        let linear = match self.route {
            State::AllReduce(_) => Some(require_linear(&codec)?),
            _ => None,
        };
        let parts = |codec: &Codec| {
            (codec.capabilities().adapts, codec.state_len(&layout, self.units.len(), Keeper::Worker))
        };
        // No codec of one rank has the factors of several.
        let is_other = self.by_rank.is_some() || parts(&codec) != parts(&self.spec.codec);
        if self.spec.memory != MemoryChoice::None && is_other {
            return Err(ExchangeError::OtherMemory { codec: name });
        }
        let next = Spec { codec, ..self.spec };
        require_senders(&self.route, &next, self.divisor)?;
        // A spec that was built by hand may have had a conflict from the start.
        if let (Some(why), None) = (next.conflict(), self.spec.conflict()) {
            return Err(ExchangeError::Conflict { codec: name, why });
        }
        if let (State::AllReduce(reduce), Some(linear)) = (&mut self.route, linear) {
            reduce.route.set_codec(Rounds::Listed(linear));
        }
        (self.spec.codec, self.by_unit, self.by_rank) = (codec, None, None);
        Ok(())
    }

    /// Gives each unit a density of its own for the steps from here on, until [`set_codec`](Self::set_codec)
    /// or [`set_density`](Self::set_density) is called: `densities` has one for each of the
    /// [`units`](Self::units), in order. Units that are sent dense stay so. Frames are ordinary frames of the
    /// codec. Every member must set the same densities for the same steps.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `Conflict` for a codec without a density, and with
    /// packets. Nothing has changed then.
    ///
    /// # Panics
    /// When there are more or fewer densities than units.
    pub fn set_densities(&mut self, densities: &[Density]) -> Result<(), ExchangeError> {
        assert_eq!(densities.len(), self.units.len(), "one density for each unit");
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        let refused = |codec, why| Err(ExchangeError::Conflict { codec, why });
        if let Some(foreign) = &self.foreign {
            return refused(foreign.name(), "it has no density");
        }
        let name = self.spec.codec.name();
        if self.spec.packets.is_some() {
            return refused(name, "packets of all units have one density");
        }
        let Some(by_unit) = ByUnit::new(&self.spec.codec, densities) else {
            return refused(name, "it has no density");
        };
        if let State::AllReduce(reduce) = &mut self.route {
            let rounds = self.units.iter().map(|unit| require_linear(by_unit.codec_of(unit)));
            reduce.route.set_codec(Rounds::ByUnit(rounds.collect::<Result<_, _>>()?));
        }
        self.by_unit = Some(by_unit);
        Ok(())
    }

    /// Sets the rank for the steps from here on, of a codec that has one, and turns the factors in `memory`
    /// into those of that rank: see [`PowerSgd::hand_over`]. The residual stays as it is, bit for bit. Every
    /// member must set the same rank for the same steps.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `Conflict` for a codec without a rank, and for a
    /// rank that it does not have; `Encode` for a memory of another rank. Nothing has changed then.
    pub fn set_rank(&mut self, rank: u16, memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        self.set_ranks(&vec![rank; self.units.len()], memory)
    }

    /// The same with a rank for each unit: `ranks` has one for each of the [`units`](Self::units), in order.
    /// What is sent whole at its rank, and a unit that is sent dense, stays so. Until all ranks are equal
    /// again, [`set_codec`](Self::set_codec) refuses every codec, because none has these factors.
    ///
    /// # Errors
    /// As [`set_rank`](Self::set_rank).
    ///
    /// # Panics
    /// When there are more or fewer ranks than units.
    pub fn set_ranks(&mut self, ranks: &[u16], memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        assert_eq!(ranks.len(), self.units.len(), "one rank for each unit");
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        let refused = |codec, why| Err(ExchangeError::Conflict { codec, why });
        let (Codec::Linear(LinearCodec::PowerSgd(codec)), None) = (self.spec.codec, &self.foreign) else {
            let name = self.foreign.as_ref().map_or(self.spec.codec.name(), Foreign::name);
            return refused(name, "it has no rank");
        };
        let layout = self.layout.as_ref();
        let of = |codec: &PowerSgd, ranks: &[u16]| PowerSgdByUnit::new(codec, ranks, &self.units, &layout);
        let Some(next) = of(&codec, ranks) else {
            return refused(self.spec.codec.name(), "a rank is from 1 to 256");
        };
        let alike = || of(&codec, &vec![codec.rank(); ranks.len()]);
        let now = self.by_rank.clone().or_else(alike).expect("the codec's own rank");
        now.hand_over(&next, &layout, memory)?;
        let one = ranks.first().filter(|first| ranks.iter().all(|rank| rank == *first));
        let rounds = if let Some(codec) = one.and_then(|rank| codec.with_rank(*rank)) {
            (self.spec.codec, self.by_rank) = (Codec::Linear(LinearCodec::PowerSgd(codec)), None);
            Rounds::Listed(LinearCodec::PowerSgd(codec))
        } else {
            self.by_rank = Some(next.clone());
            Rounds::ByRank(next)
        };
        if let State::AllReduce(reduce) = &mut self.route {
            reduce.route.set_codec(rounds);
        }
        Ok(())
    }

    /// [Sets](Self::set_codec) the codec at another density, if it has one.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish.
    pub fn set_density(&mut self, density: Density) -> Result<(), ExchangeError> {
        match &self.foreign {
            Some(_) if self.started.is_some() => Err(ExchangeError::Busy),
            // It has no density.
            Some(_) => Ok(()),
            None => self.set_codec(self.spec.codec.with_density(density)),
        }
    }

    /// Sets the quorum of [`ServerOptions::quorum`] for the steps from here on. Only the server's matters.
    pub fn set_quorum(&mut self, quorum: usize) {
        if let State::Server(server) = &mut self.route {
            server.set_quorum(quorum);
        }
    }

    /// Sets [`ServerOptions::patience`] for the steps from here on.
    pub fn set_patience(&mut self, patience: Duration) {
        if let State::Server(server) = &mut self.route {
            server.set_patience(patience);
        }
    }

    /// The same, with any gather codec for the means that the server sends back, also one of another crate,
    /// in place of [`ServerOptions::downlink`]. `memory` is what that codec keeps at the server. Every member
    /// must do the same with the same codec. Only the server's memory is used, so the others pass `None`.
    ///
    /// The codec encodes the mean as it encodes a gradient, with the same units and the key of the server's
    /// step. All ranks, the server too, apply what the frame decodes to. Sent + kept = residual + mean, by
    /// the codec's [law](gradwire::registry::Law). A step that fails does not change what is kept. Make the
    /// memory for the keeper [`Server`](gradwire::state::Keeper::Server); it may have arrays of the codec's
    /// own. It is part of a checkpoint, see [`downlink_memory`](Self::downlink_memory).
    ///
    /// # Errors
    /// `NoDownlink` by a route without a server; `RoundsFirst` for a codec with rounds before its frame.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn with_downlink<C: Gather + 'static>(
        mut self,
        codec: C,
        memory: Option<Memory<'static>>,
    ) -> Result<Self, ExchangeError> {
        let has_rounds = codec.rounds_first().is_some();
        let codec = Foreign::gather(codec);
        let State::Server(server) = &mut self.route else {
            return Err(ExchangeError::NoDownlink { codec: codec.name() });
        };
        if has_rounds {
            return Err(ExchangeError::RoundsFirst { codec: codec.name() });
        }
        let is_long = memory.as_ref().is_none_or(|memory| memory.len() == self.layout.len());
        assert!(is_long, "memory and layout differ in length");
        server.set_downlink(codec, memory);
        Ok(self)
    }

    /// The memory of the downlink: what the server has not sent yet, if the downlink has error feedback, and
    /// everything else that its codec keeps. Only the memory of the server is used. To continue a run
    /// elsewhere, [save](Memory::save) and [load](Memory::load) it.
    pub fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        match &mut self.route {
            State::Server(server) => server.downlink_memory(),
            _ => None,
        }
    }

    /// The norms of frames over which the median of [`ServerOptions::norm_cap`] is taken, oldest first, at
    /// most 64; empty without a cap, and at workers. A server that continues elsewhere saves them and passes
    /// them to [`restore_norms`](Self::restore_norms).
    pub fn norms(&self) -> Vec<f64> {
        match &self.route {
            State::Server(server) => server.norms(),
            _ => Vec::new(),
        }
    }

    /// Continues from the result of [`norms`](Self::norms); without a cap, nothing changes. Norms that are
    /// not finite and positive are left out.
    pub fn restore_norms(&mut self, norms: &[f64]) {
        if let State::Server(server) = &mut self.route {
            server.restore_norms(norms);
        }
    }

    /// The units that every frame holds.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Encodes `grad` and sends everything that can be sent without waiting for other ranks. It waits for
    /// others only with [rounds before a frame](self#rounds-before-a-frame) and in
    /// [several parts](Self::pipelined). The memory is the one that the spelling asks for, as
    /// [`Memory::for_spec`] makes it.
    ///
    /// Every member starts the same steps in the same order, and finishes each before it starts the next.
    ///
    /// # Errors
    /// `Encode` (the memory is then as it was), `Transport` (the memory holds residual + gradient), `Busy`.
    /// With rounds before a frame and in several parts, also the errors of [`finish`](Self::finish) except
    /// `NonFiniteMean`; the memory then holds residual + gradient. In such a round also `NonFinitePayload`.
    ///
    /// # Panics
    /// When `grad` or the memory has another length than the layout.
    pub fn start(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        self.note_before(memory.as_deref());
        self.begin(transport, (key, grad, None), memory, deadline)
    }

    /// As [`start`](Self::start) with the codec of the [`Selection`] at the density with position `at`, which
    /// it [sets](Self::set_codec) first. Frames or payloads, memory and mean are the same, bit for bit; the
    /// gradient is not read again. The selection was made with this exchange's layout and
    /// [`units`](Self::units), with the key of the step, and with this memory, and was not kept yet.
    ///
    /// # Errors
    /// Those of [`set_codec`](Self::set_codec), and then the memory is as it was; those of
    /// [`start`](Self::start) except for `Encode`: the selection has refused such gradients.
    ///
    /// # Panics
    /// When nothing is selected, when there is no such density, for a selection of other units or another
    /// layout, and with packets, which are cut from the gradient.
    pub fn start_selected(
        &mut self,
        transport: &mut dyn Transport,
        selection: &mut Selection,
        at: usize,
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        assert!(self.spec.packets.is_none(), "packets are cut from the gradient");
        let (key, codec) = (selection.key(), selection.codec(at));
        let (key, codec) = key.zip(codec).expect("a selection, and one of its densities");
        self.set_codec(codec)?;
        self.note_before(memory.as_deref());
        // Rounds change the memory when the mean is complete.
        let is_summed = matches!(self.route, State::AllReduce(_));
        if let Some(memory) = memory.as_deref_mut().filter(|_| !is_summed) {
            selection.keep(memory);
        }
        // What is measured without a memory is measured against these values.
        let values = if is_summed || memory.is_none() { selection.values() } else { &[] };
        self.begin(transport, (key, Grad::F32(values), Some((selection, at))), memory, deadline)
    }

    /// Copies the memory, if void steps are undone.
    fn note_before(&mut self, memory: Option<&Memory<'_>>) {
        if let (Some(before), Some(memory)) = (&mut self.before, memory) {
            before.take(memory);
        }
    }

    /// Begins a step of this gradient, or of what was selected from it.
    fn begin(
        &mut self,
        transport: &mut dyn Transport,
        (key, grad, selected): (StepKey, Grad<'_>, Option<(&Selection, usize)>),
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        let tag = Tag::new(transport.membership().epoch, key.step);
        transport.retire(tag);
        self.underway.clear();
        self.measure.iter_mut().for_each(|measure| measure.sum = Gain::default());
        let (step, route) = self.step(transport, Started { key, tag, clock: Clock::default() }, deadline);
        let mut step = Step { selected, ..step };
        let started = match route {
            State::AllGather(gather) => gather.start(&mut step, grad, &mut memory),
            State::SparseAllReduce(sparse) => sparse.start(&mut step, grad, &mut memory),
            State::AllReduce(reduce) => reduce.start(&mut step, grad, &mut memory),
            State::Server(server) => server.start(&mut step, grad, &mut memory),
        };
        let clock = step.clock;
        undo_if_void(self.before.as_ref(), started, memory)?;
        self.started = Some(Started { key, tag, clock });
        Ok(())
    }

    /// Receives, decodes in rank order, and writes the mean over the contributors to `mean`, one element a
    /// coordinate, every one of them finite.
    ///
    /// # Errors
    /// `NotStarted`, `Transport`, `Void`, `Frame`, `WrongStep`, `WrongUnits`, `NonFiniteMean`, `NoQuorum`,
    /// `NoSum`, `Downlink`; `NotGivenBack` with any of them as its cause. The step is then refused: the
    /// memory holds residual + gradient (but see [`ExchangeError::Transport`] for a server that is gone), and
    /// `mean` is unspecified.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the layout.
    ///
    /// # Determinism
    /// The mean has the same bits at every rank and on every transport, in whatever order messages arrive.
    pub fn finish(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<Report, ExchangeError> {
        assert_eq!(mean.len(), self.layout.len(), "mean and layout differ in length");
        let started = self.started.take().ok_or(ExchangeError::NotStarted)?;
        let (mut step, route) = self.step(transport, started, deadline);
        let finished = match route {
            State::AllGather(gather) => gather.finish(&mut step, mean, &mut memory),
            State::SparseAllReduce(sparse) => sparse.finish(&mut step, mean, &mut memory),
            State::AllReduce(reduce) => reduce.finish(&mut step, mean, &mut memory),
            State::Server(server) => server.finish(&mut step, mean, &mut memory),
        };
        undo_if_void(self.before.as_ref(), finished, memory)
    }

    /// The step in progress, and the route that does its work.
    fn step<'a>(
        &'a mut self,
        transport: &'a mut dyn Transport,
        Started { key, tag, clock }: Started,
        deadline: Deadline,
    ) -> (Step<'a>, &'a mut State) {
        let step = Step {
            transport,
            underway: &mut self.underway,
            spec: &self.spec,
            replaced: match (&self.foreign, &self.by_unit) {
                (Some(foreign), _) => foreign.as_gather(),
                (None, by_unit) => by_unit.as_ref().map(|codec| codec as &dyn Gather),
            },
            selected: None,
            layout: &self.layout,
            units: &self.units,
            divisor: self.divisor,
            key,
            tag,
            deadline,
            clock,
            measure: self.measure.as_mut(),
        };
        (step, &mut self.route)
    }
}
