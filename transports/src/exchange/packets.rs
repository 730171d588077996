//! Packets that travel to the server. Any of them may be lost without the others.
//!
//! | message | tag | arrives |
//! | --- | --- | --- |
//! | how many packets there are, u32 LE; or a void frame, and nothing follows | the step's | surely |
//! | packet j | unit 1, chunk j | or not |
//! | that all were sent, empty | chunk 4 | surely |
//!
//! The server accepts packets in any order. It stops waiting for a worker when all of its packets have
//! arrived, when the worker says that all were sent, or when its patience is over.

use std::time::Duration;

use gradwire::LayoutRef;

use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::intake::Intake;
use super::net::{Net, timed};
use super::own::Own;
use super::packet_set::PacketSet;
use super::report::Clock;
use super::step::Step;
use super::void::Void;
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};

const PACKET_UNIT: u32 = 1;
/// Chunks 1 to 3 belong to the verdict and the roll.
const DONE_CHUNK: u32 = 4;
/// The time between two looks for packets, so that the inbox does not fill up while the server waits for the
/// message that all were sent.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

fn tag_of(step: Tag, at: usize) -> Tag {
    // No gradient has more packets than coordinates.
    step.unit(PACKET_UNIT).chunk(at as u32)
}

/// Sends the packets of this rank. Packets that do not get through before `until` are not sent again.
pub(super) fn send(
    step: &mut Step<'_>,
    net: &mut Net<'_>,
    server: Rank,
    own: &Own,
    until: Deadline,
) -> Result<(), TransportError> {
    let count = own.count() as u32;
    net.transport.send(server, step.tag, &count.to_le_bytes(), net.deadline)?;
    for (at, packet) in own.parts().enumerate() {
        net.transport.send_packet(server, tag_of(step.tag, at), packet, until)?;
    }
    net.transport.send(server, step.tag.chunk(DONE_CHUNK), b"", net.deadline)
}

/// Where the server adds packets.
pub(super) struct Sum<'s> {
    pub(super) incoming: &'s mut Incoming,
    pub(super) layout: LayoutRef<'s>,
    pub(super) expected: Requirements<'s>,
    pub(super) values: &'s mut [f32],
}

/// What the server knows of the packets of a step.
#[derive(Debug, Default)]
pub(super) struct Packets {
    intake: Intake,
    /// Which packets of each member are in the sum, by its position.
    slips: Vec<PacketSet>,
    /// Packets of the current worker that were examined.
    seen: PacketSet,
    buffer: Vec<u8>,
}

impl Packets {
    pub(super) fn begin_step(&mut self, members: usize) {
        self.intake.begin_step();
        self.slips.resize_with(self.slips.len().max(members), PacketSet::default);
        self.slips.iter_mut().for_each(|packet_set| packet_set.reset(0));
    }

    /// Which packets of the member at that position are in the sum.
    pub(super) fn packet_set(&self, position: usize) -> &PacketSet {
        &self.slips[position]
    }

    /// Divides each coordinate by the number of workers that sent it.
    pub(super) fn divide(&mut self, sum: &mut [f32]) {
        self.intake.divide(sum);
    }

    /// Adds this rank's own packets, which cannot be lost.
    pub(super) fn add_own(
        &mut self,
        (rank, position): (Rank, usize),
        own: &Own,
        sum: &mut Sum<'_>,
    ) -> Result<(), ExchangeError> {
        self.begin_worker(position, own.count());
        own.parts().enumerate().try_for_each(|(at, packet)| self.add(rank, (position, at), packet, sum))
    }

    fn begin_worker(&mut self, position: usize, count: usize) {
        self.intake.begin_worker();
        self.slips[position].reset(count);
        self.seen.reset(count);
    }

    /// Receives and adds the packets of one worker. A refused packet is passed to `refuse` and not added.
    pub(super) fn collect(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        (rank, position): (Rank, usize),
        (sum, clock): (&mut Sum<'_>, &mut Clock),
        deadline: Deadline,
        refuse: &mut impl FnMut(ExchangeError) -> Result<(), ExchangeError>,
    ) -> Result<(), ExchangeError> {
        let Some(count) = self.announced(step, net, rank, clock, deadline)? else { return Ok(()) };
        self.begin_worker(position, count);
        let (mut first, mut is_over) = (0, false);
        loop {
            let is_last = is_over || deadline.has_passed();
            for at in first..count {
                if self.seen.has(at) || !self.take(step, net, rank, at, clock)? {
                    continue;
                }
                self.seen.set(at);
                let packet = std::mem::take(&mut self.buffer);
                let added = timed(&mut clock.decode, || self.add(rank, (position, at), &packet, sum));
                self.buffer = packet;
                added.or_else(&mut *refuse)?;
            }
            first = (first..count).find(|&at| !self.seen.has(at)).unwrap_or(count);
            if first == count || is_last {
                return Ok(());
            }
            let (done, until) = (step.tag.chunk(DONE_CHUNK), deadline.earlier(Deadline::after(LOOK_AGAIN)));
            is_over = match timed(&mut clock.exchange, || {
                net.transport.recv(rank, done, &mut self.buffer, until)
            }) {
                Ok(()) | Err(TransportError::Disconnected { .. }) => true,
                Err(TransportError::Timeout { .. }) => false,
                Err(other) => return Err(other.into()),
            };
        }
    }

    /// The number of packets that the worker announces; `None` if it announces none in time, or more than a
    /// gradient can have.
    fn announced(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        rank: Rank,
        clock: &mut Clock,
        deadline: Deadline,
    ) -> Result<Option<usize>, ExchangeError> {
        let buffer = &mut self.buffer;
        if !timed(&mut clock.exchange, || arrives(net, (rank, step.tag), buffer, deadline))? {
            return Ok(None);
        }
        if let Some(void) = Void::read(rank, &self.buffer, &step.layout.as_ref(), step.key.step) {
            return Err(void.into());
        }
        let count = self.buffer.as_slice().try_into().ok().map(u32::from_le_bytes);
        // A packet holds at least one coordinate, or a unit without coordinates.
        let most = step.layout.len() + step.units().len();
        Ok(count.and_then(|count| usize::try_from(count).ok()).filter(|&count| count <= most))
    }

    fn take(
        &mut self,
        step: &mut Step<'_>,
        net: &mut Net<'_>,
        rank: Rank,
        at: usize,
        clock: &mut Clock,
    ) -> Result<bool, TransportError> {
        let (tag, buffer) = (tag_of(step.tag, at), &mut self.buffer);
        timed(&mut clock.exchange, || arrives(net, (rank, tag), buffer, Deadline::now()))
    }

    /// Adds one packet, unless it is refused or holds coordinates that the worker has sent already.
    fn add(
        &mut self,
        rank: Rank,
        (position, at): (usize, usize),
        packet: &[u8],
        sum: &mut Sum<'_>,
    ) -> Result<(), ExchangeError> {
        let packet = sum.incoming.parse(rank, packet, &sum.layout, &sum.expected)?;
        if !packet.units().all(|part| self.intake.is_free(&part.range())) {
            return Err(ExchangeError::WrongUnits { rank });
        }
        packet.units().for_each(|part| self.intake.take(part.range()));
        packet.add_scaled_to(1.0, sum.values);
        self.slips[position].set(at);
        Ok(())
    }
}

/// Whether a message came in time. A worker that is late or gone is not an error.
pub(super) fn arrives(
    net: &mut Net<'_>,
    (rank, tag): (Rank, Tag),
    into: &mut Vec<u8>,
    deadline: Deadline,
) -> Result<bool, TransportError> {
    match net.transport.recv(rank, tag, into, deadline) {
        Ok(()) => Ok(true),
        Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
