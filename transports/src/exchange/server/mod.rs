//! One rank gathers the frames, makes the mean, and sends it back with the list of contributors. Or it
//! gathers payloads, and sends back their reductions, once for each round.

mod failing;
mod serving;

use std::ops::Range;
use std::time::Duration;

use gradwire::arithmetic::first_non_finite;
use gradwire::format::Divisor;
use gradwire::{Gather, Grad, LayoutRef, Memory};

use super::downlink::Downlink;
use super::error::ExchangeError;
use super::fit::Kind;
use super::incoming::Incoming;
use super::means::{Means, flat};
use super::norm_cap::NormCap;
use super::own::Own;
use super::packet_set::PacketSet;
use super::packets::{self, Packets};
use super::port::{Body, Care};
use super::report::{Clock, PacketTally, Progress, Report, Work};
use super::route::ServerOptions;
use super::senders::Senders;
use super::step::Step;
use super::verdict;
use super::void::Void;
use crate::rank::{Rank, RankSet};
use crate::tag::Tag;

/// The queued frames of [`Server::frame`]: this rank's own, and the server's answer.
const OWN: usize = 0;
const VERDICT: usize = 1;

/// The tag of what workers send in a round. Frames, and announcements of packets, are of round 0. A round is
/// a unit of its own: further chunks of the first unit belong to whoever admits members.
fn up_tag(step: Tag, round: u32) -> Tag {
    step.unit(round).chunk(0)
}

/// The tag of the server's answer in a round.
fn verdict_tag(step: Tag, round: u32) -> Tag {
    step.unit(round).chunk(1)
}

/// Where the step of a rank stands.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Encoding,
    /// The own frame or the own packets leave.
    Posting,
    Encoded,
    /// The server takes what the member with that position sent.
    Gathering(usize),
    /// The server makes the mean of what arrived.
    Dividing,
    EncodingMean,
    /// The server answers the member with that position.
    Answering(usize),
    /// A worker waits for the answer.
    Asking,
    /// The mean that was sent is written out.
    Applying,
    /// What this rank reports is counted.
    Counting,
    /// The step failed, and the others are told.
    Telling,
}

#[derive(Debug)]
pub(super) struct Server {
    options: ServerOptions,
    phase: Phase,
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
    /// The first rank whose caller has said that it fails, and its text.
    told: Option<(Rank, String)>,
    /// Why the step failed here, while others are told.
    failed: Option<ExchangeError>,
    /// The server's answer.
    verdict: Vec<u8>,
    /// Where the frame of the mean is in it.
    mean_at: Range<usize>,
    /// The ranks whose frames are in the mean of this step, ascending.
    arrived: Vec<Rank>,
    /// The same as a set, reused from the previous step if nothing has changed.
    contributors: RankSet,
    refused: Refused,
    downlink: Downlink,
    /// Whether the memory has what this step left, and nothing was given back.
    is_encoded: bool,
    /// Whether the downlink's memory has what this step left.
    has_encoded_mean: bool,
    /// Until when the server waits for frames, and until when the step must be over.
    patient_until: u64,
    by: u64,
}

/// Frames that the server refused, and why.
type Refused = Vec<(Rank, gradwire::DecodeError)>;

impl Server {
    pub(super) fn new(
        options: ServerOptions,
        own: Own,
        layout: &LayoutRef<'_>,
    ) -> Result<Self, ExchangeError> {
        if options.norm_cap.is_some() && !matches!(own, Own::Frame(_)) {
            return Err(ExchangeError::CappedPackets);
        }
        let norm_cap = options.norm_cap.map(NormCap::new).transpose()?;
        let downlink = Downlink::new(&options.downlink, layout);
        let (packet_set, senders, incoming) = Default::default();
        let (void, told, failed, verdict, arrived) = Default::default();
        Ok(Self {
            options,
            phase: Phase::Encoding,
            own,
            packets: Packets::default(),
            packet_set,
            norm_cap,
            senders,
            incoming,
            void,
            told,
            failed,
            verdict,
            mean_at: 0..0,
            arrived,
            contributors: RankSet::default(),
            refused: Refused::new(),
            downlink,
            is_encoded: false,
            has_encoded_mean: false,
            patient_until: u64::MAX,
            by: u64::MAX,
        })
    }

    /// What it gathers.
    pub(super) fn kind(&self) -> Kind {
        if matches!(self.own, Own::Payloads(_)) { Kind::ServedSums } else { Kind::Server }
    }

    /// The number of the round; frames and packets have one.
    fn round(&self) -> u32 {
        if let Own::Payloads(served) = &self.own { served.round() } else { 0 }
    }

    /// Encodes means with another codec and that memory.
    pub(super) fn set_downlink(&mut self, codec: Box<dyn Gather>, memory: Option<Memory<'static>>) {
        self.downlink.set(codec, memory);
    }

    pub(super) fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        self.downlink.memory()
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

    // --- a step ------------------------------------------

    /// Begins a step. The port has begun it.
    pub(super) fn begin(&mut self, step: &mut Step<'_>) {
        (self.phase, self.by) = (Phase::Encoding, step.port.deadline);
        (self.void, self.told, self.failed) = (None, None, None);
        (self.is_encoded, self.has_encoded_mean) = (false, false);
        step.port.has_packets = step.packets().is_some();
        self.refused.clear();
        self.arrived.clear();
        if let Own::Payloads(served) = &mut self.own {
            served.begin_step();
        }
        if self.is_server(step) {
            step.port.ask_all(step.tag);
        } else {
            step.port.expect(self.options.server, verdict_tag(step.tag, 0));
        }
    }

    fn is_server(&self, step: &Step<'_>) -> bool {
        step.rank() == self.options.server
    }

    /// The bytes of a frame that was queued.
    pub(super) fn frame(&self, part: usize, place: usize) -> &[u8] {
        if part == VERDICT { &self.verdict } else { self.own.message(place).unwrap_or(&[]) }
    }

    /// One piece of the work until this rank's own message has left.
    pub(super) fn encode(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<()>, ExchangeError> {
        self.heed_caller(step, memory)?;
        match self.phase {
            Phase::Encoding => {
                let encoded = self.own.encode(step, grad, memory);
                self.is_encoded = encoded.is_ok();
                self.phase = match encoded.and_then(|()| self.post(step)) {
                    Ok(()) => Phase::Posting,
                    Err(error) => self.say_void(step, error),
                };
                Ok(Progress::Worked(Work::Encode))
            }
            Phase::Posting => match step.port.has_sent() {
                Ok(true) if step.port.is_empty() || step.port.now >= self.by => {
                    self.phase = Phase::Encoded;
                    Ok(Progress::Done(()))
                }
                Ok(_) => Ok(Progress::Waiting),
                Err(error) => self.give_up(step, error.into(), memory),
            },
            _ => self.tell(step, memory),
        }
    }

    /// Queues what this rank sends to the server.
    fn post(&mut self, step: &mut Step<'_>) -> Result<(), ExchangeError> {
        let (server, round) = (self.options.server, self.round());
        if !self.is_server(step) {
            match &mut self.own {
                Own::Frame(_) => {
                    let body = Body::Frame { part: OWN, place: 0 };
                    step.port.queue(server, step.tag, body, Care::Must);
                }
                Own::Packets { .. } => packets::post(step, server, &self.own, self.patience(step)),
                Own::Payloads(served) => {
                    let mut out = step.port.lend();
                    served.write_share(step, &mut out)?;
                    step.port.queue(server, up_tag(step.tag, round), Body::Own(out), Care::Must);
                }
            }
        }
        Ok(())
    }

    /// Begins the next round.
    fn next_round(&mut self, step: &mut Step<'_>) -> Result<Progress<Report>, ExchangeError> {
        let (tag, round) = (step.tag, self.round());
        if self.is_server(step) {
            step.port.ask_all(up_tag(tag, round));
            self.arrived.clear();
            self.patient_until = self.patience(step);
            return self.go_on(Phase::Gathering(0), Work::Exchange);
        }
        self.post(step)?;
        step.port.expect(self.options.server, verdict_tag(tag, round));
        self.go_on(Phase::Asking, Work::Exchange)
    }

    /// Until when the server waits for what leaves now.
    fn patience(&self, step: &Step<'_>) -> u64 {
        let patience = self.options.patience.map(|patience| u64::try_from(patience.as_nanos()));
        let patience = patience.and_then(Result::ok).unwrap_or(u64::MAX);
        step.port.now.saturating_add(patience).min(self.by)
    }

    /// All messages have left, and the mean is to be there at `by`.
    pub(super) fn finish_by(&mut self, step: &mut Step<'_>, mean: &mut dyn Means, by: u64) {
        let mean = flat(mean);
        (self.by, step.port.deadline) = (by, by);
        if !matches!(self.phase, Phase::Encoded) {
            return;
        }
        if !self.is_server(step) {
            self.phase = Phase::Asking;
            return;
        }
        self.patient_until = self.patience(step);
        self.phase = Phase::Gathering(0);
        self.norm_cap.iter_mut().for_each(NormCap::begin_step);
        mean.fill(0.0);
        if step.packets().is_some() {
            self.packets.begin_step(step.members().len());
        } else if step.divisor == Divisor::Senders {
            self.senders.begin(step.layout.len(), step.units());
        }
    }

    /// One piece of the work from then to the mean.
    pub(super) fn complete(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
        clock: Clock,
    ) -> Result<Progress<Report>, ExchangeError> {
        let mean = flat(mean);
        self.heed_caller(step, memory)?;
        let is_making = matches!(self.phase, Phase::Gathering(_) | Phase::Dividing | Phase::EncodingMean);
        let done = match self.phase {
            Phase::Gathering(position) => self.gather(step, position, mean),
            Phase::Dividing => self.make_mean(step, mean),
            Phase::EncodingMean => self.encode_mean(step, mean),
            Phase::Answering(position) => self.answer(step, position),
            Phase::Asking => self.ask(step),
            Phase::Applying => self.apply(step, mean, memory),
            Phase::Counting => return self.report(step, memory, clock),
            _ => return self.tell(step, memory),
        };
        match done {
            Err(error) if is_making => {
                if matches!(error, ExchangeError::OtherVersion { .. }) {
                    self.told.get_or_insert((step.rank(), error.to_string()));
                }
                self.refuse_all(step);
                self.failed = Some(error);
                self.go_on(Phase::Telling, Work::Exchange)
            }
            Err(error) => self.give_up(step, error, memory),
            done => done,
        }
    }

    fn go_on<T>(&mut self, phase: Phase, work: Work) -> Result<Progress<T>, ExchangeError> {
        self.phase = phase;
        Ok(Progress::Worked(work))
    }

    // --- a worker ------------------------------------------

    /// Takes the server's answer.
    fn ask(&mut self, step: &mut Step<'_>) -> Result<Progress<Report>, ExchangeError> {
        if !step.take(&mut self.verdict)? {
            return Ok(Progress::Waiting);
        }
        let (members, server) = (step.members(), self.options.server);
        let packets = step.packets().map(|_| (&mut self.packet_set, self.own.count()));
        let frame = verdict::read(&self.verdict, &members, &mut self.arrived, packets);
        let frame = frame.ok_or(ExchangeError::BadVerdict { server })?;
        if self.arrived.is_empty() {
            let reason = verdict::read_reason(frame, &step.layout.as_ref(), step.key.step);
            let void = match reason {
                Some(ExchangeError::Failed { rank, text }) if members.contains(rank) => {
                    return Err(ExchangeError::Failed { rank, text });
                }
                Some(ExchangeError::Void { rank, index }) if members.contains(rank) => Some((rank, index)),
                _ => None,
            };
            let (quorum, refused) = (self.options.quorum, Refused::new());
            return Err(ExchangeError::NoQuorum { arrived: 0, quorum, refused, void });
        }
        self.mean_at = self.verdict.len() - frame.len()..self.verdict.len();
        self.go_on(Phase::Applying, Work::Decode)
    }

    // --- both ------------------------------------------

    /// The server applies the mean that it sent, not the one that it computed, so that all replicas stay
    /// equal.
    fn apply(
        &mut self,
        step: &mut Step<'_>,
        mut mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<Report>, ExchangeError> {
        if let Own::Payloads(served) = &mut self.own {
            let reduced = &self.verdict[self.mean_at.clone()];
            let is_of_all = self.arrived.len() == step.members().len();
            if !is_of_all || !served.advance(step, reduced, &mut mean, memory)? {
                return Err(ExchangeError::BadVerdict { server: self.options.server });
            }
            if !served.is_over() {
                return self.next_round(step);
            }
            if let Some(index) = first_non_finite(mean) {
                return Err(ExchangeError::NonFiniteMean { index, rank: None });
            }
            return self.go_on(Phase::Counting, Work::Decode);
        }
        let frame = (self.options.server, &self.verdict[self.mean_at.clone()]);
        self.downlink.write(step, &mut self.incoming, frame, mean)?;
        self.go_on(Phase::Counting, Work::Decode)
    }

    /// What this rank reports. What is not in the mean goes back to the memory.
    fn report(
        &mut self,
        step: &mut Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
        clock: Clock,
    ) -> Result<Progress<Report>, ExchangeError> {
        let held = match self.own.held(step, &mut self.incoming) {
            Ok(held) => held,
            Err(error) => return self.give_up(step, error, memory),
        };
        step.port.end();
        let (contributors, frame_bytes) = (self.contributors(), self.own.bytes());
        let has_packets = step.packets().is_some();
        let sent = if has_packets { self.own.count() } else { 0 };
        let packets = PacketTally { sent, lost: sent - self.packet_set.ones() };
        let capped = self.norm_cap.as_ref().map_or_else(Vec::new, |cap| cap.capped().to_vec());
        let (refused, is_in) = (std::mem::take(&mut self.refused), contributors.contains(step.rank()));
        let is_in = |at| is_in && (!has_packets || self.packet_set.has(at));
        // Otherwise a part of this rank's gradient is neither in the mean nor back in the memory.
        let given = self.own.give_back(&mut self.incoming, step, memory, is_in);
        given.map_err(|error| ExchangeError::Frame { rank: step.rank(), error })?;
        let report = step.report(contributors, frame_bytes, held, clock);
        Ok(Progress::Done(Report { refused, capped, packets, ..report }))
    }

    /// The ranks that arrived, as a set.
    fn contributors(&mut self) -> RankSet {
        if self.contributors.as_slice() != self.arrived {
            self.contributors = self.arrived.iter().copied().collect();
        }
        self.contributors.clone()
    }
}
