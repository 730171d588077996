//! One rank gathers the frames, makes the mean, and sends it back with the names of those who are in it.

use gradwire::{Encoder, Grad, LayoutRef, Memory};

use super::all_gather::encode;
use super::incoming::{Expected, Incoming, divide, first_non_finite, held};
use super::{Clock, ExchangeError, Report, ServerOptions, Step, timed};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// The chunk of the server's answer; frames of workers have chunk 0.
const VERDICT_CHUNK: u32 = 1;

#[derive(Debug)]
pub(super) struct Server {
    options: ServerOptions,
    encoder: Encoder,
    incoming: Incoming,
    /// What was received last, in a buffer that the transport takes back for the next.
    buffer: Vec<u8>,
    /// What the server sends back: longer than what it receives, so in a buffer of its own.
    verdict: Vec<u8>,
    /// Whose frames are in the mean of this step, ascending.
    arrived: Vec<Rank>,
    /// The same as a set: that of the step before is named again where it has not changed.
    contributors: RankSet,
    downlink: Downlink,
}

/// The mean on its way back; only the server's is ever used.
#[derive(Debug)]
struct Downlink {
    encoder: Encoder,
    memory: Option<Memory<'static>>,
}

/// Frames that the server refused, and why.
type Refused = Vec<(Rank, gradwire::DecodeError)>;

impl Server {
    pub(super) fn new(options: ServerOptions, layout: &LayoutRef<'_>) -> Self {
        let memory = Memory::for_spec(&options.downlink, layout);
        Self {
            options,
            encoder: Encoder::new(),
            incoming: Incoming::default(),
            buffer: Vec::new(),
            verdict: Vec::new(),
            arrived: Vec::new(),
            contributors: RankSet::default(),
            downlink: Downlink { encoder: Encoder::new(), memory },
        }
    }

    pub(super) fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        self.downlink.memory.as_mut()
    }

    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        encode(&mut self.encoder, step, grad, memory)?;
        let server = self.options.server;
        if step.transport.rank() == server {
            return Ok(());
        }
        let mut exchange = step.clock.exchange;
        let frame = self.encoder.frame();
        let sent = timed(&mut exchange, || step.transport.send(server, step.tag, frame, step.deadline));
        step.clock.exchange = exchange;
        sent.map_err(|error| {
            self.incoming.give_back(self.encoder.frame(), &step.layout.as_ref(), memory);
            error.into()
        })
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let is_server = step.transport.rank() == self.options.server;
        let result = if is_server { self.serve(step, mean) } else { self.ask(step, mean) };
        let is_in = result.as_ref().is_ok_and(|report| report.contributors.contains(step.transport.rank()));
        if !is_in {
            self.incoming.give_back(self.encoder.frame(), &step.layout.as_ref(), memory);
        }
        result
    }

    /// The server's part of a step. Whatever fails, the workers get an answer.
    fn serve(&mut self, step: &mut Step<'_>, mean: &mut [f32]) -> Result<Report, ExchangeError> {
        let mut clock = step.clock;
        let members = step.transport.membership().ranks;
        let made = self.make_mean(step, &members, mean, &mut clock);
        let contributors = if made.is_ok() { self.arrived.as_slice() } else { &[] };
        write_verdict(contributors, self.downlink.encoder.frame(), &mut self.verdict);
        timed(&mut clock.exchange, || answer(step, &members, &self.verdict))?;
        let refused = made?;
        let held = self.apply_downlink(step, mean, &mut clock)?;
        let frame_bytes = self.encoder.frame().len();
        let contributors = self.contributors();
        let Clock { encode, exchange, decode } = clock;
        Ok(Report { contributors, refused, frame_bytes, held, encode, exchange, decode })
    }

    /// Who arrived, as a set.
    fn contributors(&mut self) -> RankSet {
        if self.contributors.as_slice() != self.arrived {
            self.contributors = self.arrived.iter().copied().collect();
        }
        self.contributors.clone()
    }

    /// Gathers, divides, and encodes the mean for the way back.
    fn make_mean(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        mean: &mut [f32],
        clock: &mut Clock,
    ) -> Result<Refused, ExchangeError> {
        let refused = self.gather(step, members, mean, clock)?;
        let arrived = self.arrived.len();
        let quorum = if self.options.quorum == 0 { members.len() } else { self.options.quorum };
        if arrived < quorum {
            return Err(ExchangeError::NoQuorum { arrived, quorum });
        }
        timed(&mut clock.decode, || divide(mean, arrived));
        if let Some(index) = timed(&mut clock.decode, || first_non_finite(mean)) {
            return Err(ExchangeError::NonFiniteMean { index, rank: None });
        }
        self.encode_mean(step, mean, clock)?;
        Ok(refused)
    }

    /// Adds the frames that arrive in time and are accepted to `sum`, in rank order.
    fn gather(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        sum: &mut [f32],
        clock: &mut Clock,
    ) -> Result<Refused, ExchangeError> {
        let expected = Expected::of(step, &step.spec.codec);
        let patience = self.options.patience.map_or(Deadline::NEVER, Deadline::after);
        let deadline = patience.earlier(step.deadline);
        let mut refused = Refused::new();
        self.arrived.clear();
        sum.fill(0.0);
        for rank in members.iter() {
            let is_own = rank == step.transport.rank();
            let buffer = &mut self.buffer;
            if !is_own && !timed(&mut clock.exchange, || arrives(step, rank, buffer, deadline))? {
                continue;
            }
            let bytes = if is_own { self.encoder.frame() } else { &self.buffer };
            let parsed = timed(&mut clock.decode, || {
                let frame = self.incoming.parse(rank, bytes, &step.layout.as_ref(), &expected)?;
                frame.add_scaled_to(1.0, sum);
                Ok(())
            });
            match parsed {
                Ok(()) => self.arrived.push(rank),
                Err(ExchangeError::Frame { rank, error }) => refused.push((rank, error)),
                // A frame of another step or codec from an honest peer is a bug of the run, not of the network.
                Err(other) => return Err(other),
            }
        }
        Ok(refused)
    }

    /// Encodes the mean for the way back, with the server's own error feedback if the downlink has any.
    fn encode_mean(&mut self, step: &Step<'_>, mean: &[f32], clock: &mut Clock) -> Result<(), ExchangeError> {
        let Downlink { encoder, memory } = &mut self.downlink;
        let (layout, units, codec) = (step.layout.as_ref(), step.units, &self.options.downlink.codec);
        timed(&mut clock.encode, || {
            encoder.encode(codec, step.key, &layout, units, Grad::F32(mean), memory.as_mut()).map(|_| ())
        })?;
        Ok(())
    }

    /// The server applies what it sent, not what it had, so that all replicas stay alike. Returns the coordinates of its
    /// own frame.
    fn apply_downlink(
        &mut self,
        step: &Step<'_>,
        mean: &mut [f32],
        clock: &mut Clock,
    ) -> Result<usize, ExchangeError> {
        let server = self.options.server;
        let expected = Expected::of(step, &self.options.downlink.codec);
        let own = Expected::of(step, &step.spec.codec);
        let layout = step.layout.as_ref();
        timed(&mut clock.decode, || {
            let frame = self.incoming.parse(server, self.downlink.encoder.frame(), &layout, &expected)?;
            mean.fill(0.0);
            frame.add_scaled_to(1.0, mean);
            Ok(held(&self.incoming.parse(server, self.encoder.frame(), &layout, &own)?))
        })
    }

    /// A worker's part of a step.
    fn ask(&mut self, step: &mut Step<'_>, mean: &mut [f32]) -> Result<Report, ExchangeError> {
        let mut clock = step.clock;
        let server = self.options.server;
        let tag = step.tag.chunk(VERDICT_CHUNK);
        let buffer = &mut self.buffer;
        timed(&mut clock.exchange, || step.transport.recv(server, tag, buffer, step.deadline))?;
        let members = step.transport.membership().ranks;
        let frame = read_verdict(&self.buffer, &members, &mut self.arrived);
        let frame = frame.ok_or(ExchangeError::BadVerdict { server })?;
        if self.arrived.is_empty() {
            return Err(ExchangeError::NoQuorum { arrived: 0, quorum: self.options.quorum });
        }
        let expected = Expected::of(step, &self.options.downlink.codec);
        let own = Expected::of(step, &step.spec.codec);
        let layout = step.layout.as_ref();
        let own_held = timed(&mut clock.decode, || {
            let frame = self.incoming.parse(server, frame, &layout, &expected)?;
            mean.fill(0.0);
            frame.add_scaled_to(1.0, mean);
            let me = step.transport.rank();
            Ok::<usize, ExchangeError>(held(&self.incoming.parse(me, self.encoder.frame(), &layout, &own)?))
        })?;
        let (contributors, refused) = (self.contributors(), Refused::new());
        let frame_bytes = self.encoder.frame().len();
        let Clock { encode, exchange, decode } = clock;
        Ok(Report { contributors, refused, frame_bytes, held: own_held, encode, exchange, decode })
    }
}

/// Whether the frame of `rank` came in time; a worker that is late or gone is not an error.
fn arrives(
    step: &mut Step<'_>,
    rank: Rank,
    into: &mut Vec<u8>,
    deadline: Deadline,
) -> Result<bool, TransportError> {
    match step.transport.recv(rank, step.tag, into, deadline) {
        Ok(()) => Ok(true),
        Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Sends the verdict to all; a worker that is gone is not an error.
fn answer(step: &mut Step<'_>, members: &RankSet, verdict: &[u8]) -> Result<(), TransportError> {
    let (tag, me): (Tag, Rank) = (step.tag.chunk(VERDICT_CHUNK), step.transport.rank());
    for rank in members.iter().filter(|&rank| rank != me) {
        match step.transport.send(rank, tag, verdict, step.deadline) {
            Ok(()) | Err(TransportError::Disconnected { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Contributors (their number and each rank as u32 LE, ascending), then the frame of the mean. No contributors: the step
/// failed, and no frame follows.
fn write_verdict(contributors: &[Rank], frame: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&(contributors.len() as u32).to_le_bytes());
    contributors.iter().for_each(|rank| out.extend_from_slice(&rank.0.to_le_bytes()));
    if !contributors.is_empty() {
        out.extend_from_slice(frame);
    }
}

/// Writes the contributors, who must be members, to `arrived`, and returns the rest of the message.
fn read_verdict<'v>(verdict: &'v [u8], members: &RankSet, arrived: &mut Vec<Rank>) -> Option<&'v [u8]> {
    let (count, rest) = verdict.split_first_chunk()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok().filter(|&count| count <= members.len())?;
    let (ranks, frame) = rest.split_at_checked(count * 4)?;
    arrived.clear();
    arrived.extend(ranks.as_chunks().0.iter().map(|&rank| Rank(u32::from_le_bytes(rank))));
    let ascending = arrived.windows(2).all(|pair| pair[0] < pair[1]);
    let known = arrived.iter().all(|&rank| members.contains(rank));
    (ascending && known).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_round_trip_and_strange_ones_are_refused() {
        let members = RankSet::contiguous(4);
        let (mut verdict, mut arrived) = (Vec::new(), Vec::new());
        write_verdict(&[Rank(1), Rank(3)], b"frame", &mut verdict);
        assert_eq!(read_verdict(&verdict, &members, &mut arrived), Some(&b"frame"[..]));
        assert_eq!(arrived, [Rank(1), Rank(3)]);
        for strange in [vec![Rank(3), Rank(1)], vec![Rank(9)], vec![Rank(1), Rank(1)], vec![Rank(0); 5]] {
            write_verdict(&strange, b"", &mut verdict);
            assert_eq!(read_verdict(&verdict, &members, &mut arrived), None, "{strange:?}");
        }
        assert_eq!(read_verdict(&[2, 0, 0, 0, 1, 0, 0, 0], &members, &mut arrived), None);
        assert_eq!(read_verdict(&[1, 0], &members, &mut arrived), None);
    }
}
