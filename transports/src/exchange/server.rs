//! One rank gathers the frames, makes the mean, and sends it back with the list of contributors.

use std::fmt;
use std::time::Duration;

use gradwire::arithmetic::{divide, first_non_finite};
use gradwire::format::{Divisor, VoidFrame};
use gradwire::packets::PacketSize;
use gradwire::state::{Keeper, Snapshot};
use gradwire::{Encoder, Gather, Grad, LayoutRef, Memory};

use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::net::{Net, timed};
use super::norm_cap::NormCap;
use super::own::Own;
use super::packet_set::PacketSet;
use super::packets::{self, Packets, Sum, arrives};
use super::report::Clock;
use super::report::{PacketTally, Report};
use super::route::ServerOptions;
use super::senders::Senders;
use super::step::Step;
use super::verdict;
use super::void::{Void, VoidMessage};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// The chunk of the server's answer. Frames of workers, and announcements of packets, have chunk 0.
const VERDICT_CHUNK: u32 = 1;

#[derive(Debug)]
pub(super) struct Server {
    options: ServerOptions,
    own: Own,
    /// The packets of the workers, if gradients are cut into packets.
    packets: Packets,
    /// Which of this rank's own packets are in the mean.
    packet_set: PacketSet,
    norm_cap: Option<NormCap>,
    /// Used only with [`Divisor::Senders`].
    senders: Senders,
    incoming: Incoming,
    /// The first rank whose gradient could not be encoded in this step.
    void: Option<Void>,
    /// The last message received, in a buffer that the transport reuses for the next one.
    buffer: Vec<u8>,
    /// The server's answer. It is longer than the messages received, so it has a buffer of its own.
    verdict: Vec<u8>,
    /// The ranks whose frames are in the mean of this step, ascending.
    arrived: Vec<Rank>,
    /// The same as a set, reused from the previous step if nothing has changed.
    contributors: RankSet,
    downlink: Downlink,
}

/// The way back of the mean. Only the server uses its memory and encoder.
struct Downlink {
    codec: Box<dyn Gather>,
    encoder: Encoder,
    memory: Option<Memory<'static>>,
    /// The memory before the step, to restore it if the step fails after the mean was encoded.
    before: Snapshot,
}

impl fmt::Debug for Downlink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downlink").field("codec", &self.codec.id()).finish_non_exhaustive()
    }
}

impl Downlink {
    /// Restores the memory as it was before the mean of this step was encoded.
    fn undo(&mut self) {
        if let Some(memory) = &mut self.memory {
            self.before.restore(memory);
        }
    }
}

/// Frames that the server refused, and why.
type Refused = Vec<(Rank, gradwire::DecodeError)>;

impl Server {
    pub(super) fn new(
        options: ServerOptions,
        packets: Option<PacketSize>,
        layout: &LayoutRef<'_>,
    ) -> Result<Self, ExchangeError> {
        if options.norm_cap.is_some() && packets.is_some() {
            return Err(ExchangeError::CappedPackets);
        }
        let norm_cap = options.norm_cap.map(NormCap::new).transpose()?;
        let downlink = Downlink {
            codec: Box::new(options.downlink.codec),
            encoder: Encoder::new(),
            memory: Memory::for_keeper(&options.downlink, layout, Keeper::Server),
            before: Snapshot::new(),
        };
        Ok(Self {
            options,
            own: Own::new(packets),
            packets: Packets::default(),
            packet_set: PacketSet::default(),
            norm_cap,
            senders: Senders::default(),
            incoming: Incoming::default(),
            void: None,
            buffer: Vec::new(),
            verdict: Vec::new(),
            arrived: Vec::new(),
            contributors: RankSet::default(),
            downlink,
        })
    }

    /// Encodes means with another codec and that memory.
    pub(super) fn set_downlink(&mut self, codec: Box<dyn Gather>, memory: Option<Memory<'static>>) {
        (self.downlink.codec, self.downlink.memory) = (codec, memory);
    }

    pub(super) fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        self.downlink.memory.as_mut()
    }

    pub(super) fn set_quorum(&mut self, quorum: usize) {
        self.options.quorum = quorum;
    }

    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.options.patience = Some(patience);
    }

    /// The norms over which the median of [`ServerOptions::norm_cap`] is taken.
    pub(super) fn norms(&self) -> Vec<f64> {
        self.norm_cap.as_ref().map_or_else(Vec::new, NormCap::norms)
    }

    pub(super) fn restore_norms(&mut self, norms: &[f64]) {
        self.norm_cap.iter_mut().for_each(|cap| cap.restore(norms));
    }

    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let server = self.options.server;
        if let Err(error) = timed(&mut net.clock.encode, || self.own.encode(step, grad, memory)) {
            // A rank that cannot be told waits until its deadline; the error is still that of the gradient.
            let _ = self.say_void(step, net, &error);
            return Err(error);
        }
        if step.rank() == server {
            return Ok(());
        }
        let mut exchange = net.clock.exchange;
        let sent = timed(&mut exchange, || self.send(step, net, server));
        net.clock.exchange = exchange;
        sent.map_err(|error| {
            let given = self.own.give_back(&mut self.incoming, step, memory, |_| false);
            ExchangeError::from(error).unless_given_back(given)
        })
    }

    /// Tells the server, or as the server all workers, that this rank's gradient cannot be encoded.
    fn say_void(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        error: &ExchangeError,
    ) -> Result<(), TransportError> {
        let Some(void) = step.void_frame(error) else { return Ok(()) };
        let (rank, message) = (step.rank(), VoidMessage::new(&void, &step.layout.as_ref()));
        if rank != self.options.server {
            return net.transport.send(self.options.server, step.tag, message.bytes(), net.deadline);
        }
        self.void = Some(Void { rank, index: void.index });
        let members = step.members();
        // No packet of any rank is in the mean.
        self.packets.begin_step(members.len());
        self.answer(step, net, &members, false)
    }

    fn send(&self, step: &mut Step<'_>, net: &mut Net<'_>, server: Rank) -> Result<(), TransportError> {
        match &self.own {
            Own::Frame(encoder) => net.transport.send(server, step.tag, encoder.frame(), net.deadline),
            Own::Packets { .. } => packets::send(step, net, server, &self.own, self.patience(net)),
        }
    }

    /// The deadline for frames of this step.
    fn patience(&self, net: &Net<'_>) -> Deadline {
        self.options.patience.map_or(Deadline::NEVER, Deadline::after).earlier(net.deadline)
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let is_server = step.rank() == self.options.server;
        let result = if is_server { self.serve(step, net, mean) } else { self.ask(step, net, mean) };
        let is_in = result.as_ref().is_ok_and(|report| report.contributors.contains(step.rank()));
        let (packet_set, has_packets) = (&self.packet_set, step.packets().is_some());
        let is_in = |at| is_in && (!has_packets || packet_set.has(at));
        let given = self.own.give_back(&mut self.incoming, step, memory, is_in);
        match (result, given) {
            // A part of this rank's gradient is neither in the mean nor back in the memory.
            (Ok(_), Err(error)) => Err(ExchangeError::Frame { rank: step.rank(), error }),
            (result, given) => result.map_err(|error| error.unless_given_back(given)),
        }
    }

    /// The server's part of a step. The workers get an answer even if it fails.
    fn serve(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        mean: &mut [f32],
    ) -> Result<Report, ExchangeError> {
        let mut clock = net.clock;
        let members = step.members();
        let made = self.make_mean(step, net, &members, mean, &mut clock);
        let mut exchange = clock.exchange;
        let answered = timed(&mut exchange, || self.answer(step, net, &members, made.is_ok()));
        clock.exchange = exchange;
        let is_made = made.is_ok();
        let applied = answered.map_err(ExchangeError::from).and(made).and_then(|refused| {
            self.apply_downlink(step, mean, &mut clock)?;
            Ok(refused)
        });
        if applied.is_err() && is_made {
            self.downlink.undo();
        }
        let refused = applied?;
        if step.packets().is_some() {
            let own = step.place_in(&members);
            self.packet_set.clone_from(self.packets.packet_set(own));
        }
        self.report(step, refused, clock)
    }

    fn report(
        &mut self,
        step: &Step<'_>,
        refused: Refused,
        mut clock: Clock,
    ) -> Result<Report, ExchangeError> {
        let held = timed(&mut clock.decode, || self.own.held(step, &mut self.incoming))?;
        let (contributors, frame_bytes) = (self.contributors(), self.own.bytes());
        let sent = if step.packets().is_some() { self.own.count() } else { 0 };
        let packets = PacketTally { sent, lost: sent - self.packet_set.ones() };
        let capped = self.norm_cap.as_ref().map_or_else(Vec::new, |cap| cap.capped().to_vec());
        let report = step.report(contributors, frame_bytes, held, clock);
        Ok(Report { refused, capped, packets, ..report })
    }

    /// The ranks that arrived, as a set.
    fn contributors(&mut self) -> RankSet {
        if self.contributors.as_slice() != self.arrived {
            self.contributors = self.arrived.iter().copied().collect();
        }
        self.contributors.clone()
    }

    /// Gathers the frames, divides, and encodes the mean.
    fn make_mean(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        members: &RankSet,
        mean: &mut [f32],
        clock: &mut Clock,
    ) -> Result<Refused, ExchangeError> {
        let refused = self.gather(step, net, members, mean, clock)?;
        let arrived = self.arrived.len();
        let quorum = if self.options.quorum == 0 { members.len() } else { self.options.quorum };
        if arrived < quorum {
            let void = self.void.map(|void| (void.rank, void.index));
            return Err(ExchangeError::NoQuorum { arrived, quorum, refused, void });
        }
        let packets = step.packets().is_some().then_some(&mut self.packets);
        let index = timed(&mut clock.decode, || match packets {
            Some(packets) => {
                packets.divide(mean);
                first_non_finite(mean)
            }
            None if step.divisor == Divisor::Senders => self.senders.divide(mean),
            None => divide(mean, arrived),
        });
        if let Some(index) = index {
            return Err(ExchangeError::NonFiniteMean { index, rank: None });
        }
        self.encode_mean(step, mean, clock)?;
        Ok(refused)
    }

    /// Adds what arrives in time and is accepted to `sum`, in rank order.
    fn gather(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        members: &RankSet,
        sum: &mut [f32],
        clock: &mut Clock,
    ) -> Result<Refused, ExchangeError> {
        let deadline = self.patience(net);
        let mut refused = Refused::new();
        self.arrived.clear();
        self.void = None;
        self.norm_cap.iter_mut().for_each(NormCap::begin_step);
        sum.fill(0.0);
        if step.packets().is_some() {
            self.gather_packets(step, net, members, sum, (deadline, clock), &mut refused)?;
        } else {
            self.gather_frames(step, net, members, sum, (deadline, clock), &mut refused)?;
        }
        Ok(refused)
    }

    fn gather_frames(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        members: &RankSet,
        sum: &mut [f32],
        (deadline, clock): (Deadline, &mut Clock),
        refused: &mut Refused,
    ) -> Result<(), ExchangeError> {
        let expected = Requirements::up(step);
        let mut senders = (step.divisor == Divisor::Senders).then_some(&mut self.senders);
        senders.iter_mut().for_each(|senders| senders.begin(step.layout.len(), step.units()));
        for rank in members.iter() {
            let is_own = rank == step.rank();
            let (tag, buffer) = (step.tag, &mut self.buffer);
            if !is_own && !timed(&mut clock.exchange, || arrives(net, (rank, tag), buffer, deadline))? {
                continue;
            }
            let bytes = self.own.parts().next().filter(|_| is_own).unwrap_or(&self.buffer);
            let parsed = timed(&mut clock.decode, || {
                let message = self.incoming.parse(rank, bytes, &step.layout.as_ref(), &expected)?;
                let weight = self.norm_cap.as_mut().map_or(1.0, |cap| cap.weigh(rank, &message));
                message.add_scaled_to(weight, sum);
                senders.iter_mut().for_each(|senders| senders.add(&message));
                Ok(())
            });
            match parsed {
                Ok(()) => self.arrived.push(rank),
                Err(ExchangeError::Void { rank, index }) => {
                    self.void.get_or_insert(Void { rank, index });
                }
                Err(error) => refuse(refused, error)?,
            }
        }
        Ok(())
    }

    fn gather_packets(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        members: &RankSet,
        sum: &mut [f32],
        (deadline, clock): (Deadline, &mut Clock),
        refused: &mut Refused,
    ) -> Result<(), ExchangeError> {
        let (layout, expected) = (step.layout.as_ref(), Requirements::up(step));
        let mut sum = Sum { incoming: &mut self.incoming, layout, expected, values: sum };
        self.packets.begin_step(members.len());
        for (position, rank) in members.iter().enumerate() {
            if rank == step.rank() {
                timed(&mut clock.decode, || self.packets.add_own((rank, position), &self.own, &mut sum))?;
            } else {
                let mut refuse = |error| refuse(refused, error);
                let into = (&mut sum, &mut *clock);
                match self.packets.collect(step, net, (rank, position), into, deadline, &mut refuse) {
                    Err(ExchangeError::Void { rank, index }) => {
                        self.void.get_or_insert(Void { rank, index });
                    }
                    collected => collected?,
                }
            }
            if self.packets.packet_set(position).ones() > 0 {
                self.arrived.push(rank);
            }
        }
        Ok(())
    }

    /// Sends everyone the verdict; a worker that is gone is not an error.
    fn answer(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        members: &RankSet,
        is_made: bool,
    ) -> Result<(), TransportError> {
        let (tag, me): (Tag, Rank) = (step.tag.chunk(VERDICT_CHUNK), step.rank());
        let contributors = if is_made { self.arrived.as_slice() } else { &[] };
        let has_packets = step.packets().is_some();
        for (position, rank) in members.iter().enumerate().filter(|&(_, rank)| rank != me) {
            let packet_set = has_packets.then(|| self.packets.packet_set(position));
            verdict::write(contributors, packet_set, self.downlink.encoder.frame(), &mut self.verdict);
            if let (true, Some(Void { rank, index })) = (contributors.is_empty(), self.void) {
                let void = VoidFrame { codec: step.codec().id(), step: step.key.step, index };
                verdict::write_void(rank, &VoidMessage::new(&void, &step.layout.as_ref()), &mut self.verdict);
            }
            match net.transport.send(rank, tag, &self.verdict, net.deadline) {
                Ok(()) | Err(TransportError::Disconnected { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Encodes the mean, with the server's own error feedback if the downlink has it.
    fn encode_mean(&mut self, step: &Step<'_>, mean: &[f32], clock: &mut Clock) -> Result<(), ExchangeError> {
        let Downlink { codec, encoder, memory, before } = &mut self.downlink;
        let (layout, units) = (step.layout.as_ref(), step.units());
        timed(&mut clock.encode, || {
            memory.iter().for_each(|memory| before.take(memory));
            encoder.encode(&**codec, step.key, &layout, units, Grad::F32(mean), memory.as_mut()).map(|_| ())
        })
        .map_err(ExchangeError::Downlink)
    }

    /// The server applies the mean that it sent, not the one that it computed, so that all replicas stay
    /// equal.
    fn apply_downlink(
        &mut self,
        step: &Step<'_>,
        mean: &mut [f32],
        clock: &mut Clock,
    ) -> Result<(), ExchangeError> {
        let server = self.options.server;
        let expected = Requirements::holding(step, &*self.downlink.codec, step.units());
        let layout = step.layout.as_ref();
        let frame = self.downlink.encoder.frame();
        timed(&mut clock.decode, || self.incoming.write(server, frame, &layout, &expected, mean))
    }

    /// A worker's part of a step.
    fn ask(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        mean: &mut [f32],
    ) -> Result<Report, ExchangeError> {
        let mut clock = net.clock;
        let server = self.options.server;
        let tag = step.tag.chunk(VERDICT_CHUNK);
        let buffer = &mut self.buffer;
        timed(&mut clock.exchange, || net.transport.recv(server, tag, buffer, net.deadline))?;
        let members = step.members();
        let packets = step.packets().map(|_| (&mut self.packet_set, self.own.count()));
        let frame = verdict::read(&self.buffer, &members, &mut self.arrived, packets);
        let frame = frame.ok_or(ExchangeError::BadVerdict { server })?;
        if self.arrived.is_empty() {
            let void = verdict::read_void(frame, &step.layout.as_ref(), step.key.step);
            let void = void.filter(|void| members.contains(void.rank)).map(|void| (void.rank, void.index));
            let (quorum, refused) = (self.options.quorum, Refused::new());
            return Err(ExchangeError::NoQuorum { arrived: 0, quorum, refused, void });
        }
        let expected = Requirements::holding(step, &*self.downlink.codec, step.units());
        let layout = step.layout.as_ref();
        timed(&mut clock.decode, || self.incoming.write(server, frame, &layout, &expected, mean))?;
        self.report(step, Refused::new(), clock)
    }
}

/// Records a refusal for a rank; the first reason counts.
fn refuse(refused: &mut Refused, error: ExchangeError) -> Result<(), ExchangeError> {
    match error {
        ExchangeError::Frame { rank, error } => {
            if refused.last().is_none_or(|(last, _)| *last != rank) {
                refused.push((rank, error));
            }
            Ok(())
        }
        // An honest peer sends a frame of another step or codec only if the run has a bug.
        other => Err(other),
    }
}
