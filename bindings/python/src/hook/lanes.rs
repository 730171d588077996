//! All lanes of a hook over one transport, as one machine: messages are told apart by the numbers in their
//! tags.

use std::time::Duration;

use gradwire_transports::exchange::{Exchange, Machine, Outgoing, Refusal, Work};
use gradwire_transports::{Rank, Tag, TransportError, Wanted};

use super::bucket::Opening;
use super::lane::Lane;
use super::says::Says;

/// What the last word of a step is tagged with. It is sent to all, and read only where a vote is missing.
const WORD: (u32, u32) = (u32::MAX, 2);

#[derive(Default)]
pub(super) struct Lanes {
    pub(super) all: Vec<Lane>,
    /// Those that take part in the step under way.
    pub(super) active: Vec<usize>,
    /// How many steps were begun.
    begun: u64,
    pub(super) world: usize,
    wanted: Vec<Wanted>,
    /// Payload bytes that were sent, but for the last words, and received.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Messages that were sent, but for the last words.
    pub(super) messages: u64,
}

impl Lanes {
    /// The number of the next step of the first lane; that of each lane follows.
    pub(super) fn next_number(&mut self) -> u64 {
        let number = self.begun * self.all.len() as u64;
        self.begun += 1;
        number
    }

    /// That of the step that was begun last.
    pub(super) fn number(&self) -> u64 {
        self.begun.saturating_sub(1) * self.all.len() as u64
    }

    fn lane_of(&self, tag: Tag) -> usize {
        (tag.step % self.all.len() as u64) as usize
    }

    fn name(&self, id: u64) -> (usize, u64) {
        let lanes = self.all.len() as u64;
        ((id % lanes) as usize, id / lanes)
    }

    pub(super) fn active(&mut self) -> impl Iterator<Item = (usize, &mut Lane)> {
        let active = &self.active;
        self.all.iter_mut().enumerate().filter(|(at, _)| active.contains(at))
    }

    /// Sets the codecs of a step. All ranks have the same one, and it fits, as it is the same with another
    /// density.
    pub(super) fn set_codecs(&mut self, opening: &Opening) {
        for (at, codec) in opening.lanes.iter().zip(&opening.codecs) {
            let (lane, spec) = (&mut self.all[*at], &codec.get().spec);
            let spelling = spec.to_string();
            if spelling != lane.spelling && lane.machine.set_codec(spec.codec).is_ok() {
                lane.spelling = spelling;
            }
        }
    }

    /// Frees the buffers of lanes that take no part in the step that begins.
    pub(super) fn free_others(&mut self) {
        let Self { all, active, .. } = self;
        let others = all.iter_mut().enumerate().filter(|(at, _)| !active.contains(at));
        others.for_each(|(_, lane)| lane.free());
    }

    fn next_of(&self, at: usize) -> Option<Outgoing<'_>> {
        Machine::outgoing(&self.all[at].machine)
    }

    /// Forgets the step under way.
    pub(super) fn abandon(&mut self) {
        self.all.iter_mut().for_each(|lane| lane.machine.abandon());
        self.active.clear();
    }
}

impl Machine for Lanes {
    fn outgoing(&self) -> Option<Outgoing<'_>> {
        let (at, next) = self.active.iter().find_map(|at| Some((*at, self.next_of(*at)?)))?;
        Some(Outgoing { id: next.id * self.all.len() as u64 + at as u64, ..next })
    }

    fn sent(&mut self, id: u64) {
        let (at, id) = self.name(id);
        if let Some(next) = self.next_of(at).filter(|next| next.id == id) {
            let is_word = (next.tag.unit, next.tag.chunk) == WORD;
            let bytes = next.bytes.len() as u64;
            if !is_word {
                (self.sent, self.messages) = (self.sent + bytes, self.messages + 1);
            }
        }
        self.all[at].machine.sent(id);
    }

    fn no_room(&mut self, id: u64, now: u64) {
        let (at, id) = self.name(id);
        self.all[at].machine.no_room(id, now);
    }

    fn is_full(&self) -> bool {
        self.active.iter().any(|at| Machine::is_full(&self.all[*at].machine))
    }

    fn retry(&mut self) {
        self.active().for_each(|(_, lane)| lane.machine.retry());
    }

    fn not_sent(&mut self, id: u64, error: TransportError) {
        let (at, id) = self.name(id);
        self.all[at].machine.not_sent(id, error);
    }

    fn receive(&mut self, from: Rank, tag: Tag, message: Vec<u8>) -> Result<(), Refusal> {
        let (at, world) = (self.lane_of(tag), self.world);
        self.received += message.len() as u64;
        let lane = &mut self.all[at];
        if let Some(part) = lane.machine.part_of(tag)
            && let Some(says) = Exchange::said_in(&message).and_then(Says::read)
            && (from.0 as usize) < world
        {
            lane.note(part, from.0 as usize, world, says);
        }
        lane.machine.receive(from, tag, message)
    }

    fn lend(&mut self) -> Vec<u8> {
        self.all[0].machine.lend()
    }

    fn give(&mut self, buffer: Vec<u8>) {
        self.all[0].machine.give(buffer);
    }

    fn wanted(&mut self) -> &[Wanted] {
        let Self { all, active, wanted, .. } = self;
        wanted.clear();
        active.iter().for_each(|at| wanted.extend_from_slice(all[*at].machine.wanted()));
        wanted
    }

    /// The first of the lanes that wait.
    fn deadline(&self) -> u64 {
        let waiting = self.active.iter().map(|at| &self.all[*at]).filter(|lane| lane.is_waiting);
        waiting.map(|lane| Machine::deadline(&lane.machine)).min().unwrap_or(u64::MAX)
    }

    fn peer_lost(&mut self, rank: Rank) {
        self.active().for_each(|(_, lane)| lane.machine.peer_lost(rank));
    }

    fn not_here(&mut self, rank: Rank) {
        self.active().for_each(|(_, lane)| lane.machine.not_here(rank));
    }

    fn network_failed(&mut self, error: TransportError) {
        self.active().for_each(|(_, lane)| lane.machine.network_failed(error.clone()));
    }

    fn filed_bytes(&self) -> usize {
        self.all.iter().map(|lane| Machine::filed_bytes(&lane.machine)).sum()
    }

    fn spend(&mut self, _: Work, _: Duration) {}
}
