//! Payloads of linear codecs, each segment summed by its owner in rank order. All units of a part travel
//! together: in each round, a rank sends a peer one message with its segments of all payloads. Long payloads
//! are cut, so that one cut is summed while others travel, and a processor's cache holds what it works on.
//!
//! An added part begins with a [head](super::head) from every rank to all others. A unit that no rank has a
//! gradient of has no rounds: its mean is zero, and all memories stay as they are. A rank that lacks a unit
//! which another rank has takes part with a gradient of zeros.

use gradwire::{DecodeError, Grad, Memory, Unit};

use super::all_reduce::{drain_units, require_finite};
use super::error::ExchangeError;
use super::head::{self, Head};
use super::means::Means;
use super::part_route::{InParts, Polled};
use super::parts::Part;
use super::payload::{UnitRounds, require_workers};
use super::port::{Body, Care};
use super::report::Work;
use super::step::Step;
use super::version::TAIL;
use super::void::note_tag;
use crate::collective::{self, Hop, Turn, Wire};
use crate::error::TransportError;
use crate::tag::{Tag, Wanted};

/// The bytes of a message of a cut payload, about; and the most cuts.
const CUT_BYTES: usize = 128 << 10;
const MOST_CUTS: usize = 64;

#[derive(Debug)]
pub(super) struct Owners {
    wire: Wire,
    incoming: Vec<u8>,
    /// In the order of the parts.
    units: Vec<UnitRounds>,
    parts: Vec<PartState>,
    /// As long as the longest unit that this rank lacked.
    zeros: Vec<f32>,
    frame_bytes: usize,
    held: usize,
}

/// A part of the step.
#[derive(Debug, Default)]
struct PartState {
    /// The head of this rank, and by position those of the others, and how many were taken.
    own: Vec<u8>,
    heads: Vec<Vec<u8>>,
    next: usize,
    /// The current round, and its hops that were made.
    round: u32,
    hop: usize,
}

impl PartState {
    fn begin_round(&mut self, round: u32) {
        (self.round, self.hop) = (round, 0);
    }
}

impl Owners {
    pub(super) fn new(wire: Wire, units: usize) -> Self {
        let units = (0..units).map(|_| UnitRounds::default()).collect();
        let (incoming, parts, zeros) = Default::default();
        Self { wire, incoming, units, parts, zeros, frame_bytes: 0, held: 0 }
    }

    /// The hops of the part's current round.
    fn path(&self, step: &Step<'_>, part: Part<'_>) -> Result<collective::Owners, TransportError> {
        let tag = step.tag.unit(part.units[0].id).chunk(self.parts[part.at].round);
        let units = &self.units[part.first..][..part.units.len()];
        let bytes: usize = units.iter().map(|rounds| rounds.payload_bytes(self.wire)).sum();
        let members = step.port.members().clone();
        let cuts = bytes.div_ceil(CUT_BYTES * members.world()).clamp(1, MOST_CUTS);
        collective::Owners::new(step.rank(), members, tag, cuts)
    }

    /// The units of a part whose rounds are not over.
    fn active<'p>(&mut self, part: Part<'p>) -> impl Iterator<Item = (&mut UnitRounds, &'p Unit)> {
        let units = self.units[part.first..].iter_mut().zip(part.units);
        units.filter(|(rounds, _)| rounds.round.is_some())
    }

    /// The bytes of all payloads of a part in a hop.
    fn bytes(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        path: &collective::Owners,
        hop: usize,
    ) -> Result<usize, TransportError> {
        let wire = self.wire;
        let active = self.active(part);
        let bytes = active.map(|(rounds, unit)| {
            rounds.with_payload(step.plan, unit, wire, |data| Ok(path.bytes(hop, &data)))
        });
        bytes.sum()
    }

    /// Sends all that is to be sent before the next message is taken.
    fn send_hops(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), TransportError> {
        while self.send_cut(step, part)? {}
        Ok(())
    }

    /// Sends what is to be sent of a cut before the next message is taken; returns whether that was the share
    /// of a cut that another one follows.
    fn send_cut(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<bool, TransportError> {
        if self.active(part).next().is_none() {
            return Ok(false);
        }
        let path = self.path(step, part)?;
        if self.parts[part.at].hop == 0 {
            // They come without another message of this rank, but for the first ones.
            path.takes().try_for_each(|take| take.map(|(from, tag)| step.port.expect(from, tag)))?;
        }
        for _ in 1..step.port.members().world() {
            let hop = self.parts[part.at].hop;
            let Some((_, Hop::Send { to, tag })) = path.hop(hop)? else { break };
            let (bytes, wire) = (self.bytes(step, part, &path, hop)?, self.wire);
            let mut out = step.port.lend_for(bytes);
            out.resize(bytes, 0);
            let mut rest = &mut out[..];
            for (rounds, unit) in self.active(part) {
                rest = rounds.with_payload(step.plan, unit, wire, |data| Ok(path.write(hop, &data, rest)))?;
            }
            step.port.queue(to, tag, Body::Own(out), Care::Must);
            self.parts[part.at].hop += 1;
        }
        Ok(matches!(path.hop(self.parts[part.at].hop)?, Some((Turn::SendShare, _))))
    }

    /// Handles the message of a hop, which was taken.
    fn land(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        path: &collective::Owners,
        hop: Hop,
    ) -> Result<(), TransportError> {
        let (at, wire) = (self.parts[part.at].hop, self.wire);
        let (expected, actual) = (self.bytes(step, part, path, at)?, self.incoming.len());
        if let Hop::Take { from, tag } = hop
            && expected != actual
        {
            return Err(TransportError::WrongLength { from, tag, expected, actual });
        }
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        for (rounds, unit) in self.active(part) {
            rounds.with_payload(step.plan, unit, wire, |mut data| {
                let (own, behind) = rest.split_at(path.bytes(at, &data));
                rest = behind;
                path.land(at, &mut data, own);
                Ok(())
            })?;
        }
        self.incoming = incoming;
        self.parts[part.at].hop += 1;
        Ok(())
    }

    /// Turns reduced payloads into the next round, or into means.
    fn advance(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, TransportError> {
        let wire = self.wire;
        let advance =
            |(rounds, unit): (&mut UnitRounds, &Unit)| rounds.advance(step, unit, wire, mean, memory);
        self.frame_bytes += self.active(part).map(advance).sum::<usize>();
        let round = self.parts[part.at].round;
        self.parts[part.at].begin_round(round + 1);
        self.send_hops(step, part)?;
        Ok(if self.active(part).next().is_some() { Polled::More } else { Polled::Complete })
    }

    /// Takes the next head. After the last one, the rounds of the units begin that some rank has.
    fn take_head(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<Polled, ExchangeError> {
        let (members, me) = (step.members(), step.rank());
        let PartState { heads, next, .. } = &mut self.parts[part.at];
        heads.resize_with(heads.len().max(members.len()), Vec::new);
        if let Some(&rank) = members.as_slice().get(*next) {
            if rank != me {
                if !step.port.take_named(
                    (rank, head_tag(step.tag, part.at)),
                    &mut heads[*next],
                    step.layout,
                )? {
                    return Ok(Polled::Waiting);
                }
                let head = Head::read(&heads[*next], part).filter(|head| head.rest.is_empty());
                head.ok_or(ExchangeError::WrongUnits { rank })?;
            }
            *next += 1;
        }
        if *next < members.len() {
            return Ok(Polled::Busy(Work::Exchange));
        }
        self.unite(step, part, mean);
        if self.send_cut(step, part)? {
            return Ok(Polled::Busy(Work::Exchange));
        }
        Ok(if self.active(part).next().is_some() { Polled::More } else { Polled::Complete })
    }

    /// Leaves out the units that no rank has a gradient of.
    fn unite(&mut self, step: &Step<'_>, part: Part<'_>, mean: &mut dyn Means) {
        let (PartState { own, heads, .. }, members) = (&self.parts[part.at], step.members());
        for (at, unit) in part.units.iter().enumerate() {
            let mut all = members.iter().zip(heads);
            let is_somewhere = all.any(|(rank, head)| {
                let head = if rank == step.rank() { own } else { head };
                Head::read(head, part).is_some_and(|head| head.is_present(at))
            });
            if !is_somewhere {
                self.units[part.first + at].cancel();
                mean.of(unit.id, unit.range()).fill(0.0);
            }
        }
    }

    /// Begins the units, with the gradient of each that this rank has, by its number among those. Only reads
    /// the memory: it changes when the means are complete.
    fn begin_units<'g>(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        gradient: impl Fn(usize, &Unit) -> Grad<'g>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        require_workers(step, part.units)?;
        let state = &mut self.parts[part.at];
        state.begin_round(0);
        state.next = 0;
        if part.says.is_some() {
            head::write(part, &mut state.own);
            state.own.push(TAIL);
        }
        let mut own = part.own.iter().enumerate().peekable();
        for (rounds, unit) in self.units[part.first..].iter_mut().zip(part.units) {
            let held = match own.next_if(|(_, own)| own.id == unit.id) {
                Some((at, _)) => rounds.begin(step, unit, gradient(at, unit), memory.as_deref())?,
                None => {
                    self.zeros.resize(self.zeros.len().max(unit.len), 0.0);
                    let zeros = Grad::F32(&self.zeros[..unit.len]);
                    rounds.begin(step, unit, zeros, memory.as_deref()).map(|_| 0)?
                }
            };
            self.held += held;
        }
        Ok(())
    }
}

impl InParts for Owners {
    const HAS_NOTES: bool = true;

    fn free(&mut self) {
        *self = Self::new(self.wire, self.units.len());
    }

    fn set_parts(&mut self, count: usize) {
        self.parts.resize_with(self.parts.len().max(count), PartState::default);
    }

    fn begin_step(&mut self) {
        (self.frame_bytes, self.held) = (0, 0);
    }

    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grad.len(), step.layout.len(), "gradient and layout differ in length");
        let is_selected = step.selected.is_some();
        let own = |_, unit: &Unit| if is_selected { grad } else { grad.slice(unit.start, unit.len) };
        self.begin_units(step, part, own, memory)
    }

    fn encode_apart(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grads.len(), part.own.len(), "there is not one gradient for each unit");
        self.begin_units(step, part, |at, _| grads[at], memory)
    }

    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        if part.says.is_none() {
            return Ok(self.send_hops(step, part)?);
        }
        let tag = head_tag(step.tag, part.at);
        step.send_frame_to_all(tag, part.at, 0);
        step.expect_from_all(tag);
        // Other ranks may be at another part by then, so payloads are taken whenever they come.
        let (members, tag) = (step.members(), step.tag.unit(part.units[0].id));
        step.others_in(&members).for_each(|(_, from)| step.port.ask(Wanted::chunks(from, tag, u32::MAX)));
        Ok(())
    }

    /// Payloads change while they travel, so all other messages have buffers of their own.
    fn frame(&self, part: usize, _: usize) -> &[u8] {
        &self.parts[part].own
    }

    fn void_tag(&self, step: &Step<'_>, _: usize) -> Tag {
        note_tag(step.tag)
    }

    fn head_tag(&self, step: &Step<'_>, at: usize) -> Option<Tag> {
        Some(head_tag(step.tag, at))
    }

    fn headed(&self, part: usize, position: Option<usize>) -> &[u8] {
        let state = &self.parts[part];
        position.map_or(&state.own, |position| &state.heads[position])
    }

    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        if part.says.is_some() && self.parts[part.at].next < step.members().len() {
            return self.take_head(step, part, mean);
        }
        let path = self.path(step, part)?;
        let (turn, hop) = match path.hop(self.parts[part.at].hop)? {
            None => return Ok(self.advance(step, part, mean, memory)?),
            // The driver posts what was sent before the next cut is written, so its bytes are still at hand.
            Some((Turn::SendShare, _)) => {
                let has_more = self.send_cut(step, part)?;
                return Ok(if has_more { Polled::Busy(Work::Exchange) } else { Polled::More });
            }
            Some(taken) => taken,
        };
        if let Hop::Take { from, tag } = hop
            && !step.port.take_named((from, tag), &mut self.incoming, step.layout)?
        {
            return Ok(Polled::Waiting);
        }
        self.land(step, part, &path, hop)?;
        self.send_cut(step, part)?;
        let is_summed =
            turn == Turn::TakeShare && matches!(path.hop(self.parts[part.at].hop)?, Some((Turn::TakeSum, _)));
        Ok(if is_summed { Polled::More } else { Polled::Busy(Work::Exchange) })
    }

    fn conclude(
        &mut self,
        _: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError> {
        require_finite(part, mean)
    }

    /// Every unit keeps all of residual + gradient, also those whose mean was complete.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let units = self.units[part.first..].iter_mut().zip(part.units);
        units.for_each(|(rounds, unit)| rounds.abandon(step, unit, memory));
        Ok(())
    }

    fn drain(&mut self, step: &mut Step<'_>) {
        drain_units(step);
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

/// The tag of the heads of a part.
fn head_tag(step: Tag, at: usize) -> Tag {
    step.unit(u32::MAX - 1).chunk(at as u32)
}
