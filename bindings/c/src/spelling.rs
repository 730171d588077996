//! Codecs by their spelling, and what they can do: code that knows every codec.

use crate::codec::{Chosen, gw_codec};
use crate::listed::LISTED;
use crate::raw::{Outcome, Place, boundary, give, give_text, object, object_mut, text};
use crate::results::{GW_ERROR_NOT_SUPPORTED, GW_ERROR_OUT_OF_RANGE, GW_ERROR_SPELLING, gw_result};
use codecs::registry::Law;
use codecs::state::MemoryChoice;
use codecs::{Codec, Density, Spec};
use core::ffi::{c_char, c_void};

/// Makes frames: gw_encoder_init takes it.
pub const GW_CAN_ENCODE: u32 = 1;
/// Its payloads can be summed by an all-reduce.
pub const GW_CAN_SUM: u32 = 2;
/// Has a memory: gw_memory_init takes it.
pub const GW_CAN_KEEP: u32 = 4;
/// Its memory has momentum.
pub const GW_CAN_MOMENTUM: u32 = 8;
/// Sent + kept = residual + gradient, bit for bit.
pub const GW_CAN_EXACT: u32 = 16;
/// Has a density: gw_codec_set_density takes it.
pub const GW_CAN_DENSITY: u32 = 32;
/// The spelling asks for packets: gw_encode_packets takes its encoder.
pub const GW_CAN_PACKETS: u32 = 64;

/// Makes a codec of a spelling, in the caller's memory. The spelling is not needed afterwards.
///
/// Errors: GW_ERROR_SPELLING (gw_codec_explain says what is wrong), GW_ERROR_NOT_UTF8, and those of every
/// object: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_OBJECT_TOO_SMALL.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_init(
    memory: *mut c_void,
    size: usize,
    spelling: *const c_char,
    codec: *mut *mut gw_codec,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let place = Place::<gw_codec>::open(memory, size)?;
        let spec = Spec::parse(text(spelling)?).map_err(|_| GW_ERROR_SPELLING)?;
        place.write(Chosen { spec, method: LISTED }, codec)
    })
}

/// Writes what is wrong with a spelling, in words: which key, and what is allowed. For a spelling without
/// fault it writes an empty text. Texts are cut off to `room` bytes with their zero byte; `*needed`,
/// which may be NULL, becomes the bytes of the whole.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL when the text was cut off, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_UTF8.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_explain(
    spelling: *const c_char,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        match Spec::parse(text(spelling)?) {
            Ok(_) => give_text("", out, room, needed),
            Err(error) => give_text(error, out, room, needed),
        }
    })
}

/// Writes the spelling of a codec, in its shortest form, as gw_codec_explain writes its text.
///
/// Errors: GW_ENCODE_BUFFER_TOO_SMALL, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_spelling(
    codec: *const gw_codec,
    out: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give_text(object(codec)?.spec, out, room, needed) })
}

/// What a codec can do: a sum of the constants GW_CAN_.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_capabilities(codec: *const gw_codec, can: *mut u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(can, capabilities(&object(codec)?.spec)) })
}

fn capabilities(spec: &Spec) -> u32 {
    let can = spec.codec.capabilities();
    let flags = [
        (GW_CAN_ENCODE, can.has_frames),
        (GW_CAN_SUM, spec.codec.as_linear().is_some()),
        (GW_CAN_KEEP, spec.memory != MemoryChoice::None),
        (GW_CAN_MOMENTUM, spec.memory == MemoryChoice::Momentum),
        (GW_CAN_EXACT, can.law == Law::Exact),
        (GW_CAN_DENSITY, spec.codec.density().is_some()),
        (GW_CAN_PACKETS, spec.packets.is_some()),
    ];
    flags.iter().filter(|(_, holds)| *holds).map(|(flag, _)| flag).sum()
}

/// The share of the coordinates that the codec sends.
///
/// Errors: GW_ERROR_NOT_SUPPORTED for a codec that has no density, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_density(codec: *const gw_codec, density: *mut f64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let found = object(codec)?.spec.codec.density().ok_or(GW_ERROR_NOT_SUPPORTED)?;
        give(density, found.fraction())
    })
}

/// Sets the share of the coordinates that the codec sends, from 1e-9 to 1. Encoders that were made of it
/// keep theirs: gw_encoder_set_density.
///
/// Errors: GW_ERROR_NOT_SUPPORTED for a codec that has no density, GW_ERROR_OUT_OF_RANGE,
/// GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_codec_set_density(codec: *mut gw_codec, density: f64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let spec = &mut object_mut(codec)?.spec;
        spec.codec = at_density(&spec.codec, density)?;
        Ok(())
    })
}

pub(crate) fn at_density(codec: &Codec, density: f64) -> Outcome<Codec> {
    codec.density().ok_or(GW_ERROR_NOT_SUPPORTED)?;
    Ok(codec.with_density(Density::new(density).ok_or(GW_ERROR_OUT_OF_RANGE)?))
}
