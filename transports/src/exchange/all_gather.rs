//! Every frame goes to every rank, and every rank adds all of them in rank order.

use gradwire::{Encoder, Grad, Memory};

use super::incoming::{Expected, Incoming, divide, first_non_finite, held};
use super::{Clock, ExchangeError, Report, Step, timed};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::Tag;

#[derive(Debug, Default)]
pub(super) struct AllGather {
    encoder: Encoder,
    incoming: Incoming,
    /// Frames of the others, by position in the membership.
    frames: Vec<Vec<u8>>,
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

impl AllGather {
    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        encode(&mut self.encoder, step, grad, memory)?;
        let mut clock = step.clock;
        let sent = timed(&mut clock.exchange, || send_to_all(step, step.tag, self.encoder.frame()));
        step.clock = clock;
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
        let result = self.receive(step, mean);
        if result.is_err() {
            self.incoming.give_back(self.encoder.frame(), &step.layout.as_ref(), memory);
        }
        result
    }

    /// Receives, checks and adds one frame after the other, then divides.
    fn receive(&mut self, step: &mut Step<'_>, mean: &mut [f32]) -> Result<Report, ExchangeError> {
        let members = step.transport.membership().ranks;
        let expected = Expected::of(step, &step.spec.codec);
        self.frames.resize_with(self.frames.len().max(members.len()), Vec::new);
        let Clock { mut exchange, mut decode, encode } = step.clock;
        mean.fill(0.0);
        let mut own_held = 0;
        for (position, rank) in members.iter().enumerate() {
            let is_own = rank == step.transport.rank();
            if !is_own {
                let into = &mut self.frames[position];
                timed(&mut exchange, || step.transport.recv(rank, step.tag, into, step.deadline))?;
            }
            let bytes = if is_own { self.encoder.frame() } else { &self.frames[position] };
            timed(&mut decode, || {
                let frame = self.incoming.parse(rank, bytes, &step.layout.as_ref(), &expected)?;
                frame.add_scaled_to(1.0, mean);
                own_held = if is_own { held(&frame) } else { own_held };
                Ok::<(), ExchangeError>(())
            })?;
        }
        timed(&mut decode, || divide(mean, members.len()));
        if let Some(index) = timed(&mut decode, || first_non_finite(mean)) {
            let rank = self.culprit(step, &members, &expected, index, mean);
            return Err(ExchangeError::NonFiniteMean { index, rank });
        }
        let frame_bytes = self.encoder.frame().len();
        let (contributors, held) = (members, own_held);
        let (refused, packets) = Default::default();
        Ok(Report { contributors, refused, frame_bytes, packets, held, encode, exchange, decode })
    }

    /// The first rank with whose frame the sum at `index` is no longer finite. `sum` is overwritten.
    fn culprit(
        &mut self,
        step: &Step<'_>,
        members: &RankSet,
        expected: &Expected<'_>,
        index: usize,
        sum: &mut [f32],
    ) -> Option<Rank> {
        sum.fill(0.0);
        members.iter().enumerate().find_map(|(position, rank)| {
            let is_own = rank == step.transport.rank();
            let bytes = if is_own { self.encoder.frame() } else { &self.frames[position] };
            let frame = self.incoming.parse(rank, bytes, &step.layout.as_ref(), expected).ok()?;
            frame.add_scaled_to(1.0, sum);
            (!sum[index].is_finite()).then_some(rank)
        })
    }
}

/// Sends to every peer, beginning with the one after this rank, so that not all send to the same one first.
pub(super) fn send_to_all(step: &mut Step<'_>, tag: Tag, message: &[u8]) -> Result<(), TransportError> {
    let members = step.transport.membership().ranks;
    let me = members.position(step.transport.rank()).unwrap_or(0);
    let (before, from_me) = members.as_slice().split_at(me);
    for &rank in from_me.iter().skip(1).chain(before) {
        step.transport.send(rank, tag, message, step.deadline)?;
    }
    Ok(())
}
