//! What code that knows every codec says and sets.

use super::{Encoder, gw_encoder};
use crate::raw::{Outcome, boundary, give, object, object_mut};
use crate::results::{GW_ENCODE_SCRATCH_TOO_SMALL, GW_ENCODE_TOO_LARGE, gw_result};
use crate::spelling::at_density;
use codecs::{Codec, Gather, Spec};

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

impl Encoder {
    fn set_codec(&mut self, codec: Codec) -> Outcome {
        let spec = Spec { codec, warmup: 0, ..self.spec };
        let needed = self.method.needs(&spec, &self.layout);
        if needed.words > self.words.len() || needed.bytes > self.bytes.len() {
            return Err(GW_ENCODE_SCRATCH_TOO_SMALL);
        }
        self.codec = codec;
        Ok(())
    }
}
