//! Packets that travel to the server. Any of them may be lost without the others.
//!
//! | message | tag | arrives |
//! | --- | --- | --- |
//! | how many packets there are, u32 LE; or a void frame or a failure, and nothing follows | the step's | surely |
//! | packet j | unit 1, chunk j | or not |
//! | that all were sent, empty | chunk 4 | unless the server is gone |
//!
//! The server accepts packets in any order. It stops waiting for a worker when all of its packets have
//! arrived, when the worker says that all were sent, or when its patience is over.

use gradwire::LayoutRef;

use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::intake::Intake;
use super::own::Own;
use super::packet_set::PacketSet;
use super::port::{Body, Care, PACKET_UNIT};
use super::step::Step;
use super::void::refusal;
use crate::rank::Rank;
use crate::tag::{Tag, Wanted};

/// Chunks 1 to 3 belong to the verdict and the roll.
const DONE_CHUNK: u32 = 4;

fn tag_of(step: Tag, at: usize) -> Tag {
    // No gradient has more packets than coordinates.
    step.unit(PACKET_UNIT).chunk(at as u32)
}

/// Queues the packets of this rank. Packets that do not get through before `until` are not sent again. A
/// server that has all of them may go on, and leave, before it hears that they were all.
pub(super) fn post(step: &mut Step<'_>, server: Rank, own: &Own, until: u64) {
    let (tag, count) = (step.tag, own.count());
    step.port.queue_copy(server, tag, &(count as u32).to_le_bytes(), Care::Must);
    for place in 0..count {
        let body = Body::Frame { part: 0, place };
        step.port.queue(server, tag_of(tag, place), body, Care::Packet(until));
    }
    let by = Care::Until(step.port.deadline);
    step.port.queue_copy(server, tag.chunk(DONE_CHUNK), b"", by);
}

/// Where the server adds packets.
pub(super) struct Sum<'s> {
    pub(super) incoming: &'s mut Incoming,
    pub(super) layout: LayoutRef<'s>,
    pub(super) expected: Requirements<'s>,
    pub(super) values: &'s mut [f32],
}

/// What a look for packets of a worker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collected {
    /// Nothing yet.
    Waiting,
    /// A message.
    One,
    /// All that the server waits for.
    All,
}

/// What the server knows of the packets of a step.
#[derive(Debug, Default)]
pub(super) struct Packets {
    intake: Intake,
    /// Which packets of each member are in the sum, by its position.
    slips: Vec<PacketSet>,
    /// How many packets the current worker has announced, if it has.
    announced: Option<usize>,
    /// Those of them that were examined, and how many were not.
    seen: PacketSet,
    unseen: usize,
    /// Whether the current worker has sent all.
    is_done: bool,
}

impl Packets {
    pub(super) fn begin_step(&mut self, members: usize) {
        self.intake.begin_step();
        self.announced = None;
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
        (self.unseen, self.is_done) = (count, false);
    }

    /// Takes one message of a worker, and adds the packet that it is. The server waits until `by` for it. A
    /// refused packet is passed to `refuse` and not added.
    pub(super) fn collect(
        &mut self,
        step: &mut Step<'_>,
        (rank, position): (Rank, usize),
        by: u64,
        sum: &mut Sum<'_>,
        refuse: &mut impl FnMut(ExchangeError) -> Result<(), ExchangeError>,
    ) -> Result<Collected, ExchangeError> {
        let Some(count) = self.announced else { return self.begin(step, (rank, position), by) };
        let wanted = Wanted::chunks(rank, tag_of(step.tag, 0), count as u32);
        if let Some((tag, packet)) = step.port.find_any(&wanted) {
            let at = tag.chunk as usize;
            let mut added = Ok(());
            if !self.seen.has(at) {
                self.seen.set(at);
                self.unseen -= 1;
                added = self.add(rank, (position, at), &packet, sum);
            }
            step.port.give(packet);
            return added.or_else(refuse).map(|()| Collected::One);
        }
        self.is_done |= step.port.find(rank, step.tag.chunk(DONE_CHUNK)).is_some();
        let by = if self.is_done { 0 } else { by };
        if self.unseen > 0 && !step.port.is_lost(rank, wanted.tag) && !step.port.is_over(by) {
            return Ok(Collected::Waiting);
        }
        self.announced = None;
        step.port.forget(rank);
        Ok(Collected::All)
    }

    /// Takes the announcement of a worker, and asks for its packets.
    fn begin(
        &mut self,
        step: &mut Step<'_>,
        (rank, position): (Rank, usize),
        by: u64,
    ) -> Result<Collected, ExchangeError> {
        let Some(message) = step.port.find(rank, step.tag) else {
            let is_over = step.port.is_lost(rank, step.tag) || step.port.is_over(by);
            return Ok(if is_over { Collected::All } else { Collected::Waiting });
        };
        let reason = refusal(rank, &message, &step.layout.as_ref(), step.key.step);
        let count = message.as_slice().try_into().ok().map(u32::from_le_bytes);
        step.port.give(message);
        if let Some(reason) = reason {
            return Err(reason);
        }
        // A packet holds at least one coordinate, or a unit without coordinates. A worker that announces
        // more, or none, has nothing that can be added.
        let most = step.layout.len() + step.units().len();
        let Some(chunks) = count.filter(|&count| count > 0 && count as usize <= most) else {
            return Ok(Collected::All);
        };
        self.begin_worker(position, chunks as usize);
        self.announced = Some(chunks as usize);
        step.port.ask(Wanted::one(rank, step.tag.chunk(DONE_CHUNK)));
        step.port.ask(Wanted::chunks(rank, tag_of(step.tag, 0), chunks));
        Ok(Collected::One)
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
