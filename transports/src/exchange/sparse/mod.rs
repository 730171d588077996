//! Sparse all-reduce: every coordinate has an owner. An owner sums the values that all ranks send for its
//! coordinates, and sends the sums to all ranks.

mod blocks;

use gradwire::arithmetic::{divide, first_non_finite};
use gradwire::codecs::{IndexChoice, Threshold, ValueChoice};
use gradwire::{DecodeError, Encoder, Grad, Memory, StepInput, Unit};

use self::blocks::{Sum, deal};
use super::all_gather::encode;
use super::error::ExchangeError;
use super::head::{self, Head};
use super::incoming::{Incoming, Requirements};
use super::means::Means;
use super::part_route::{InParts, Polled};
use super::parts::Part;
use super::port::{Body, Care};
use super::report::Work;
use super::step::Step;
use super::version::TAIL;
use super::void::refusal;
use crate::tag::Tag;

/// In a step whose parts are added, the tags of sums: behind those of values, whose chunks count the parts.
const SUMS: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct SparseAllReduce {
    /// Codec of the messages: every value that is not zero, unchanged.
    lossless: Threshold,
    packer: Encoder,
    incoming: Incoming,
    /// The decoded values of this rank's own frames, in the order of the layout; and the sums, where means
    /// stand apart.
    values: Vec<f32>,
    sums: Vec<f32>,
    buffer: Vec<u8>,
    parts: Vec<PartState>,
    sent_bytes: usize,
    /// Coordinates that this rank's own frames send.
    held: usize,
}

/// A part of the step.
#[derive(Debug, Default)]
struct PartState {
    /// This rank's own frame. It is not sent itself: its decoded values are.
    own: Encoder,
    /// The blocks of every owner, by position in the membership.
    owned: Vec<Vec<Unit>>,
    /// The messages about these blocks; at this rank's own position, that with its sums.
    packed: Vec<Vec<u8>>,
    /// Of an added part: the head of this rank, and by position those of the others.
    head: Vec<u8>,
    heads: Vec<Vec<u8>>,
    /// Whether this rank has summed its own blocks and now waits for the sums of the others.
    is_summed: bool,
    /// The position of the member whose values, or sums, are added next.
    next: usize,
    /// A coordinate whose sum is not finite, if some owner has one, where that fails no step.
    broken: Option<usize>,
}

impl SparseAllReduce {
    pub(super) fn new() -> Self {
        let lossless = Threshold::new(0.0, IndexChoice::Auto, ValueChoice::F32).expect("0 is a threshold");
        let (packer, incoming, values, sums, buffer, parts) = Default::default();
        Self { lossless, packer, incoming, values, sums, buffer, parts, sent_bytes: 0, held: 0 }
    }

    /// Decodes this rank's own frame, and assigns the blocks to owners.
    fn spread_own(&mut self, step: &mut Step<'_>, part: Part<'_>, world: usize) -> Result<(), ExchangeError> {
        let PartState { own, owned, packed, heads, is_summed, next, broken, .. } = &mut self.parts[part.at];
        (*is_summed, *next, *broken) = (false, 0, None);
        owned.resize_with(world, Vec::new);
        packed.resize_with(world, Vec::new);
        heads.resize_with(world, Vec::new);
        deal(part.units, owned);
        self.values.resize(step.layout.len(), 0.0);
        part.units.iter().for_each(|unit| self.values[unit.range()].fill(0.0));
        if !part.own.is_empty() {
            let expected = Requirements::own(step, part.own);
            let message = self.incoming.parse(step.rank(), own.frame(), &step.layout.as_ref(), &expected)?;
            message.add_scaled_to(1.0, &mut self.values);
            self.held += message.held();
        }
        Ok(())
    }

    /// Makes the message about one owner's blocks of a part, with this rank's values or with `sums`. A block
    /// is dense if its values that are not zero, with a bitmap of their positions, would be no shorter.
    fn pack(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        owner: usize,
        sums: Option<&[f32]>,
    ) -> Result<(), ExchangeError> {
        let values = sums.unwrap_or(&self.values);
        let PartState { owned, packed, head, .. } = &mut self.parts[part.at];
        let (units, out) = (&mut owned[owner], &mut packed[owner]);
        let (key, layout) = (step.key, step.layout.as_ref());
        for unit in units.iter_mut() {
            let zeros = values[unit.range()].iter().filter(|&&value| value == 0.0).count();
            unit.dense = 32 * zeros <= unit.len;
        }
        let input = StepInput { key, layout: &layout, units, grad: Grad::F32(values) };
        let frame = self.packer.encode(&self.lossless, &input, None)?;
        self.sent_bytes += frame.len();
        out.clear();
        if sums.is_none() && part.says.is_some() {
            out.extend_from_slice(head);
        }
        out.extend_from_slice(frame);
        out.push(TAIL);
        Ok(())
    }

    /// Adds the values of the next rank in this rank's own blocks; its own values are here. Returns whether
    /// there was one to add.
    fn add_next(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        sums: &mut [f32],
    ) -> Result<bool, ExchangeError> {
        let members = step.members();
        let me = step.place_in(&members);
        let position = self.parts[part.at].next;
        if position != me && !step.take(&mut self.buffer)? {
            return Ok(false);
        }
        if position == 0 {
            part.units.iter().for_each(|unit| sums[unit.range()].fill(0.0));
        }
        let PartState { owned, heads, next, .. } = &mut self.parts[part.at];
        if position == me {
            owned[me].iter().for_each(|unit| add(&self.values, unit, sums));
        } else {
            let (rank, layout) = (members.as_slice()[position], step.layout.as_ref());
            let mut frame = &self.buffer[..];
            if part.says.is_some() {
                if let Some(refusal) = refusal(rank, frame, &layout, step.key.step) {
                    return Err(refusal);
                }
                let head = Head::read(frame, part).ok_or(ExchangeError::WrongUnits { rank })?;
                let head_bytes = frame.len() - head.rest.len();
                heads[position].clear();
                heads[position].extend_from_slice(&frame[..head_bytes]);
                frame = head.rest;
            }
            let expected = Requirements::holding(step, &self.lossless, &owned[me]);
            self.incoming.add(rank, frame, &layout, &expected, sums)?;
        }
        *next += 1;
        Ok(true)
    }

    /// Checks this rank's sums.
    fn check_own(&self, step: &Step<'_>, part: Part<'_>, sums: &[f32]) -> Result<(), ExchangeError> {
        let me = step.place_in(&step.members());
        let non_finite = |unit: &Unit| first_non_finite(&sums[unit.range()]).map(|at| unit.start + at);
        match self.parts[part.at].owned[me].iter().find_map(non_finite) {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => Ok(()),
        }
    }

    /// Adds the values of the next rank, and sends the sums to all others once they are complete. If there
    /// are none, sends the reason, so that no rank waits for sums that never come.
    fn sum_own(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        sums: &mut [f32],
    ) -> Result<Polled, ExchangeError> {
        let (tag, until) = (sums_tag(step, part.at), Care::Until(step.port.deadline));
        let added = self.add_next(step, part, sums);
        let is_last = self.parts[part.at].next == step.members().len();
        let added =
            if is_last { added.and_then(|_| self.check_own(step, part, sums).map(|()| true)) } else { added };
        match added {
            Ok(false) => return Ok(Polled::Waiting),
            Ok(true) if !is_last => return Ok(Polled::Busy(Work::Decode)),
            Ok(true) => {
                if step.members().len() > 1 {
                    let me = step.place_in(&step.members());
                    self.pack(step, part, me, Some(sums))?;
                    step.send_frame_to_all(tag, part.at, me);
                }
            }
            Err(ExchangeError::NonFiniteMean { index, .. }) if step.port.is_open && step.port.takes_any => {
                // What all others must hear, too.
                step.send_to_all(tag, &Sum::non_finite(index), Care::Must);
                let me = step.place_in(&step.members());
                self.parts[part.at].spoil(me, index, sums);
            }
            Err(error) => {
                match error {
                    ExchangeError::NonFiniteMean { index, .. } => {
                        step.send_to_all(tag, &Sum::non_finite(index), until);
                    }
                    // The void frame or the failure went to all other ranks too, and so did a note.
                    ExchangeError::Void { .. } | ExchangeError::Failed { .. } => {}
                    _ if step.port.note.is_some() => {}
                    _ => step.send_to_all(tag, &[], until),
                }
                return Err(error);
            }
        }
        (self.parts[part.at].is_summed, self.parts[part.at].next) = (true, 0);
        step.expect_from_all(tag);
        Ok(Polled::More)
    }

    /// Takes the sums of the next owner.
    fn take_sums(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        sums: &mut [f32],
    ) -> Result<Polled, ExchangeError> {
        let (members, me) = (step.members(), step.rank());
        let PartState { owned, next, .. } = &mut self.parts[part.at];
        while members.as_slice().get(*next) == Some(&me) {
            *next += 1;
        }
        let Some(&rank) = members.as_slice().get(*next) else { return Ok(Polled::Complete) };
        if !step.take(&mut self.buffer)? {
            return Ok(Polled::Waiting);
        }
        match Sum::read(&self.buffer) {
            Sum::Frame(frame) => {
                let expected = Requirements::holding(step, &self.lossless, &owned[*next]);
                self.incoming.add(rank, frame, &step.layout.as_ref(), &expected, sums)?;
            }
            Sum::NonFinite(index) if step.port.is_open && step.port.takes_any => {
                let place = *next;
                self.parts[part.at].spoil(place, index, sums);
            }
            Sum::NonFinite(index) => return Err(ExchangeError::NonFiniteMean { index, rank: None }),
            Sum::Refused => return Err(ExchangeError::NoSum { rank }),
        }
        self.parts[part.at].next += 1;
        Ok(Polled::Busy(Work::Decode))
    }
}

impl PartState {
    /// An owner has no sums, and all ranks know it: the mean of its blocks is NaN.
    fn spoil(&mut self, owner: usize, index: usize, sums: &mut [f32]) {
        self.owned[owner].iter().for_each(|unit| sums[unit.range()].fill(f32::NAN));
        self.broken = Some(index);
    }
}

impl InParts for SparseAllReduce {
    fn free(&mut self) {
        *self = Self::new();
    }

    fn set_parts(&mut self, count: usize) {
        self.parts.resize_with(self.parts.len().max(count), PartState::default);
    }

    fn begin_step(&mut self) {
        (self.sent_bytes, self.held) = (0, 0);
    }

    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let PartState { own, head, .. } = &mut self.parts[part.at];
        head::write(part, head);
        if part.own.is_empty() { Ok(()) } else { encode(own, step, None, part.own, grad, memory) }
    }

    fn encode_beside(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), ExchangeError> {
        let codec = step.plan.only().ok_or(ExchangeError::NoParts { route: "several codecs" })?.codec();
        let PartState { own, head, .. } = &mut self.parts[part.at];
        head::write(part, head);
        if part.own.is_empty() {
            return Ok(());
        }
        let (key, layout) = (step.key, step.layout.as_ref());
        own.set_divisor(step.divisor);
        own.encode_beside(
            codec,
            &StepInput { key, layout: &layout, units: part.own, grad: grads },
            before,
            memory,
        )?;
        Ok(())
    }

    /// Sends every other owner its blocks of the decoded own frame.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        let members = step.members();
        self.spread_own(step, part, members.len())?;
        let tag = self.void_tag(step, part.at);
        for (place, owner) in step.others_in(&members) {
            self.pack(step, part, place, None)?;
            step.port.queue(owner, tag, Body::Frame { part: part.at, place }, Care::Must);
        }
        step.expect_from_all(tag);
        Ok(())
    }

    fn frame(&self, part: usize, place: usize) -> &[u8] {
        &self.parts[part].packed[place]
    }

    /// That of the values that owners receive.
    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag {
        step.tag.chunk(if step.port.is_open { at as u32 } else { 2 * at as u32 })
    }

    fn head_tag(&self, step: &Step<'_>, at: usize) -> Option<Tag> {
        Some(self.void_tag(step, at))
    }

    fn headed(&self, part: usize, position: Option<usize>) -> &[u8] {
        let PartState { head, heads, .. } = &self.parts[part];
        position.map_or(head, |position| &heads[position])
    }

    /// First this rank's own blocks, then those of the others.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        _: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let mut apart = std::mem::take(&mut self.sums);
        let sums = mean.flat().unwrap_or_else(|| {
            apart.resize(step.layout.len(), 0.0);
            &mut apart
        });
        let is_summed = self.parts[part.at].is_summed;
        let polled =
            if is_summed { self.take_sums(step, part, sums) } else { self.sum_own(step, part, sums) };
        self.sums = apart;
        polled
    }

    /// Owners have checked that sums are finite.
    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError> {
        let is_apart = mean.flat().is_none();
        for unit in part.units {
            let mean = mean.of(unit.id, unit.range());
            if is_apart {
                mean.copy_from_slice(&self.sums[unit.range()]);
            }
            let broken = divide(mean, step.members().len());
            debug_assert!(broken.is_none() || self.parts[part.at].broken.is_some());
        }
        match self.parts[part.at].broken {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => Ok(()),
        }
    }

    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        if part.own.is_empty() {
            return Ok(());
        }
        self.incoming.give_back(self.parts[part.at].own.frame(), part.own, step, memory)
    }

    fn frame_bytes(&self) -> usize {
        self.sent_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

/// The tag of sums that owners send, for a part.
fn sums_tag(step: &Step<'_>, at: usize) -> Tag {
    step.tag.chunk(if step.port.is_open { SUMS + at as u32 } else { 2 * at as u32 + 1 })
}

/// sums += values, in one block.
fn add(values: &[f32], unit: &Unit, sums: &mut [f32]) {
    sums[unit.range()].iter_mut().zip(&values[unit.range()]).for_each(|(sum, value)| *sum += value);
}
