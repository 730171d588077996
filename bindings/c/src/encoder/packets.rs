//! A gradient as several frames.

use super::{Encoder, gw_encoder};
use crate::memory::{Kept, gw_memory};
use crate::raw::{Outcome, boundary, disjoint, give, object_mut, optional_mut, slice, slice_mut};
use crate::results::{GW_ENCODE_BUFFER_TOO_SMALL, GW_ENCODE_NO_PACKETS, GW_ERROR_NULL_POINTER, gw_result};
use codecs::{Gather, Grad, Memory, Scratch, StepInput, StepKey};
use core::ffi::c_void;

/// Called with each packet, which is there until it returns.
pub type gw_packet_visitor =
    Option<unsafe extern "C" fn(context: *mut c_void, packet: *const u8, bytes: usize)>;

/// Encodes a gradient as several frames of at most the bytes that the spelling states
/// ("max_packet_bytes=1200"), for links that lose packets. Each is a frame of its own: any of them can be
/// read and added without the others. Calls `visit` with each, in order; it must not use the encoder or
/// the memory. `out` is where packets are made; its `room` is at least that of one packet. `*written`
/// becomes the bytes of all packets together. A packet that is lost can be given back:
/// gw_memory_give_back.
///
/// Errors: as gw_encode, GW_ENCODE_NO_PACKETS for a codec without GW_CAN_PACKETS,
/// GW_ENCODE_PACKET_TOO_SMALL. No packet was made then. After GW_ENCODE_BUFFER_TOO_SMALL, `*written` is the
/// room that is needed.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_packets(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const f32,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    visit: gw_packet_visitor,
    context: *mut c_void,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (values, out) = (slice(values, count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        let visit = visit.ok_or(GW_ERROR_NULL_POINTER)?;
        let (encoder, memory) = (object_mut(encoder)?, optional_mut(memory)?);
        give(written, 0)?;
        encoder.packets(step, Grad::F32(values), memory, out, &mut *written, |packet| {
            visit(context, packet.as_ptr(), packet.len());
        })
    })
}

impl Encoder {
    fn packets(
        &mut self,
        step: u64,
        grad: Grad<'_>,
        memory: Option<&mut Kept>,
        out: &mut [u8],
        written: &mut usize,
        mut visit: impl FnMut(&[u8]),
    ) -> Outcome {
        self.check(grad, memory.as_deref())?;
        let size = self.spec.packets.ok_or(GW_ENCODE_NO_PACKETS)?;
        if out.len() < size.bytes() {
            *written = size.bytes();
            return Err(GW_ENCODE_BUFFER_TOO_SMALL);
        }
        let key = StepKey { seed: self.seed, step, source: self.source };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        let memory: Option<&mut Memory<'_>> = memory.map(|kept| &mut kept.memory);
        let input = StepInput { key, layout: &self.layout, units: self.units, grad };
        let packets = self.codec.packets(&input, memory, &mut scratch, size);
        self.failed = packets.as_ref().err().map(|error| (*error, step));
        let mut packets = packets.map_err(|error| error.code())?;
        while let Some(bytes) = packets.next_into(out) {
            let packet = &mut out[..bytes];
            if let Some(finish) = self.finish {
                finish(packet)?;
            }
            *written += bytes;
            visit(packet);
        }
        Ok(())
    }
}
