//! Rounding to levels: draws stay in registers, from the generator to the levels.

use crate::kernels::scalar::floats::MAGNITUDE;
use crate::kernels::scalar::quantize as scalar;
use crate::kernels::scalar::quantize::Bucket;
use crate::rng::stream::{CONSTANTS, DRAW_ROUNDS, Stream};
use core::arch::aarch64::*;

/// Draws of one turn, one an element: four blocks of the generator.
const TURN: usize = 32;

/// Units of the fixed-point sum in one level.
const UNITS: f32 = 65_536.0;

/// [`quantize`](crate::kernels::quantize) for NEON, which the caller has detected.
pub(in crate::kernels) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    // If the first element is at another position, turns begin inside a block of the generator.
    let is_aligned = stream.is_none() || bucket.first.is_multiple_of(8);
    let whole = if is_aligned { p.len() / TURN * TURN } else { 0 };
    let (p, p_tail) = p.split_at(whole);
    let (fields, fields_tail) = fields.split_at_mut(whole);
    // SAFETY: `Isa::Neon` is named only where the machine has it.
    unsafe { quantize_neon(p, bucket, stream, fields) }
    let tail = Bucket { first: bucket.first + whole as u64, ..*bucket };
    scalar::quantize(p_tail, &tail, stream, fields_tail);
}

/// Rounds whole turns.
#[target_feature(enable = "neon")]
fn quantize_neon(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    let turns = p.as_chunks::<TURN>().0.iter().zip(fields.as_chunks_mut::<TURN>().0);
    for (first, (p, fields)) in (bucket.first / 8..).step_by(TURN / 8).zip(turns) {
        let draws = match stream {
            Some(stream) => blocks(stream, first),
            None => [vdupq_n_u16(scalar::HALF as u16); 4],
        };
        let groups = p.as_chunks::<8>().0.iter().zip(fields.as_chunks_mut::<8>().0);
        for ((p, fields), draws) in groups.zip(draws) {
            // SAFETY: the array holds two vectors.
            let bits = [0, 4].map(|at| unsafe { vld1q_u32(p.as_ptr().add(at)) });
            let draws = [vmovl_u16(vget_low_u16(draws)), vmovl_high_u16(draws)];
            let [a, b] = [0, 1].map(|i| level(bits[i], draws[i], bucket, stream.is_none()));
            let signs = vcombine_u16(vshrn_n_u32::<16>(bits[0]), vshrn_n_u32::<16>(bits[1]));
            let signs = vand_u8(vshrn_n_u16::<8>(signs), vdup_n_u8(0x80));
            // The exponent of the sum is above the byte that is kept.
            let levels = vmovn_u16(vcombine_u16(vshrn_n_u32::<16>(a), vshrn_n_u32::<16>(b)));
            // SAFETY: the array holds eight bytes.
            unsafe { vst1_u8(fields.as_mut_ptr(), vorr_u8(levels, signs)) };
        }
    }
}

/// Four fixed-point sums, each below the exponent bits of a float. Scaling by powers of two is exact, so one
/// product gives the same bits as two.
#[target_feature(enable = "neon")]
fn level(bits: uint32x4_t, draws: uint32x4_t, bucket: &Bucket, is_nearest: bool) -> uint32x4_t {
    let magnitude = vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(MAGNITUDE)));
    let scaled = vmulq_f32(magnitude, vdupq_n_f32(bucket.inverse * UNITS));
    let scaled = vminq_f32(scaled, vdupq_n_f32(bucket.levels as f32 * UNITS));
    let rounded = vreinterpretq_u32_f32(vaddq_f32(scaled, vdupq_n_f32(scalar::ROUND_MAGIC)));
    let sum = vaddq_u32(rounded, draws);
    if !is_nearest {
        return sum;
    }
    // As the plain loop: a value below half of level 1 is level 0.
    let is_zero = vcltq_f32(vaddq_f32(magnitude, magnitude), vdupq_n_f32(bucket.scale));
    vbicq_u32(sum, is_zero)
}

/// Four blocks, in order. Until the last step, lane i of each vector holds a word of block i.
#[target_feature(enable = "neon")]
fn blocks(stream: &Stream, block: u64) -> [uint16x8_t; 4] {
    let ([key, upper], [multiplier, weyl]) = (stream.words(), CONSTANTS);
    let counters = [0, 1, 2, 3].map(|i| block.wrapping_add(i));
    let (low, high) = (counters.map(|i| i as u32), counters.map(|i| (i >> 32) as u32));
    // SAFETY: each array holds a vector.
    let (mut w0, mut w1) = unsafe { (vld1q_u32(low.as_ptr()), vld1q_u32(high.as_ptr())) };
    let (mut w2, mut w3) = (vdupq_n_u32(upper[0]), vdupq_n_u32(upper[1]));
    let (mut k0, mut k1) = (key[0], key[1]);
    for _ in 0..DRAW_ROUNDS {
        let [a_low, a_high] = products(w0, multiplier[0]);
        let [b_low, b_high] = products(w2, multiplier[1]);
        w0 = veorq_u32(veorq_u32(b_high, w1), vdupq_n_u32(k0));
        w2 = veorq_u32(veorq_u32(a_high, w3), vdupq_n_u32(k1));
        (w1, w3) = (b_low, a_low);
        (k0, k1) = (k0.wrapping_add(weyl[0]), k1.wrapping_add(weyl[1]));
    }
    let pairs = |a, b| [vzip1q_u32(a, b), vzip2q_u32(a, b)].map(|pair| vreinterpretq_u64_u32(pair));
    let ([a, c], [b, d]) = (pairs(w0, w1), pairs(w2, w3));
    [vzip1q_u64(a, b), vzip2q_u64(a, b), vzip1q_u64(c, d), vzip2q_u64(c, d)]
        .map(|block| vreinterpretq_u16_u64(block))
}

/// Lower and upper words of the products with `factor`.
#[target_feature(enable = "neon")]
fn products(words: uint32x4_t, factor: u32) -> [uint32x4_t; 2] {
    let front = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(words), factor));
    let back = vreinterpretq_u32_u64(vmull_high_n_u32(words, factor));
    [vuzp1q_u32(front, back), vuzp2q_u32(front, back)]
}

/// [`fill_u16`](crate::kernels::fill_u16) for NEON, which the caller has detected.
pub(in crate::kernels) fn fill_u16(stream: &Stream, block: u64, draws: &mut [u16]) {
    // SAFETY: `Isa::Neon` is named only where the machine has it.
    unsafe { fill_neon(stream, block, draws) }
}

#[target_feature(enable = "neon")]
fn fill_neon(stream: &Stream, mut block: u64, draws: &mut [u16]) {
    let (turns, rest) = draws.as_chunks_mut::<TURN>();
    for turn in turns {
        for (draws, block) in turn.as_chunks_mut::<8>().0.iter_mut().zip(blocks(stream, block)) {
            // SAFETY: the array holds a vector.
            unsafe { vst1q_u16(draws.as_mut_ptr(), block) };
        }
        block = block.wrapping_add((TURN / 8) as u64);
    }
    stream.fill_u16_plainly(block, rest);
}
