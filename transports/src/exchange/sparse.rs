//! Sparse all-reduce: every coordinate has an owner. An owner sums the values that all ranks send for its
//! coordinates, and sends the sums to all ranks.

use std::ops::Range;

use gradwire::arithmetic::{divide, first_non_finite};
use gradwire::codecs::{IndexChoice, Threshold, ValueChoice};
use gradwire::{DecodeError, Encoder, Grad, Memory, StepInput, Unit};

use super::all_gather::encode;
use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::means::{Means, flat};
use super::part_route::{InParts, Polled};
use super::parts::Part;
use super::port::{Body, Care};
use super::report::Work;
use super::step::Step;
use super::version::TAIL;
use crate::tag::Tag;

/// Blocks that each owner has, and the least length of one.
const BLOCKS_EACH: usize = 16;
const LEAST_BLOCK: usize = 512;

#[derive(Debug)]
pub(super) struct SparseAllReduce {
    /// Codec of the messages: every value that is not zero, unchanged.
    lossless: Threshold,
    incoming: Incoming,
    /// The decoded values of this rank's own frames.
    values: Vec<f32>,
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
    /// The frames with these blocks; at this rank's own position, that with its sums.
    packed: Vec<Encoder>,
    /// Whether this rank has summed its own blocks and now waits for the sums of the others.
    is_summed: bool,
    /// The position of the member whose values, or sums, are added next.
    next: usize,
}

/// An owner's message about its blocks. Its length tells which it is: only a frame is at least as long as a
/// header. An index follows a byte of zero, with which neither a frame nor a failure begins.
#[derive(Debug, PartialEq)]
enum Sum<'b> {
    Frame(&'b [u8]),
    NonFinite(usize),
    /// The owner refused something that it received.
    Refused,
}

impl<'b> Sum<'b> {
    fn read(message: &'b [u8]) -> Self {
        match message {
            [] => Self::Refused,
            [0, index @ ..] if index.len() == 8 => {
                let index = index.try_into().map_or(u64::MAX, u64::from_le_bytes);
                Self::NonFinite(usize::try_from(index).unwrap_or(usize::MAX))
            }
            message => Self::Frame(message),
        }
    }
}

impl SparseAllReduce {
    pub(super) fn new() -> Self {
        let lossless = Threshold::new(0.0, IndexChoice::Auto, ValueChoice::F32).expect("0 is a threshold");
        let (incoming, values, buffer, parts) = Default::default();
        Self { lossless, incoming, values, buffer, parts, sent_bytes: 0, held: 0 }
    }

    /// Decodes this rank's own frame, and assigns the blocks to owners.
    fn spread_own(&mut self, step: &mut Step<'_>, part: Part<'_>, world: usize) -> Result<(), ExchangeError> {
        let PartState { own, owned, packed, is_summed, next } = &mut self.parts[part.at];
        (*is_summed, *next) = (false, 0);
        owned.resize_with(world, Vec::new);
        packed.resize_with(world, Encoder::new);
        deal(range_of(part.units), owned);
        self.values.resize(step.layout.len(), 0.0);
        self.values[range_of(part.units)].fill(0.0);
        let expected = Requirements::own(step, part.units);
        let layout = step.layout.as_ref();
        let message = self.incoming.parse(step.rank(), own.frame(), &layout, &expected)?;
        message.add_scaled_to(1.0, &mut self.values);
        self.held += message.held();
        Ok(())
    }

    /// Makes the frame of one owner's blocks of a part, with this rank's values or with `sums`. A block is
    /// dense if its values that are not zero, with a bitmap of their positions, would be no shorter.
    fn pack(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        owner: usize,
        sums: Option<&[f32]>,
    ) -> Result<(), ExchangeError> {
        let values = sums.unwrap_or(&self.values);
        let PartState { owned, packed, .. } = &mut self.parts[at];
        let (units, packer) = (&mut owned[owner], &mut packed[owner]);
        let (key, layout) = (step.key, step.layout.as_ref());
        for unit in units.iter_mut() {
            let zeros = values[unit.range()].iter().filter(|&&value| value == 0.0).count();
            unit.dense = 32 * zeros <= unit.len;
        }
        let input = StepInput { key, layout: &layout, units, grad: Grad::F32(values) };
        let frame = packer.encode(&self.lossless, &input, None)?;
        self.sent_bytes += frame.len();
        packer.append(TAIL);
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
            sums[range_of(part.units)].fill(0.0);
        }
        let units = &self.parts[part.at].owned[me];
        if position == me {
            units.iter().for_each(|unit| add(&self.values, unit, sums));
        } else {
            let expected = Requirements::holding(step, &self.lossless, units);
            let (rank, layout) = (members.as_slice()[position], step.layout.as_ref());
            self.incoming.add(rank, &self.buffer, &layout, &expected, sums)?;
        }
        self.parts[part.at].next += 1;
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
        let (tag, until) = (sums_tag(step, part), Care::Until(step.port.deadline));
        let added = self.add_next(step, part, sums);
        let is_last = self.parts[part.at].next == step.members().len();
        let added =
            if is_last { added.and_then(|_| self.check_own(step, part, sums).map(|()| true)) } else { added };
        match added {
            Ok(false) => return Ok(Polled::Waiting),
            Ok(true) if !is_last => return Ok(Polled::Busy(Work::Decode)),
            Ok(true) => {}
            Err(error) => {
                match error {
                    ExchangeError::NonFiniteMean { index, .. } => {
                        let mut message = [0; 9];
                        message[1..].copy_from_slice(&(index as u64).to_le_bytes());
                        step.send_to_all(tag, &message, until);
                    }
                    // The void frame or the failure went to all other ranks too, and so did a note.
                    ExchangeError::Void { .. } | ExchangeError::Failed { .. } => {}
                    _ if step.port.note.is_some() => {}
                    _ => step.send_to_all(tag, &[], until),
                }
                return Err(error);
            }
        }
        if step.members().len() > 1 {
            let me = step.place_in(&step.members());
            self.pack(step, part.at, me, Some(sums))?;
            step.send_frame_to_all(tag, part.at, me);
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
        let frame = match Sum::read(&self.buffer) {
            Sum::Frame(frame) => frame,
            Sum::NonFinite(index) => return Err(ExchangeError::NonFiniteMean { index, rank: None }),
            Sum::Refused => return Err(ExchangeError::NoSum { rank }),
        };
        let expected = Requirements::holding(step, &self.lossless, &owned[*next]);
        self.incoming.add(rank, frame, &step.layout.as_ref(), &expected, sums)?;
        *next += 1;
        Ok(Polled::Busy(Work::Decode))
    }
}

impl InParts for SparseAllReduce {
    fn set_parts(&mut self, count: usize) {
        self.parts.resize_with(count, PartState::default);
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
        encode(&mut self.parts[part.at].own, step, None, part.units, grad, memory)
    }

    /// Sends every other owner its blocks of the decoded own frame.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError> {
        let members = step.members();
        self.spread_own(step, part, members.len())?;
        let tag = parts_tag(step, part.at);
        for (place, owner) in step.others_in(&members) {
            self.pack(step, part.at, place, None)?;
            step.port.queue(owner, tag, Body::Frame { part: part.at, place }, Care::Must);
        }
        step.expect_from_all(tag);
        Ok(())
    }

    fn frame(&self, part: usize, place: usize) -> &[u8] {
        self.parts[part].packed[place].message()
    }

    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag {
        parts_tag(step, at)
    }

    /// First this rank's own blocks, then those of the others.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        _: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let mean = flat(mean);
        if self.parts[part.at].is_summed {
            self.take_sums(step, part, mean)
        } else {
            self.sum_own(step, part, mean)
        }
    }

    /// Owners have checked that sums are finite.
    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError> {
        let broken = divide(&mut flat(mean)[range_of(part.units)], step.members().len());
        debug_assert_eq!(broken, None);
        Ok(())
    }

    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        self.incoming.give_back(self.parts[part.at].own.frame(), part.units, step, memory)
    }

    fn frame_bytes(&self) -> usize {
        self.sent_bytes
    }

    fn held(&self) -> usize {
        self.held
    }
}

/// The tag of values that owners receive, for a part.
fn parts_tag(step: &Step<'_>, at: usize) -> Tag {
    step.tag.chunk(2 * at as u32)
}

/// The tag of sums that owners send, for a part.
fn sums_tag(step: &Step<'_>, part: Part<'_>) -> Tag {
    step.tag.chunk(2 * part.at as u32 + 1)
}

/// The coordinates of neighbouring units.
fn range_of(units: &[Unit]) -> Range<usize> {
    let start = units.first().map_or(0, |unit| unit.start);
    start..units.last().map_or(start, |unit| unit.range().end)
}

/// sums += values, in one block.
fn add(values: &[f32], unit: &Unit, sums: &mut [f32]) {
    sums[unit.range()].iter_mut().zip(&values[unit.range()]).for_each(|(sum, value)| *sum += value);
}

/// Assigns blocks of equal length to the owners in turn, so that no owner gets a whole region with many
/// entries.
fn deal(range: Range<usize>, owned: &mut [Vec<Unit>]) {
    let (world, len) = (owned.len(), range.len());
    let block = len.div_ceil(BLOCKS_EACH * world).max(LEAST_BLOCK.min(len.div_ceil(world))).max(1);
    owned.iter_mut().for_each(Vec::clear);
    // Every owner has a block, because a message has at least one unit.
    for id in 0..len.div_ceil(block).max(world) {
        let start = (id * block).min(len);
        let (start, len) = (range.start + start, block.min(len - start));
        let unit = Unit { id: id as u32, start, len, dense: false };
        owned[id % world].push(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_coordinate_has_one_owner_and_owners_have_about_as_many() {
        for len in [0, 1, 2, 3, 100, 4096, 5000, 16_385, 1_000_003] {
            for world in 1..=17 {
                let mut owned = vec![Vec::new(); world];
                deal(7..7 + len, &mut owned);
                assert!(
                    owned.iter().all(|units| !units.is_empty() && units.is_sorted_by_key(|unit| unit.id))
                );
                let mut all: Vec<Unit> = owned.concat();
                all.sort_by_key(|unit| unit.id);
                let ends = all.iter().fold(7, |end, unit| {
                    assert_eq!(unit.start, end, "{len} over {world}");
                    unit.range().end
                });
                assert_eq!(ends, 7 + len);
                let share = |units: &Vec<Unit>| units.iter().map(|unit| unit.len).sum::<usize>();
                let block = all[0].len;
                let (most, least) =
                    (owned.iter().map(share).max().unwrap(), owned.iter().map(share).min().unwrap());
                assert!(most - least <= block, "{len} over {world}: {least} to {most}");
            }
        }
    }

    #[test]
    fn what_an_owner_says_is_told_by_its_length() {
        assert_eq!(Sum::read(&[]), Sum::Refused);
        assert_eq!(Sum::read(&[0, 7, 0, 0, 0, 0, 0, 0, 0]), Sum::NonFinite(7));
        assert_eq!(Sum::read(&[0; 24]), Sum::Frame(&[0; 24]));
        assert_eq!(Sum::read(&[0; 7]), Sum::Frame(&[0; 7]));
    }
}
