//! How an exchange is made, and what is chosen then for all of its steps.

use gradwire::format::Divisor;
use gradwire::plan::ToPlan;
use gradwire::state::Snapshot;
use gradwire::{Layout, Unit};

use super::all_gather::AllGather;
use super::all_reduce::{AllReduce, Order};
use super::error::ExchangeError;
use super::fit::{Kind, Traits, packets_of, require, require_senders, traits_of};
use super::measure::Measure;
use super::own::Own;
use super::owners::Owners;
use super::pipeline::Pipeline;
use super::port::Port;
use super::route::{Route, ServerOptions};
use super::served::Served;
use super::server::Server;
use super::sparse::SparseAllReduce;
use super::{EARLY, Exchange, State};
use crate::inbox::InboxLimits;

impl Exchange {
    /// An exchange of gradients of that layout, by that route.
    ///
    /// # Errors
    /// `NotLinear` for [`Route::AllReduce`], [`Route::Tree`], [`Route::Owners`] and [`Route::Native`] with a
    /// codec whose payloads cannot be summed; `Gossip` for a codec between neighbours, which makes no mean
    /// over all, also of a server's downlink; `NotSparse` for [`Route::SparseAllReduce`] with a codec whose
    /// frames are dense; `NoFrames` for a route of frames, or a server's downlink, with a codec of rounds
    /// alone; `NoDownlink` for a server's downlink beside such a codec; `Packets` for a gradient that is to
    /// be cut, by a route without a server; `NormCap` for a multiple below 1 or not finite; `CappedPackets`
    /// for one with packets or payloads.
    pub fn new(plan: impl ToPlan, layout: Layout, route: Route) -> Result<Self, ExchangeError> {
        let plan = plan.to_plan(&layout.as_ref());
        let packets = packets_of(&plan);
        if packets.is_some() && !matches!(route, Route::Server(_)) {
            return Err(ExchangeError::Packets);
        }
        let traits = traits_of(&plan);
        let kind = route.kind().of(&traits);
        require(&traits, kind)?;
        let sums = |wire, order| {
            let route = AllReduce::new(wire, order, plan.units().len());
            State::AllReduce(Box::new(Pipeline::new(route, plan.units())))
        };
        let route = match route {
            Route::AllGather => State::AllGather(Box::new(Pipeline::new(AllGather::default(), plan.units()))),
            Route::SparseAllReduce => {
                State::SparseAllReduce(Box::new(Pipeline::new(SparseAllReduce::new(), plan.units())))
            }
            Route::AllReduce { wire } => sums(wire, Order::Ring),
            Route::Tree { wire } => sums(wire, Order::Tree),
            Route::Owners { wire } => {
                let owners = Owners::new(wire, plan.units().len());
                State::Owners(Box::new(Pipeline::new(owners, plan.units())))
            }
            Route::Native { wire } => sums(wire, Order::Native),
            Route::Server(options) => {
                let downlink = Traits::of_codec(&options.downlink.codec);
                downlink.require_frames()?;
                let own = match packets {
                    _ if kind == Kind::ServedSums
                        && options.downlink != ServerOptions::default().downlink =>
                    {
                        return Err(ExchangeError::NoDownlink { codec: downlink.name });
                    }
                    _ if kind == Kind::ServedSums => Own::Payloads(Served::new(plan.units().len())),
                    packets => Own::new(packets),
                };
                State::Server(Box::new(Server::new(options, own, &layout.as_ref())?))
            }
        };
        let (divisor, before, arrays, started, number, clock, measure) = Default::default();
        let port = Port::new(EARLY);
        Ok(Self { plan, layout, route, divisor, port, before, arrays, started, number, clock, measure })
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
    /// | [`Route::Owners`] | units | shares and sums of each round |
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
            State::AllGather(gather) => gather.cut(self.plan.units(), messages),
            State::SparseAllReduce(sparse) => sparse.cut(self.plan.units(), messages),
            State::AllReduce(reduce) if reduce.route.has_parts() => reduce.cut(self.plan.units(), messages),
            State::Owners(owners) => owners.cut(self.plan.units(), messages),
            State::AllReduce(_) | State::Server(_) => return Err(ExchangeError::OneMessage),
        }
        Ok(self)
    }

    /// The same, with the gain of each step in its [report](super::Report::gain): the share of p, this rank's
    /// gradient plus its residual, that its own frames or packets hold. Add the
    /// [gains](gradwire::arithmetic::gain::Gain) of all ranks for that of the step.
    ///
    /// This costs one more decode of the rank's own frames, and one read of the residual (without a memory,
    /// of the gradient). That time counts as encoding. Payloads that are summed are not measured.
    #[must_use]
    pub fn measuring_gain(mut self) -> Self {
        if !self.is_summed() {
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
        self.require_senders(&traits_of(&self.plan), divisor)?;
        self.divisor = divisor;
        Ok(self)
    }

    pub(super) fn require_senders(&self, all: &[Traits], divisor: Divisor) -> Result<(), ExchangeError> {
        require_senders(all, self.route.kind(), packets_of(&self.plan).is_some(), divisor)
    }

    /// The same, with another bound on the messages of each sender that arrive before this rank has asked for
    /// them. At first it is 4096 messages and 1 GiB. Messages that this rank waits for do not count. Over a
    /// transport, early messages wait in the transport instead.
    #[must_use]
    pub fn keeping_early(mut self, limits: InboxLimits) -> Self {
        let (votes, takes_any) = (self.port.votes, self.port.takes_any);
        self.port = Port::new(limits);
        (self.port.votes, self.port.takes_any) = (votes, takes_any);
        self
    }

    /// The same, with steps that leave the memory as it was if they fail, for whatever reason: residual,
    /// momentum, unit states, factors and arrays, bit for bit. Nothing of a failed step is then ever applied,
    /// not even the gradients of the other ranks. Without it, every rank keeps its gradient, and later steps
    /// send it. Every member must do the same.
    ///
    /// This costs a copy of the memory at every [`start`](Self::start), and the room for it: 4 bytes a
    /// coordinate, 8 with momentum ([`Snapshot`] has the size of all parts). A step that spans several
    /// exchanges takes a [`Snapshot`] of its own instead.
    #[must_use]
    pub fn undoing(mut self) -> Self {
        self.before = Some(Snapshot::new());
        self
    }

    /// The same, with votes at the [end of each step](super#the-end-of-a-step) also over a transport that is
    /// fail-stop, so that a rank that [fails](Self::fail) can tell the others until it has voted. Steps whose
    /// parts are added one by one always end with votes. Every member must do the same.
    #[must_use]
    pub fn voting(mut self) -> Self {
        self.port.votes = true;
        self
    }

    /// The same, with steps in added parts that also hold if a mean is not finite: see
    /// [`NotFinite`](super::PartState::NotFinite), which all ranks see alike. A gradient that cannot be
    /// encoded is an error of [`add`](Self::add) alone: the caller may add the part again without it, and say
    /// so to all others. Every member must do the same.
    #[must_use]
    pub fn taking_any_mean(mut self) -> Self {
        self.port.takes_any = true;
        self
    }

    /// The units that every frame holds.
    pub fn units(&self) -> &[Unit] {
        self.plan.units()
    }
}
