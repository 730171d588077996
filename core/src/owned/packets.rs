//! Packets in buffers that grow once and are then reused: for callers who have a heap.

use crate::codec::PacketSize;
use crate::error::EncodeError;
use crate::frame::gather::{Gather, StepInput};
use crate::frame::message::check_units;
use crate::frame::packets::Packets;
use crate::memory::Memory;
use crate::owned::buffers::grow;
use crate::scratch::Scratch;
use alloc::vec::Vec;
use core::ops::Range;

/// All packets of a gradient, kept until the next gradient, so that each can be sent, and given back if it
/// was lost. Allocates on the first call, and later only when the packets need more room.
#[derive(Clone, Debug, Default)]
pub struct PacketEncoder {
    words: Vec<u32>,
    bytes: Vec<u8>,
    packets: Vec<u8>,
    /// Where each packet ends in `packets`.
    ends: Vec<usize>,
}

impl PacketEncoder {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes a gradient; see [`Gather::packets`]. Returns how many packets it takes.
    ///
    /// # Errors
    /// As [`Gather::packets`], except that its buffers grow. After an error there are no packets.
    pub fn encode<G: Gather + ?Sized>(
        &mut self,
        codec: &G,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        size: PacketSize,
    ) -> Result<usize, EncodeError> {
        self.ends.clear();
        // Check first, so that no buffer grows for units that will be refused.
        check_units(step.layout, step.units)?;
        let needed = codec.packet_scratch_len(step.units, size);
        grow(&mut self.words, needed.words);
        grow(&mut self.bytes, needed.bytes);
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        let mut packets = codec.packets(step, memory, &mut scratch, size)?;
        draw(&mut packets, size, &mut self.packets, &mut self.ends);
        Ok(self.ends.len())
    }

    /// The number of packets.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all packets together.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The packet with this number, if there is one.
    #[must_use]
    pub fn packet(&self, at: usize) -> Option<&[u8]> {
        Some(&self.packets[self.range(at)?])
    }

    fn range(&self, at: usize) -> Option<Range<usize>> {
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        Some(start..*self.ends.get(at)?)
    }
}

fn draw(packets: &mut Packets<'_>, size: PacketSize, out: &mut Vec<u8>, ends: &mut Vec<usize>) {
    let mut end = 0;
    loop {
        grow(out, end + size.bytes());
        let Some(bytes) = packets.next_into(&mut out[end..]) else { return };
        end += bytes;
        ends.push(end);
    }
}
