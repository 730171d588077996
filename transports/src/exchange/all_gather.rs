//! Every frame goes to every rank, and every rank adds all of them in rank order.

use std::ops::Range;

use gradwire::{Encoder, Grad, Memory, Unit};

use super::incoming::{Expected, Incoming, divide, first_non_finite, held};
use super::{Clock, ExchangeError, Report, Step, timed};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

/// Frames of a step, one behind the other. While one travels the next is encoded, and the one before it decoded.
#[derive(Debug)]
pub(super) struct AllGather {
    /// Which units each frame holds.
    cuts: Vec<Range<usize>>,
    encoders: Vec<Encoder>,
    incoming: Incoming,
    /// Frames of the others, by position in the membership, for each cut.
    frames: Vec<Vec<Vec<u8>>>,
    /// What was decoded before the mean is asked for; empty with a single frame.
    sum: Vec<f32>,
    /// Peers without room for the frame that was sent last.
    waiting: Vec<Rank>,
    held: usize,
}

/// Encodes the step's gradient into the encoder's own buffer.
pub(super) fn encode(
    encoder: &mut Encoder,
    step: &mut Step<'_>,
    grad: Grad<'_>,
    memory: &mut Option<&mut Memory<'_>>,
) -> Result<(), ExchangeError> {
    let (key, layout, units, codec) = (step.key, step.layout.as_ref(), step.units, &step.spec.codec);
    timed(&mut step.clock.encode, || {
        encoder.encode(codec, key, &layout, units, grad, memory.as_deref_mut()).map(|_| ())
    })?;
    Ok(())
}

/// At most `count` ranges of neighbouring units, with about as many elements each: the middle of a unit says where it goes.
fn cut(units: &[Unit], count: usize) -> Vec<Range<usize>> {
    let total = units.iter().map(|unit| unit.len as u128).sum::<u128>().max(1);
    let mut passed = 0;
    let mut share = |unit: &Unit| {
        let middle = 2 * passed + unit.len as u128;
        passed += unit.len as u128;
        middle * count as u128 / (2 * total)
    };
    let shares: Vec<u128> = units.iter().map(&mut share).collect();
    let mut end = 0;
    let chunks = shares.chunk_by(|a, b| a == b);
    let next = |chunk: &[u128]| {
        let start = end;
        end += chunk.len();
        start..end
    };
    chunks.map(next).collect()
}

impl AllGather {
    /// With at most `messages` frames a step.
    pub(super) fn new(units: &[Unit], messages: usize) -> Self {
        let cuts = cut(units, messages);
        let encoders = cuts.iter().map(|_| Encoder::new()).collect();
        let frames = vec![Vec::new(); cuts.len()];
        let (incoming, sum, waiting) = Default::default();
        Self { cuts, encoders, incoming, frames, sum, waiting, held: 0 }
    }

    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        self.held = 0;
        if self.cuts.len() > 1 {
            self.sum.resize(step.layout.len(), 0.0);
            self.sum.fill(0.0);
        }
        for at in 0..self.cuts.len() {
            if let Err(error) = self.encode(step, at, grad, memory) {
                self.give_back(step, at, memory);
                return Err(error);
            }
            if let Err(error) = self.send(step, at) {
                // What is not encoded yet is not in the memory either.
                let encoded =
                    (at + 1..self.cuts.len()).take_while(|&at| self.encode(step, at, grad, memory).is_ok());
                let encoded = at + 1 + encoded.count();
                self.give_back(step, encoded, memory);
                return Err(error);
            }
        }
        Ok(())
    }

    fn encode(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let all = step.units;
        step.units = &all[self.cuts[at].clone()];
        let encoded = encode(&mut self.encoders[at], step, grad, memory);
        step.units = all;
        encoded
    }

    /// Sends a frame, then takes and adds those before it: a peer has two of this rank's under way, if there is room for
    /// the second, and none of them waits for another.
    fn send(&mut self, step: &mut Step<'_>, at: usize) -> Result<(), ExchangeError> {
        let mut clock = step.clock;
        let members = step.transport.membership().ranks;
        let tag = step.tag.chunk(at as u32);
        if at == 0 {
            timed(&mut clock.exchange, || send_to_all(step, tag, self.encoders[at].frame()))?;
        } else {
            timed(&mut clock.exchange, || self.send_and_receive(step, &members, at))?;
            let mut sum = std::mem::take(&mut self.sum);
            let added = timed(&mut clock.decode, || {
                (0..members.len())
                    .try_for_each(|position| self.add(step, &members, at - 1, position, &mut sum))
            });
            self.sum = sum;
            added?;
        }
        step.clock = clock;
        Ok(())
    }

    /// Sends a frame to those that have room for it, takes the frames before it, which makes room at everyone, and sends it
    /// to the others.
    fn send_and_receive(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        at: usize,
    ) -> Result<(), TransportError> {
        let (tag, frame) = (step.tag.chunk(at as u32), self.encoders[at].frame());
        self.waiting.clear();
        for to in others(step, members) {
            match step.transport.send(to, tag, frame, Deadline::now()) {
                Err(TransportError::NoRoom { .. }) => self.waiting.push(to),
                sent => sent?,
            }
        }
        (0..members.len()).try_for_each(|position| self.receive(step, members, at - 1, position))?;
        let frame = self.encoders[at].frame();
        self.waiting.iter().try_for_each(|&to| step.transport.send(to, tag, frame, step.deadline))
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let result = self.complete(step, mean);
        if result.is_err() {
            self.give_back(step, self.cuts.len(), memory);
        }
        result
    }

    /// Returns the first of this rank's frames to its memory.
    fn give_back(&mut self, step: &Step<'_>, encoded: usize, memory: &mut Option<&mut Memory<'_>>) {
        for encoder in &self.encoders[..encoded] {
            self.incoming.give_back(encoder.frame(), &step.layout.as_ref(), memory);
        }
    }

    /// Receives, checks and adds the last frame of one rank after the other, then divides.
    fn complete(&mut self, step: &mut Step<'_>, mean: &mut [f32]) -> Result<Report, ExchangeError> {
        let members = step.transport.membership().ranks;
        let Clock { mut exchange, mut decode, encode } = step.clock;
        let last = self.cuts.len() - 1;
        if last == 0 {
            mean.fill(0.0);
        } else {
            mean.copy_from_slice(&self.sum);
        }
        for position in 0..members.len() {
            timed(&mut exchange, || self.receive(step, &members, last, position))?;
            timed(&mut decode, || self.add(step, &members, last, position, mean))?;
        }
        timed(&mut decode, || divide(mean, members.len()));
        if let Some(index) = timed(&mut decode, || first_non_finite(mean)) {
            let rank = self.culprit(step, &members, index, mean);
            return Err(ExchangeError::NonFiniteMean { index, rank });
        }
        let frame_bytes = self.encoders.iter().map(|encoder| encoder.frame().len()).sum();
        let (contributors, held) = (members, self.held);
        let (refused, capped, packets) = Default::default();
        Ok(Report { contributors, refused, capped, frame_bytes, packets, held, encode, exchange, decode })
    }

    /// Takes a frame from its sender, unless that is this rank.
    fn receive(
        &mut self,
        step: &mut Step<'_>,
        members: &RankSet,
        at: usize,
        position: usize,
    ) -> Result<(), TransportError> {
        let from = members.as_slice()[position];
        if from == step.transport.rank() {
            return Ok(());
        }
        let frames = &mut self.frames[at];
        frames.resize_with(frames.len().max(members.len()), Vec::new);
        step.transport.recv(from, step.tag.chunk(at as u32), &mut frames[position], step.deadline)
    }

    /// Checks a frame and adds it.
    fn add(
        &mut self,
        step: &Step<'_>,
        members: &RankSet,
        at: usize,
        position: usize,
        sum: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let rank = members.as_slice()[position];
        let is_own = rank == step.transport.rank();
        let bytes = if is_own { self.encoders[at].frame() } else { &self.frames[at][position] };
        let expected = Expected::holding(step, &step.spec.codec, &step.units[self.cuts[at].clone()]);
        let frame = self.incoming.parse(rank, bytes, &step.layout.as_ref(), &expected)?;
        frame.add_scaled_to(1.0, sum);
        self.held += if is_own { held(&frame) } else { 0 };
        Ok(())
    }

    /// The first rank with whose frame the sum at `index` is no longer finite. `sum` is overwritten.
    fn culprit(&mut self, step: &Step<'_>, members: &RankSet, index: usize, sum: &mut [f32]) -> Option<Rank> {
        sum.fill(0.0);
        let holds =
            |cut: &Range<usize>| step.units[cut.clone()].iter().any(|unit| unit.range().contains(&index));
        let at = self.cuts.iter().position(holds)?;
        (0..members.len()).find_map(|position| {
            self.add(step, members, at, position, sum).ok()?;
            (!sum[index].is_finite()).then_some(members.as_slice()[position])
        })
    }
}

/// Every peer, beginning with the one after this rank, so that not all send to the same one first.
fn others<'m>(step: &Step<'_>, members: &'m RankSet) -> impl Iterator<Item = Rank> + use<'m> {
    let me = members.position(step.transport.rank()).unwrap_or(0);
    let (before, from_me) = members.as_slice().split_at(me);
    from_me.iter().skip(1).chain(before).copied()
}

/// Sends to every peer.
pub(super) fn send_to_all(step: &mut Step<'_>, tag: Tag, message: &[u8]) -> Result<(), TransportError> {
    let members = step.transport.membership().ranks;
    others(step, &members).try_for_each(|to| step.transport.send(to, tag, message, step.deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_cut_into_frames_of_about_the_same_length() {
        let units = |lens: &[usize]| -> Vec<Unit> {
            let start = |i: usize| lens[..i].iter().sum();
            let unit = |i: usize| Unit { id: i as u32, start: start(i), len: lens[i], dense: false };
            (0..lens.len()).map(unit).collect()
        };
        let ends = |lens: &[usize], count| -> Vec<usize> {
            let cuts = cut(&units(lens), count);
            assert!(cuts[0].start == 0 && cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            cuts.into_iter().map(|cut| cut.end).collect()
        };
        assert_eq!(ends(&[5, 5, 5, 5], 1), [4]);
        assert_eq!(ends(&[5, 5, 5, 5], 2), [2, 4]);
        assert_eq!(ends(&[5, 5, 5, 5], 9), [1, 2, 3, 4]);
        assert_eq!(ends(&[100, 1, 1, 1], 4), [1, 4]);
        assert_eq!(ends(&[1, 1, 100], 3), [2, 3]);
        assert_eq!(ends(&[0], 3), [1]);
        assert_eq!(ends(&[0, 0], 2), [2]);
    }
}
