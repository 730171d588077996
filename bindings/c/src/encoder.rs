//! From a gradient to a frame.

use crate::codec::{at_density, gw_codec, makes_frames};
use crate::draws::source;
use crate::layout::gw_layout;
use crate::memory::{Kept, gw_memory};
use crate::raw::{
    Object, Outcome, Place, Placed, allocate, boundary, disjoint, free, give, give_text, object, object_mut,
    optional_mut, slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ENCODE_MEMORY_INCOMPLETE, GW_ENCODE_NO_FRAMES, GW_ENCODE_NO_PACKETS,
    GW_ENCODE_SCRATCH_TOO_SMALL, GW_ENCODE_TOO_LARGE, GW_ERROR_NO_SUCH_ERROR, GW_ERROR_NOT_SUPPORTED,
    GW_ERROR_NULL_POINTER, GW_ERROR_WRONG_LAYOUT, GW_ERROR_WRONG_LENGTH, gw_result,
};
use codecs::format::{Divisor, VoidFrame};
use codecs::half::{bf16, f16};
use codecs::state::MemoryChoice;
use codecs::{
    Codec, EncodeError, Gather, Grad, LayoutRef, Memory, Scratch, ScratchLen, Source, Spec, StepKey, Unit,
};
use std::ffi::{c_char, c_void};

/// Makes the frames of one rank: a codec, a layout, and all working memory. It keeps nothing from step to
/// step; a gw_memory does.
///
/// Threads: one at a time.
pub struct gw_encoder(#[allow(dead_code, reason = "its place is what counts")] Placed<Encoder>);

pub(crate) struct Encoder {
    spec: Spec,
    /// The codec at the density that counts now.
    codec: Codec,
    layout: LayoutRef<'static>,
    units: &'static [Unit],
    words: &'static mut [u32],
    bytes: &'static mut [u8],
    seed: u64,
    source: Source,
    divisor: Divisor,
    /// The last error, and its step.
    failed: Option<(EncodeError, u64)>,
}

impl Object for gw_encoder {
    type Value = Encoder;
    const TAG: u64 = u64::from_le_bytes(*b"gwencode");
}

/// The most working memory that the codec needs: for a frame or for packets, now or at the beginning of
/// its warm-up.
fn needs(spec: &Spec, units: &[Unit]) -> ScratchLen {
    let of = |codec: Codec| {
        let packets = spec.packets.map(|size| codec.packet_scratch_len(units, size));
        codec.scratch_len(units).max(packets.unwrap_or_default())
    };
    of(spec.codec).max(of(spec.codec_in(0)))
}

/// Refuses codecs without frames, and those that clip by the number of workers, which an encoder does not
/// know.
fn check_codec(codec: &Codec) -> Outcome {
    if !makes_frames(codec) {
        Err(GW_ENCODE_NO_FRAMES)
    } else if codec.local_clip(1).is_some() {
        Err(GW_ERROR_NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

fn size(spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<usize> {
    check_codec(&spec.codec)?;
    let units: Vec<_> = spec.units.units(layout).collect();
    let needed = needs(spec, &units);
    gw_encoder::ROOM.and::<Unit>(units.len()).and::<u32>(needed.words).and::<u8>(needed.bytes).bytes()
}

/// Bytes of an encoder for this codec and layout.
///
/// Errors: GW_ENCODE_NO_FRAMES for a codec without GW_CAN_ENCODE, GW_ERROR_NOT_SUPPORTED for the key
/// `clip` (leave it out, and shorten gradients to a norm of at most clip divided by the root of the
/// number of ranks), GW_ERROR_WRONG_LENGTH when they cannot be addressed, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_size(
    codec: *const gw_codec,
    layout: *const gw_layout,
    bytes: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(bytes, size(object(codec)?, &object(layout)?.layout)?) })
}

/// Makes an encoder in the caller's memory, for rank 0 and seed 0. The codec is copied; the layout must
/// stay.
///
/// Errors: as gw_encoder_size, and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_init(
    memory: *mut c_void,
    size: usize,
    codec: *const gw_codec,
    layout: *const gw_layout,
    encoder: *mut *mut gw_encoder,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let mut place = Place::<gw_encoder>::open(memory, size)?;
        let (spec, layout) = (*object(codec)?, object(layout)?.layout);
        check_codec(&spec.codec)?;
        let units = place.rest.array(spec.units.units(&layout).count(), Unit::whole(0))?;
        units.iter_mut().zip(spec.units.units(&layout)).for_each(|(slot, unit)| *slot = unit);
        let needed = needs(&spec, units);
        let words = place.rest.array(needed.words, 0)?;
        let bytes = place.rest.array(needed.bytes, 0)?;
        let (divisor, source) = (Divisor::Contributors, Source::Rank(0));
        let codec = spec.codec;
        place.write(
            Encoder { spec, codec, layout, units, words, bytes, seed: 0, source, divisor, failed: None },
            encoder,
        )
    })
}

/// Allocates an encoder. gw_encoder_free frees it.
///
/// Errors: as gw_encoder_init, and GW_ERROR_NO_HEAP.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_new(
    codec: *const gw_codec,
    layout: *const gw_layout,
    encoder: *mut *mut gw_encoder,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let bytes = size(object(codec)?, &object(layout)?.layout)?;
        allocate(bytes, encoder, |memory, size| gw_encoder_init(memory, size, codec, layout, encoder))
    })
}

/// Frees what gw_encoder_new made. NULL is nothing to free.
///
/// Errors: GW_ERROR_NOT_ALLOCATED for an encoder in the caller's memory, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_free(encoder: *mut gw_encoder) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { free(encoder, |_| ()) })
}

/// Sets who draws and from which seed: codecs that draw random numbers draw different ones for each seed,
/// step and rank. All ranks of a run have one seed.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a rank that is neither below GW_RANKS nor GW_ALL_RANKS,
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_set_source(encoder: *mut gw_encoder, seed: u64, rank: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let encoder = object_mut(encoder)?;
        encoder.source = source(rank)?;
        encoder.seed = seed;
        Ok(())
    })
}

/// Sets the share of the coordinates that is sent from now on.
///
/// Errors: GW_ENCODE_SCRATCH_TOO_SMALL when the encoder was made for less, GW_ERROR_NOT_SUPPORTED for a
/// codec that has no density, GW_ERROR_OUT_OF_RANGE outside of 1e-9 to 1, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_set_density(encoder: *mut gw_encoder, density: f64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let encoder = object_mut(encoder)?;
        encoder.set_codec(at_density(&encoder.codec, density)?)
    })
}

/// Sets the epoch, counted from 0: the density is then that of the warm-up that the spelling asks for.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_set_epoch(encoder: *mut gw_encoder, epoch: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let encoder = object_mut(encoder)?;
        encoder.set_codec(encoder.spec.codec_in(epoch))
    })
}

/// Says with every frame how its mean is to be formed: 0 divides each sum by the number of ranks, which
/// is the default; 1 divides each coordinate by the number of frames that held it.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_set_divide_by_senders(
    encoder: *mut gw_encoder,
    senders: u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let divisor = if senders == 0 { Divisor::Contributors } else { Divisor::Senders };
        object_mut(encoder)?.divisor = divisor;
        Ok(())
    })
}

/// The most bytes that a frame of this encoder can have, whatever the gradient.
///
/// Errors: GW_ENCODE_TOO_LARGE when no frame could hold it, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_frame_bound(encoder: *const gw_encoder, bytes: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let encoder = object(encoder)?;
        give(bytes, encoder.codec.max_frame_bytes(encoder.units).ok_or(GW_ENCODE_TOO_LARGE)?)
    })
}

/// Encodes a gradient of `count` values, as many as the layout has, into a frame at `out`, which has room
/// for `room` bytes. `*written` becomes the bytes of the frame.
///
/// With a memory, what is encoded is residual + gradient, and the memory keeps what the frame does not
/// hold. A codec with GW_CAN_KEEP needs one; for any other it is NULL. On an error the memory is as it
/// was, bit for bit.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that always suffice.
/// GW_ENCODE_NON_FINITE_INPUT and GW_ENCODE_VALUE_OVERFLOW: gw_encoder_error_index says where, and
/// gw_encode_void writes what to send instead. GW_ENCODE_MEMORY_REFUSED, GW_ENCODE_MEMORY_INCOMPLETE,
/// GW_ENCODE_TOO_LARGE. GW_ERROR_WRONG_LENGTH for another `count`, GW_ERROR_WRONG_LAYOUT for a memory of
/// another layout, GW_ERROR_OVERLAP when `out` overlaps the values, GW_ERROR_NULL_POINTER,
/// GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const f32,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (values, out) = (slice(values, count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        encode(encoder, step, Grad::F32(values), memory, out, written)
    })
}

/// As gw_encode, for values in half precision (IEEE binary16), as their bits.
///
/// Errors: as gw_encode.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_f16(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const u16,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; an f16 is its 16 bits.
    boundary(|| unsafe {
        let (values, out) = (slice(values.cast::<f16>(), count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        encode(encoder, step, Grad::F16(values), memory, out, written)
    })
}

/// As gw_encode, for values in bfloat16, as their bits.
///
/// Errors: as gw_encode.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_bf16(
    encoder: *mut gw_encoder,
    step: u64,
    values: *const u16,
    count: usize,
    memory: *mut gw_memory,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says; a bf16 is its 16 bits.
    boundary(|| unsafe {
        let (values, out) = (slice(values.cast::<bf16>(), count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        encode(encoder, step, Grad::Bf16(values), memory, out, written)
    })
}

/// # Safety
/// As [`gw_encode`].
unsafe fn encode(
    encoder: *mut gw_encoder,
    step: u64,
    grad: Grad<'_>,
    memory: *mut gw_memory,
    out: &mut [u8],
    written: *mut usize,
) -> Outcome {
    // SAFETY: the caller's promise.
    let (encoder, memory) = unsafe { (object_mut(encoder)?, optional_mut(memory)?) };
    // SAFETY: as above. It may not be null, so that nothing is encoded whose length nobody learns.
    unsafe { give(written, 0)? };
    let frame = encoder.encode(step, grad, memory, out);
    let (Ok(bytes) | Err((_, bytes))) = frame;
    // SAFETY: as above.
    unsafe { give(written, bytes)? };
    frame.map(drop).map_err(|(error, _)| error)
}

/// Called with each packet, which is there until it returns.
pub type gw_packet_visitor =
    Option<unsafe extern "C" fn(context: *mut c_void, packet: *const u8, bytes: usize)>;

/// Encodes a gradient as several frames of at most the bytes that the spelling states
/// ("max_packet_bytes=1200"), for links that lose packets. Each is a frame of its own: any of them can be
/// read and added without the others. Calls `visit` with each, in order; it must not use the encoder or
/// the memory. `out` is where packets are made; its `room` is at least that of one packet. A packet that
/// is lost can be given back: gw_memory_give_back.
///
/// Errors: as gw_encode, GW_ENCODE_NO_PACKETS for a codec without GW_CAN_PACKETS,
/// GW_ENCODE_PACKET_TOO_SMALL. No packet was made then.
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
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (values, out) = (slice(values, count)?, slice_mut(out, room)?);
        disjoint(values, out)?;
        let visit = visit.ok_or(GW_ERROR_NULL_POINTER)?;
        let (encoder, memory) = (object_mut(encoder)?, optional_mut(memory)?);
        encoder.packets(step, Grad::F32(values), memory, out, |packet| {
            visit(context, packet.as_ptr(), packet.len());
        })
    })
}

/// The coordinate that the last encode failed at, counted from the start of the layout.
///
/// Errors: GW_ERROR_NO_SUCH_ERROR when it succeeded, or failed for another reason, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_error_index(encoder: *const gw_encoder, index: *mut usize) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(index, object(encoder)?.void()?.index) })
}

/// Why the last encode failed, in words and with its numbers; an empty text if it succeeded. As
/// gw_codec_explain.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encoder_error_text(
    encoder: *const gw_encoder,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        match object(encoder)?.failed {
            Some((error, _)) => give_text(error, out, room, needed),
            None => give_text("", out, room, needed),
        }
    })
}

/// The most bytes of a void frame.
pub const GW_VOID_BYTES: usize = 44;

/// Writes a void frame, after an encode that a value of the gradient failed: the message that tells the
/// other ranks not to wait, and why. `room` is at least GW_VOID_BYTES.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL: `*written` is then the bytes that suffice. GW_ERROR_NO_SUCH_ERROR
/// when the last encode did not fail at a value, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_encode_void(
    encoder: *const gw_encoder,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let (encoder, out) = (object(encoder)?, slice_mut(out, room)?);
        let void = encoder.void()?;
        if room < GW_VOID_BYTES {
            give(written, GW_VOID_BYTES)?;
            return Err(GW_ENCODE_BUFFER_TOO_SMALL);
        }
        give(written, void.write(&encoder.layout, out).map_err(|error| error.code())?)
    })
}

impl Encoder {
    fn set_codec(&mut self, codec: Codec) -> Outcome {
        let needed = needs(&Spec { codec, warmup: 0, ..self.spec }, self.units);
        if needed.words > self.words.len() || needed.bytes > self.bytes.len() {
            return Err(GW_ENCODE_SCRATCH_TOO_SMALL);
        }
        self.codec = codec;
        Ok(())
    }

    /// What the codec crate would panic about.
    fn check(&self, grad: Grad<'_>, memory: Option<&Kept>) -> Outcome {
        if grad.len() != self.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        match memory {
            Some(kept) if !kept.is_for(&self.layout) => Err(GW_ERROR_WRONG_LAYOUT),
            None if self.spec.memory != MemoryChoice::None => Err(GW_ENCODE_MEMORY_INCOMPLETE),
            _ => Ok(()),
        }
    }

    /// The bytes of the frame; with an error, the bytes that are needed.
    fn encode(
        &mut self,
        step: u64,
        grad: Grad<'_>,
        memory: Option<&mut Kept>,
        out: &mut [u8],
    ) -> Result<usize, (gw_result, usize)> {
        self.check(grad, memory.as_deref()).map_err(|error| (error, 0))?;
        let key = StepKey { seed: self.seed, step, source: self.source };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        let memory: Option<&mut Memory<'_>> = memory.map(|kept| &mut kept.memory);
        let frame = self.codec.encode(key, &self.layout, self.units, grad, memory, &mut scratch, out);
        self.failed = frame.err().map(|error| (error, step));
        match frame {
            Ok(bytes) => {
                if self.divisor != Divisor::Contributors {
                    self.divisor.write_to(&mut out[..bytes]).map_err(|error| (error.code(), 0))?;
                }
                Ok(bytes)
            }
            Err(error @ EncodeError::BufferTooSmall { needed, .. }) => Err((error.code(), needed)),
            Err(error) => Err((error.code(), 0)),
        }
    }

    fn packets(
        &mut self,
        step: u64,
        grad: Grad<'_>,
        memory: Option<&mut Kept>,
        out: &mut [u8],
        mut visit: impl FnMut(&[u8]),
    ) -> Outcome {
        self.check(grad, memory.as_deref())?;
        let size = self.spec.packets.ok_or(GW_ENCODE_NO_PACKETS)?;
        if out.len() < size.bytes() {
            return Err(GW_ENCODE_BUFFER_TOO_SMALL);
        }
        let key = StepKey { seed: self.seed, step, source: self.source };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        let memory: Option<&mut Memory<'_>> = memory.map(|kept| &mut kept.memory);
        let packets = self.codec.packets(key, &self.layout, self.units, grad, memory, &mut scratch, size);
        self.failed = packets.as_ref().err().map(|error| (*error, step));
        let mut packets = packets.map_err(|error| error.code())?;
        while let Some(bytes) = packets.next_into(out) {
            let packet = &mut out[..bytes];
            if self.divisor != Divisor::Contributors {
                self.divisor.write_to(packet).map_err(|error| error.code())?;
            }
            visit(packet);
        }
        Ok(())
    }

    fn void(&self) -> Outcome<VoidFrame> {
        let (error, step) = self.failed.as_ref().ok_or(GW_ERROR_NO_SUCH_ERROR)?;
        VoidFrame::of(self.codec.id(), *step, error).ok_or(GW_ERROR_NO_SUCH_ERROR)
    }
}
