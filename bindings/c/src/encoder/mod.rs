//! From a gradient to a frame.

#[cfg(feature = "heap")]
pub mod half;
#[cfg(feature = "heap")]
pub mod packets;
#[cfg(feature = "heap")]
pub mod settings;

use crate::codec::{Chosen, gw_codec};
use crate::draws::source;
use crate::layout::gw_layout;
use crate::memory::{Kept, gw_memory};
use crate::method::{Frames, Method};
use crate::raw::{
    Object, Outcome, Place, Placed, boundary, disjoint, give, give_text, object, object_mut, optional_mut,
    slice, slice_mut,
};
use crate::results::{
    GW_ENCODE_BUFFER_TOO_SMALL, GW_ENCODE_MEMORY_INCOMPLETE, GW_ERROR_NO_SUCH_ERROR, GW_ERROR_WRONG_LAYOUT,
    GW_ERROR_WRONG_LENGTH, gw_result,
};
use codecs::format::{Divisor, VoidFrame};
use codecs::state::MemoryChoice;
use codecs::{Codec, EncodeError, Grad, LayoutRef, Memory, Scratch, Source, StepInput, StepKey, Unit};
use core::ffi::{c_char, c_void};

/// Makes the frames of one rank: a codec, a layout, and all working memory. It keeps nothing from step to
/// step; a gw_memory does.
///
/// Threads: one at a time.
pub struct gw_encoder(#[allow(dead_code, reason = "its place is what counts")] Placed<Encoder>);

pub(crate) struct Encoder {
    #[cfg(feature = "heap")]
    spec: codecs::Spec,
    /// Whether the codec needs a memory.
    keeps: bool,
    method: &'static dyn Method,
    /// The codec at the density that counts now.
    codec: Codec,
    layout: LayoutRef<'static>,
    units: &'static [Unit],
    words: &'static mut [u32],
    bytes: &'static mut [u8],
    seed: u64,
    source: Source,
    /// What is done with a frame that is made: its mean is not over all ranks.
    finish: Option<fn(&mut [u8]) -> Outcome>,
    /// The last error, and its step.
    failed: Option<(EncodeError, u64)>,
}

impl Object for gw_encoder {
    type Value = Encoder;
    const TAG: u64 = u64::from_le_bytes(*b"gwencode");
}

pub(crate) fn size(codec: &Chosen, layout: &LayoutRef<'_>) -> Outcome<usize> {
    let Chosen { spec, method } = codec;
    let (units, needed) = (method.units(spec, layout, &mut [])?, method.needs(spec, layout));
    gw_encoder::ROOM.and::<Unit>(units).and::<u32>(needed.words).and::<u8>(needed.bytes).bytes()
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
        let (Chosen { spec, method }, layout) = (object(codec)?, object(layout)?.layout);
        let units = place.rest.array(method.units(spec, &layout, &mut [])?)?;
        method.units(spec, &layout, units)?;
        let needed = method.needs(spec, &layout);
        let words = place.rest.array(needed.words)?;
        let bytes = place.rest.array(needed.bytes)?;
        place.write(
            Encoder {
                #[cfg(feature = "heap")]
                spec: *spec,
                keeps: spec.memory != MemoryChoice::None,
                method: *method,
                codec: spec.codec,
                layout,
                units,
                words,
                bytes,
                seed: 0,
                source: Source::Rank(0),
                finish: None,
                failed: None,
            },
            encoder,
        )
    })
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
        object_mut(encoder)?.finish = (senders != 0).then_some(by_senders);
        Ok(())
    })
}

fn by_senders(frame: &mut [u8]) -> Outcome {
    Divisor::Senders.write_to(frame).map_err(|error| error.code())
}

/// The most bytes of a frame of `elements` numbers in one unit, by any codec: the macro GW_FRAME_BOUND as
/// a function. With `unit=tensor`, ask gw_encoder_frame_bound.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_frame_bound(elements: usize) -> usize {
    elements.saturating_mul(8).saturating_add(2048)
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
    // SAFETY: as above, and just written.
    encoder.encode(step, grad, memory, out, unsafe { &mut *written })
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
    fn frames(&self) -> &dyn Frames {
        self.method.frames(&self.codec)
    }

    /// What the codec crate would panic about.
    fn check(&self, grad: Grad<'_>, memory: Option<&Kept>) -> Outcome {
        if grad.len() != self.layout.len() {
            return Err(GW_ERROR_WRONG_LENGTH);
        }
        match memory {
            Some(kept) if !kept.is_for(&self.layout) => Err(GW_ERROR_WRONG_LAYOUT),
            None if self.keeps => Err(GW_ENCODE_MEMORY_INCOMPLETE),
            _ => Ok(()),
        }
    }

    /// `written` becomes the bytes of the frame; with an error, those that are needed, if they are known.
    fn encode(
        &mut self,
        step: u64,
        grad: Grad<'_>,
        memory: Option<&mut Kept>,
        out: &mut [u8],
        written: &mut usize,
    ) -> Outcome {
        self.check(grad, memory.as_deref())?;
        let key = StepKey { seed: self.seed, step, source: self.source };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        let memory: Option<&mut Memory<'_>> = memory.map(|kept| &mut kept.memory);
        let input = StepInput { key, layout: &self.layout, units: self.units, grad };
        let frame = self.method.frames(&self.codec).encode(&input, memory, &mut scratch, out);
        self.failed = frame.err().map(|error| (error, step));
        *written = match frame {
            Ok(bytes) => bytes,
            Err(error) => {
                if let EncodeError::BufferTooSmall { needed, .. } = error {
                    *written = needed;
                }
                return Err(error.code());
            }
        };
        match self.finish {
            Some(finish) => finish(&mut out[..*written]),
            None => Ok(()),
        }
    }

    fn void(&self) -> Outcome<VoidFrame> {
        let (error, step) = self.failed.as_ref().ok_or(GW_ERROR_NO_SUCH_ERROR)?;
        VoidFrame::of(self.frames().id(), *step, error).ok_or(GW_ERROR_NO_SUCH_ERROR)
    }
}
