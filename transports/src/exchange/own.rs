//! What this rank sends to a server in a step: one frame, packets, or the payloads of rounds. They are kept
//! until it is known whether they arrived.

use gradwire::packets::{PacketEncoder, PacketSize};
use gradwire::{DecodeError, Encoder, Grad, Memory, StepInput};

use super::all_gather::encode;
use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::served::Served;
use super::step::Step;

#[derive(Debug)]
pub(super) enum Own {
    Frame(Encoder),
    Packets { encoder: PacketEncoder, size: PacketSize },
    Payloads(Served),
}

impl Own {
    pub(super) fn new(packets: Option<PacketSize>) -> Self {
        match packets {
            None => Self::Frame(Encoder::new()),
            Some(size) => Self::Packets { encoder: PacketEncoder::new(), size },
        }
    }

    /// Encodes the step's gradient into buffers of its own.
    pub(super) fn encode(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let (encoder, size) = match self {
            Self::Frame(encoder) => return encode(encoder, step, None, step.units(), grad, memory),
            Self::Payloads(served) => return served.begin(step, grad, memory.as_deref()),
            Self::Packets { encoder, size } => (encoder, *size),
        };
        let (key, layout, units) = (step.key, step.layout.as_ref(), step.units());
        let input = StepInput { key, layout: &layout, units, grad };
        encoder.encode(step.codec(), &input, memory.as_deref_mut(), size)?;
        step.measure(self.parts(), units, grad, memory.as_deref());
        Ok(())
    }

    /// Bytes of the frame, or of all packets or payloads.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Frame(encoder) => encoder.frame().len(),
            Self::Packets { encoder, .. } => encoder.total_bytes(),
            Self::Payloads(served) => served.bytes(),
        }
    }

    /// The number of frames or packets.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Frame(_) => 1,
            Self::Packets { encoder, .. } => encoder.count(),
            Self::Payloads(_) => 0,
        }
    }

    /// The frame, or the packet with that number.
    pub(super) fn part(&self, at: usize) -> Option<&[u8]> {
        match self {
            Self::Frame(encoder) => Some(encoder.frame()),
            Self::Packets { encoder, .. } => encoder.packet(at),
            Self::Payloads(_) => None,
        }
    }

    /// The same as it travels.
    pub(super) fn message(&self, at: usize) -> Option<&[u8]> {
        match self {
            Self::Frame(encoder) => Some(encoder.message()),
            Self::Packets { encoder, .. } => encoder.packet(at),
            Self::Payloads(_) => None,
        }
    }

    /// The frame, or the packets in their order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count()).filter_map(|at| self.part(at))
    }

    /// Coordinates that they hold together.
    pub(super) fn held(&self, step: &Step<'_>, incoming: &mut Incoming) -> Result<usize, ExchangeError> {
        if let Self::Payloads(served) = self {
            return Ok(served.held());
        }
        let (me, layout, expected) = (step.rank(), step.layout.as_ref(), Requirements::up(step));
        self.parts().map(|part| Ok(incoming.parse(me, part, &layout, &expected)?.held())).sum()
    }

    /// Returns what did not arrive to the memory: of frames and packets those with these numbers.
    pub(super) fn give_back(
        &mut self,
        incoming: &mut Incoming,
        step: &Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
        is_in: impl Fn(usize) -> bool,
    ) -> Result<(), DecodeError> {
        if let Self::Payloads(served) = self {
            if !is_in(0) {
                served.give_back(step, memory);
            }
            return Ok(());
        }
        let mut given = Ok(());
        for (_, part) in self.parts().enumerate().filter(|(at, _)| !is_in(*at)) {
            given = given.and(incoming.give_back(part, step.units(), step, memory));
        }
        given
    }
}
