//! Rounding to levels, and the draws for it.

#[cfg(target_arch = "aarch64")]
use crate::kernels::aarch64::quantize as aarch64;
use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::quantize as scalar;
use crate::kernels::scalar::quantize::Bucket;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::quantize as x86_64;
use crate::rng::stream::Stream;

/// Rounds the values whose bits are `p` to levels, one byte each: the level, and the sign in bit 7.
///
/// With a stream, rounding is stochastic: level ⌊a + u⌋ for a = min(|p|·inverse, levels) and u a 16-bit draw,
/// both as multiples of 2⁻¹⁶ (a rounded to nearest, so the bias of one element is at most 2⁻¹⁷ levels).
/// Without a stream, it is to nearest, halves up.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn quantize(isa: Isa, p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    assert_eq!(p.len(), fields.len(), "values and fields differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::quantize(isa, p, bucket, stream, fields),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::quantize(p, bucket, stream, fields),
        Isa::Baseline => scalar::quantize(p, bucket, stream, fields),
    }
}

/// The 16-bit draws of a stream from position 8·`block` on.
pub(crate) fn fill_u16(isa: Isa, stream: &Stream, block: u64, draws: &mut [u16]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::fill_u16(isa, stream, block, draws),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::fill_u16(stream, block, draws),
        Isa::Baseline => stream.fill_u16_plainly(block, draws),
    }
}

impl Stream {
    /// The 16-bit draws of positions `8·i …`, in order, as many as `draws` has room for.
    ///
    /// 16 bits leave a small bias: an event of probability q, taken if a draw is below q·2¹⁶, really has the
    /// next multiple of 2⁻¹⁶ as its probability.
    pub fn fill_u16(&self, i: u64, draws: &mut [u16]) {
        fill_u16(Isa::best(), self, i, draws);
    }
}

compile_for_each_isa! {
    /// residual = p − sign · scale · level.
    pub(crate) fn keep_rounding(isa, p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) = scalar::keep_rounding;
}
