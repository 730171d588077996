//! Sparse all-reduce: coordinates are dealt to owners, who sum what all ranks send of them and tell everyone.

use gradwire::{
    Codec, Encoder, GatherCodec, Grad, IndexChoice, LayoutRef, Memory, Threshold, Unit, ValueChoice,
};

use super::all_gather::{encode, send_to_all};
use super::incoming::{Expected, Incoming, divide, first_non_finite, held};
use super::{Clock, ExchangeError, Report, Step, timed};
use crate::rank::RankSet;

/// The chunk of what an owner summed; parts on their way to owners have chunk 0.
const SUM_CHUNK: u32 = 1;
/// Blocks that each owner has, and the least length of one.
const BLOCKS_EACH: usize = 16;
const LEAST_BLOCK: usize = 512;

#[derive(Debug)]
pub(super) struct SparseAllReduce {
    /// This rank's own frame, which is never sent as it is.
    own: Encoder,
    /// What is sent: all that is not zero, as it is.
    lossless: Threshold,
    part: Encoder,
    incoming: Incoming,
    /// What the own frame decodes to.
    values: Vec<f32>,
    buffer: Vec<u8>,
    /// The blocks of every owner, by position in the membership.
    owned: Vec<Vec<Unit>>,
    sent_bytes: usize,
    /// Coordinates that the own frame sends.
    held: usize,
}

/// What an owner has to say of its blocks, told by the length: none is as long as a header.
#[derive(Debug, PartialEq)]
enum Sum<'b> {
    Frame(&'b [u8]),
    NonFinite(usize),
    /// Something that it was sent was refused.
    Refused,
}

impl<'b> Sum<'b> {
    fn read(message: &'b [u8]) -> Self {
        match message {
            [] => Self::Refused,
            message => match message.try_into().map(u64::from_le_bytes) {
                Ok(index) => Self::NonFinite(usize::try_from(index).unwrap_or(usize::MAX)),
                Err(_) => Self::Frame(message),
            },
        }
    }
}

/// How the values of a frame that holds few coordinates are coded; `None` for codecs that send all.
pub(super) fn sparse_values(codec: &Codec) -> Option<ValueChoice> {
    match codec {
        Codec::Gather(GatherCodec::TopK(topk)) => Some(topk.values()),
        Codec::Gather(GatherCodec::Threshold(threshold)) => Some(threshold.values()),
        Codec::Gather(GatherCodec::Dgc(dgc)) => Some(dgc.values()),
        Codec::Gather(GatherCodec::Sidco(sidco)) => Some(sidco.values()),
        _ => None,
    }
}

impl SparseAllReduce {
    /// `None` for a codec whose frames are dense.
    pub(super) fn new(codec: &Codec) -> Option<Self> {
        sparse_values(codec)?;
        let lossless = Threshold::new(0.0, IndexChoice::Auto, ValueChoice::F32)?;
        Some(Self {
            own: Encoder::new(),
            lossless,
            part: Encoder::new(),
            incoming: Incoming::default(),
            values: Vec::new(),
            buffer: Vec::new(),
            owned: Vec::new(),
            sent_bytes: 0,
            held: 0,
        })
    }

    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        encode(&mut self.own, step, grad, memory)?;
        let sent = self.send_parts(step);
        if sent.is_err() {
            self.give_back(step, memory);
        }
        sent
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let result = self.reduce(step, mean);
        if result.is_err() {
            self.give_back(step, memory);
        }
        result
    }

    fn give_back(&mut self, step: &Step<'_>, memory: &mut Option<&mut Memory<'_>>) {
        self.incoming.give_back(self.own.frame(), &step.layout.as_ref(), memory);
    }

    /// Decodes the own frame and sends every owner but this one its blocks of it.
    fn send_parts(&mut self, step: &mut Step<'_>) -> Result<(), ExchangeError> {
        let members = step.transport.membership().ranks;
        let Clock { mut encode, mut exchange, decode } = step.clock;
        let layout = step.layout.as_ref();
        let me = members.position(step.transport.rank()).unwrap_or(0);
        self.sent_bytes = 0;
        timed(&mut encode, || self.spread_own(step, &layout, members.len()))?;
        for position in (me + 1..members.len()).chain(0..me) {
            let frame = timed(&mut encode, || self.pack(step, &layout, position, None))?;
            let to = members.as_slice()[position];
            timed(&mut exchange, || step.transport.send(to, step.tag, frame, step.deadline))?;
        }
        step.clock = Clock { encode, exchange, decode };
        Ok(())
    }

    /// Writes what the own frame decodes to, and deals the blocks.
    fn spread_own(
        &mut self,
        step: &Step<'_>,
        layout: &LayoutRef<'_>,
        world: usize,
    ) -> Result<(), ExchangeError> {
        self.owned.resize_with(world, Vec::new);
        deal(layout.len(), &mut self.owned);
        self.values.resize(layout.len(), 0.0);
        self.values.fill(0.0);
        let expected = Expected::of(step, &step.spec.codec);
        let frame = self.incoming.parse(step.transport.rank(), self.own.frame(), layout, &expected)?;
        frame.add_scaled_to(1.0, &mut self.values);
        self.held = held(&frame);
        Ok(())
    }

    /// The frame of one owner's blocks: of this rank's values, or of these sums. A block is dense where its coordinates and
    /// a bitmap of them would be no shorter.
    fn pack(
        &mut self,
        step: &Step<'_>,
        layout: &LayoutRef<'_>,
        owner: usize,
        sums: Option<&[f32]>,
    ) -> Result<&[u8], ExchangeError> {
        let values = sums.unwrap_or(&self.values);
        let units = &mut self.owned[owner];
        for unit in units.iter_mut() {
            let zeros = values[unit.range()].iter().filter(|&&value| value == 0.0).count();
            unit.dense = 32 * zeros <= unit.len;
        }
        let grad = Grad::F32(values);
        let frame = self.part.encode(&self.lossless, step.key, layout, units, grad, None)?;
        self.sent_bytes += frame.len();
        Ok(frame)
    }

    /// Sums the own blocks, sends the sums to everyone, receives those of the others, and divides.
    fn reduce(&mut self, step: &mut Step<'_>, mean: &mut [f32]) -> Result<Report, ExchangeError> {
        let members = step.transport.membership().ranks;
        let mut clock = step.clock;
        mean.fill(0.0);
        let summed = self.sum_own(step, &members, mean, &mut clock);
        let told = self.tell(step, &members, mean, summed.as_ref().err(), &mut clock);
        summed.and(told)?;
        let me = step.transport.rank();
        for (position, rank) in members.iter().enumerate().filter(|(_, rank)| *rank != me) {
            let (tag, buffer) = (step.tag.chunk(SUM_CHUNK), &mut self.buffer);
            timed(&mut clock.exchange, || step.transport.recv(rank, tag, buffer, step.deadline))?;
            let frame = match Sum::read(&self.buffer) {
                Sum::Frame(frame) => frame,
                Sum::NonFinite(index) => return Err(ExchangeError::NonFiniteMean { index, rank: None }),
                Sum::Refused => return Err(ExchangeError::NoSum { rank }),
            };
            let expected = Expected::holding(step, &self.lossless, &self.owned[position]);
            let layout = step.layout.as_ref();
            timed(&mut clock.decode, || self.incoming.add(rank, frame, &layout, &expected, mean))?;
        }
        timed(&mut clock.decode, || divide(mean, members.len()));
        let Clock { encode, exchange, decode } = clock;
        let (contributors, frame_bytes, held) = (members, self.sent_bytes, self.held);
        let (refused, capped, packets) = Default::default();
        Ok(Report { contributors, refused, capped, frame_bytes, packets, held, encode, exchange, decode })
    }

    /// Adds the parts of all ranks in rank order, this rank's own among them.
    fn sum_own(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        sums: &mut [f32],
        clock: &mut Clock,
    ) -> Result<(), ExchangeError> {
        let me = members.position(step.transport.rank()).unwrap_or(0);
        let units = &self.owned[me];
        let expected = Expected::holding(step, &self.lossless, units);
        for (position, rank) in members.iter().enumerate() {
            if position == me {
                timed(&mut clock.decode, || units.iter().for_each(|unit| add(&self.values, unit, sums)));
                continue;
            }
            let buffer = &mut self.buffer;
            timed(&mut clock.exchange, || step.transport.recv(rank, step.tag, buffer, step.deadline))?;
            let layout = step.layout.as_ref();
            timed(&mut clock.decode, || self.incoming.add(rank, buffer, &layout, &expected, sums))?;
        }
        match timed(&mut clock.decode, || first_non_finite(sums)) {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => Ok(()),
        }
    }

    /// Sends the own sums to everyone, or why there are none: nobody waits for a sum that does not come.
    fn tell(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        sums: &[f32],
        failure: Option<&ExchangeError>,
        clock: &mut Clock,
    ) -> Result<(), ExchangeError> {
        let me = members.position(step.transport.rank()).unwrap_or(0);
        let tag = step.tag.chunk(SUM_CHUNK);
        match failure {
            None if members.len() == 1 => Ok(()),
            None => {
                let layout = step.layout.as_ref();
                let frame = timed(&mut clock.encode, || self.pack(step, &layout, me, Some(sums)))?;
                Ok(timed(&mut clock.exchange, || send_to_all(step, tag, frame))?)
            }
            Some(ExchangeError::NonFiniteMean { index, .. }) => {
                Ok(send_to_all(step, tag, &(*index as u64).to_le_bytes())?)
            }
            Some(_) => Ok(send_to_all(step, tag, &[])?),
        }
    }
}

/// sums += values, in one block.
fn add(values: &[f32], unit: &Unit, sums: &mut [f32]) {
    sums[unit.range()].iter_mut().zip(&values[unit.range()]).for_each(|(sum, value)| *sum += value);
}

/// Deals blocks of equal length in turn, so that a loud part of the gradient does not fall to one owner.
fn deal(len: usize, owned: &mut [Vec<Unit>]) {
    let world = owned.len();
    let block = len.div_ceil(BLOCKS_EACH * world).max(LEAST_BLOCK.min(len.div_ceil(world))).max(1);
    owned.iter_mut().for_each(Vec::clear);
    // Every owner has a block: a message has a unit at the least.
    for id in 0..len.div_ceil(block).max(world) {
        let start = (id * block).min(len);
        let unit = Unit { id: id as u32, start, len: block.min(len - start), dense: false };
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
                deal(len, &mut owned);
                assert!(
                    owned.iter().all(|units| !units.is_empty() && units.is_sorted_by_key(|unit| unit.id))
                );
                let mut all: Vec<Unit> = owned.concat();
                all.sort_by_key(|unit| unit.id);
                let ends = all.iter().fold(0, |end, unit| {
                    assert_eq!(unit.start, end, "{len} over {world}");
                    unit.range().end
                });
                assert_eq!(ends, len);
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
        assert_eq!(Sum::read(&7u64.to_le_bytes()), Sum::NonFinite(7));
        assert_eq!(Sum::read(&[0; 24]), Sum::Frame(&[0; 24]));
        assert_eq!(Sum::read(&[0; 7]), Sum::Frame(&[0; 7]));
    }
}
