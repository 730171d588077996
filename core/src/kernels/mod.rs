//! The loops that touch every element, behind one dispatch point. [`scalar`] defines every result; it is compiled for
//! each instruction set that is worth it, and the few loops that compilers do not vectorise are written out beside it
//! and have to match it bit for bit.

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "loads, stores and calls of functions for instruction sets that were detected")]
mod aarch64;
mod blocks;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod checksum;
mod factors;
mod gaps;
mod isa;
#[cfg(any(
    test,
    not(any(
        all(target_arch = "x86_64", target_feature = "sse2"),
        all(target_arch = "aarch64", target_feature = "neon")
    ))
))]
pub(crate) mod plain;
mod rice;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "loads, stores and calls of functions for instruction sets that were detected")]
mod x86_64;

use crate::bits::{BitWriter, load_padded};
use crate::entropy::rans::{Entries, Lanes, MAX_ALPHABET, ROUND, SLOTS};
use crate::momentum::Momentum;
use crate::rng::stream::Stream;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub(crate) use aarch64::{mixing, shares};
pub(crate) use blocks::{BlockSums, BlockTally, LEAF, PlaneBits, SIZES, TALLIED, TurnBlocks};
pub(crate) use gaps::{ONES, TURN, behind};
pub(crate) use isa::Isa;
use isa::compile_for_each_isa;
#[cfg(not(any(
    all(target_arch = "x86_64", target_feature = "sse2"),
    all(target_arch = "aarch64", target_feature = "neon")
)))]
pub(crate) use plain::{mixing, shares};
pub(crate) use scalar::Squares;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) use x86_64::{mixing, shares};

/// CRC-32C of `bytes`, continuing `crc`.
pub(crate) fn crc32c(isa: Isa, crc: u32, bytes: &[u8]) -> u32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if isa::has_vpclmulqdq() => x86_64::checksum::crc32c_by_products(crc, bytes),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::checksum::crc32c(crc, bytes),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::checksum::crc32c(crc, bytes),
        Isa::Baseline => crate::wire::checksum::crc32c_scalar(crc, bytes),
    }
}

/// How many entries ahead of its turn a position is worth [`fetch`]ing: more than memory is late by, less than the first
/// cache level holds lines.
pub(crate) const FETCH_AHEAD: usize = 96;

/// Tells the processor that the element `index` is about to be used. A hint: it changes nothing but time, and an index
/// behind the end is none.
#[inline(always)]
pub(crate) fn fetch<T>(values: &[T], index: usize) {
    let address = values.as_ptr().wrapping_add(index).cast();
    #[cfg(target_arch = "x86_64")]
    x86_64::fetch(address);
    #[cfg(target_arch = "aarch64")]
    aarch64::fetch(address);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _: *const i8 = address;
}

/// Positions and bits of the values that a selection has kept so far, ascending; the first `len` of each.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    pub(crate) indices: &'a mut [u32],
    pub(crate) values: &'a mut [u32],
    pub(crate) len: usize,
}

/// Elements behind the last candidate that [`keep_from`] and [`keep_between`] may overwrite: one vector.
pub(crate) const CANDIDATE_SLACK: usize = 16;

/// Appends every element of p whose magnitude bits are at least `least`, with its position counted from `first`. Returns
/// the largest magnitude bits of all. p is the gradient or, where there is a residual, fl(residual + gradient), which the
/// residual becomes.
///
/// # Panics
/// When the lengths differ or the candidates have no room for every element and [`CANDIDATE_SLACK`] more.
pub(crate) fn keep_from(
    isa: Isa,
    grad: &[f32],
    residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let room = candidates.indices.len().min(candidates.values.len()) - candidates.len;
    assert!(room >= grad.len() + CANDIDATE_SLACK, "no room for the candidates");
    assert!(
        residual.as_ref().is_none_or(|residual| residual.len() == grad.len()),
        "gradient and residual differ in length"
    );
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::select::keep_from(grad, residual, first, least, candidates),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::select::keep_from_with_avx2(grad, residual, first, least, candidates),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::select::keep_from(grad, residual, first, least, candidates),
        Isa::Baseline => scalar::keep_from(grad, residual, first, least, candidates),
    }
}

/// Drops the candidates whose magnitude bits are below `least`; the others keep their order.
pub(crate) fn compact(isa: Isa, candidates: &mut Candidates<'_>, least: u32) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::select::compact(candidates, least),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::select::compact_with_avx2(candidates, least),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::select::compact(candidates, least),
        Isa::Baseline => {
            let len = candidates.len;
            let parts = (&mut candidates.indices[..len], &mut candidates.values[..len]);
            candidates.len = scalar::compact(parts.0, parts.1, 0, 0, least);
        }
    }
}

/// Writes the magnitude bits from `low` to `high`, both included, to the front of `out`, in order. Returns how many are
/// above `high`, and how many it wrote.
///
/// # Panics
/// When `out` has no room for every element and [`CANDIDATE_SLACK`] more.
pub(crate) fn keep_between(isa: Isa, p: &[u32], range: (u32, u32), out: &mut [u32]) -> (usize, usize) {
    assert!(out.len() >= p.len() + CANDIDATE_SLACK, "no room for what is kept");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::select::keep_between(p, range, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::select::keep_between_with_avx2(p, range, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::select::keep_between(p, range, out),
        Isa::Baseline => scalar::keep_between(p, range, out),
    }
}

compile_for_each_isa! {
    /// Adds the gradient to the residual, residual[i] = fl(residual[i] + gradient[i]); returns the largest magnitude bits.
    pub(crate) fn add_assign(isa, residual: &mut [f32], grad: &[f32]) -> u32 = scalar::add_assign;
}

compile_for_each_isa! {
    /// Replaces the gradient in `step` by the step that momentum will make of it.
    pub(crate) fn peek_momentum(isa, rule: Momentum, momentum: &[f32], step: &mut [f32]) = scalar::peek_momentum;
}

compile_for_each_isa! {
    /// The same, and the momentum moves on.
    pub(crate) fn advance_momentum(isa, rule: Momentum, momentum: &mut [f32], step: &mut [f32]) = scalar::advance_momentum;
}

compile_for_each_isa! {
    /// Writes the bits of p = fl(residual + gradient) to `p`; returns the largest magnitude bits.
    pub(crate) fn add_to(isa, residual: &[f32], grad: &[f32], p: &mut [u32]) -> u32 = scalar::add_to;
}

compile_for_each_isa! {
    /// Writes the bits of the gradient to `p`; returns the largest magnitude bits.
    pub(crate) fn copy_to(isa, grad: &[f32], p: &mut [u32]) -> u32 = scalar::copy_to;
}

compile_for_each_isa! {
    /// out = M·Q, column behind column: M as bits in rows of `cols`, Q in columns of `cols`.
    pub(crate) fn multiply(isa, m: &[u32], cols: usize, q: &[f32], out: &mut [f32]) = factors::multiply;
}

compile_for_each_isa! {
    /// out = Mᵀ·P, column behind column: M as bits in rows of `cols`, P in columns as long as M has rows.
    pub(crate) fn multiply_transposed(isa, m: &[u32], cols: usize, p: &[f32], out: &mut [f32]) = factors::multiply_transposed;
}

compile_for_each_isa! {
    /// out = P·Qᵀ, in rows of `cols`.
    pub(crate) fn multiply_out(isa, p: &[f32], q: &[f32], cols: usize, out: &mut [f32]) = factors::multiply_out;
}

/// Strides of f64 sums.
pub(crate) const STRIDES: usize = 8;

/// Number, sum and sum of squares of what exceeds a threshold, in strides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MomentSums {
    pub(crate) count: [u64; STRIDES],
    pub(crate) sum: [f64; STRIDES],
    pub(crate) squares: [f64; STRIDES],
}

compile_for_each_isa! {
    /// Adds |p| − threshold for every element whose magnitude bits are at least `least`, element i to stride i mod 8.
    pub(crate) fn add_moments(isa, p: &[u32], least: u32, threshold: f64, sums: &mut MomentSums) = scalar::add_moments;
}

compile_for_each_isa! {
    /// Multiplies every magnitude that is not zero into the products of the strides, mantissas and exponents apart.
    pub(crate) fn multiply_magnitudes(isa, p: &[u32], mantissas: &mut [f64; STRIDES], exponents: &mut [i64; STRIDES]) = scalar::multiply_magnitudes;
}

pub(crate) use scalar::mantissa_and_exponent;

compile_for_each_isa! {
    /// The largest magnitude bits; 0 for no elements.
    pub(crate) fn max_magnitude(isa, p: &[u32]) -> u32 = scalar::max_magnitude;
}

compile_for_each_isa! {
    /// The largest magnitude bits of little-endian f32; 0 for no elements.
    pub(crate) fn max_magnitude_bytes(isa, values: &[[u8; 4]]) -> u32 = scalar::max_magnitude_bytes;
}

compile_for_each_isa! {
    /// The largest magnitude bits of little-endian half-precision or bfloat16 values; 0 for no elements.
    pub(crate) fn max_magnitude_narrow(isa, values: &[[u8; 2]]) -> u16 = scalar::max_magnitude_narrow;
}

compile_for_each_isa! {
    /// acc[i] += weight · value[i] for little-endian f32.
    pub(crate) fn add_f32(isa, values: &[[u8; 4]], weight: f32, acc: &mut [f32]) = scalar::add_f32;
}

compile_for_each_isa! {
    /// acc[i] += weight · value[i] for little-endian bfloat16.
    pub(crate) fn add_bf16(isa, values: &[[u8; 2]], weight: f32, acc: &mut [f32]) = scalar::add_bf16;
}

/// acc[i] += weight · value[i] for little-endian half precision.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn add_f16(isa: Isa, values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    assert_eq!(values.len(), acc.len(), "values and accumulator differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::cast::add_f16(values, weight, acc),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::cast::add_f16(values, weight, acc),
        Isa::Baseline => scalar::add_f16(values, weight, acc),
    }
}

compile_for_each_isa! {
    /// Writes bits as little-endian f32.
    pub(crate) fn put_f32(isa, p: &[u32], out: &mut [[u8; 4]]) = scalar::put_f32;
}

compile_for_each_isa! {
    /// Writes bits rounded to bfloat16, nearest even. Infinities and NaN do not occur.
    pub(crate) fn put_bf16(isa, p: &[u32], out: &mut [[u8; 2]]) = scalar::put_bf16;
}

/// Writes bits rounded to half precision, nearest even. A NaN becomes quiet and keeps the upper bits of its payload.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn put_f16(isa: Isa, p: &[u32], out: &mut [[u8; 2]]) {
    assert_eq!(p.len(), out.len(), "values and their casts differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::cast::put_f16(p, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::cast::put_f16_with_avx2(p, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::cast::put_f16(p, out),
        Isa::Baseline => scalar::put_f16(p, out),
    }
}

/// Writes where the first ones of `plane` at or behind bit `start` are, counted from it, to the front of `out`, until
/// `wanted` are found, which is at most [`TURN`]. Returns how many it found: more, if there are more in the last word that
/// it looked at, or fewer, where the plane ends or the next word is 2³² bits away.
pub(crate) fn ones(isa: Isa, plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    debug_assert!(wanted <= TURN, "{wanted} ones at once");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::gaps::ones(plane, start, wanted, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::gaps::ones_with_avx2(plane, start, wanted, out),
        _ => gaps::ones(plane, start, wanted, out),
    }
}

compile_for_each_isa! {
    /// The gaps before ascending positions, the first of which is counted from `next`.
    pub(crate) fn gaps(isa, positions: &[u32], next: u32, gaps: &mut [u32]) = gaps::gaps;
}

/// Rice codes of the gaps in blocks of so many, each with its parameter r ≤ 31: the lower r bits of each gap to `lows`, and to
/// `highs` as many zeros as the rest of it says and a one.
pub(crate) fn put_gaps(
    isa: Isa,
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::rice::put_gaps(gaps, block, parameters, lows, highs),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::rice::put_gaps_with_avx2(gaps, block, parameters, lows, highs),
        _ => rice::put_gaps(gaps, block, parameters, lows, highs),
    }
}

/// The positions behind `next` of entries in blocks of so many, each with its Rice parameter r ≤ 31, modulo 2³²: their gaps have
/// these high parts (where each one is, as [`ones`] says), and as low parts the fields of r bits from bit `first_bit` of `lows`
/// on. Returns the sum of these fields.
pub(crate) fn positions(
    isa: Isa,
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    blocks: (usize, &[u32]),
    next: u32,
    out: &mut [u32],
) -> u64 {
    debug_assert!(ones.len() <= TURN && ones.len() == out.len(), "{} ones at once", ones.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::gaps::positions(ones, lows, first_bit, blocks, next, out),
        _ => positions_by_words(isa, ones, lows, first_bit, blocks, next, out),
    }
}

compile_for_each_isa! {
    fn positions_by_words(isa, ones: &[u32], lows: &[u8], first_bit: u64, blocks: (usize, &[u32]), next: u32, out: &mut [u32]) -> u64 = gaps::positions;
}

/// The best Rice parameters of the first `entries` of the gaps, whose sum is below 2³², in blocks of up to [`TALLIED`]
/// entries; the other gaps are 0.
pub(crate) fn best_blocks(isa: Isa, gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::blocks::best_blocks(gaps, entries, blocks),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::blocks::best_blocks_with_avx2(gaps, entries, blocks),
        _ => blocks::best_blocks(gaps, entries, blocks),
    }
}

compile_for_each_isa! {
    /// Adds the next blocks to what blocks of every size take. Only the last turn may have fewer than [`TALLIED`] entries.
    pub(crate) fn tally_blocks(isa, blocks: &TurnBlocks, tally: &mut BlockTally) = blocks::tally_blocks;
}

/// What [`quantize`] needs to know of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Position of the first element in the unit: draw `first + i` belongs to element `i`.
    pub(crate) first: u64,
    /// Levels per unit of magnitude: levels / norm.
    pub(crate) inverse: f32,
    /// Norm / levels: the value of level 1.
    pub(crate) scale: f32,
    /// Largest level.
    pub(crate) levels: u32,
}

/// Rounds the values whose bits are `p` to levels, one byte each: the level, and the sign in bit 7.
///
/// With a stream, stochastic: level ⌊a + u⌋ for a = min(|p|·inverse, levels) and u a 16-bit draw, both as multiples of
/// 2⁻¹⁶ (a rounded to nearest, so the bias of one element is at most 2⁻¹⁷ levels). Without, nearest, halves up.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn quantize(isa: Isa, p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    assert_eq!(p.len(), fields.len(), "values and fields differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::quantize::quantize(isa, p, bucket, stream, fields),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::quantize::quantize(p, bucket, stream, fields),
        Isa::Baseline => scalar::quantize(p, bucket, stream, fields),
    }
}

/// The 16-bit draws of a stream from position 8·`block` on.
pub(crate) fn fill_u16(isa: Isa, stream: &Stream, block: u64, draws: &mut [u16]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::quantize::fill_u16(isa, stream, block, draws),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::quantize::fill_u16(stream, block, draws),
        Isa::Baseline => stream.fill_u16_plainly(block, draws),
    }
}

/// Words as twice as many halves, in place, in the order of the machine.
#[allow(unsafe_code, reason = "a view of the same memory as another type of half the size")]
pub(crate) fn halves_of<const N: usize>(words: &mut [[u32; 8]; N]) -> &mut [[u16; 16]; N] {
    // SAFETY: both have the same size, words are aligned for halves, every pattern is valid for both, and the borrow is the
    // same.
    unsafe { &mut *core::ptr::from_mut(words).cast() }
}

/// The bits of floats, in place.
#[allow(unsafe_code, reason = "a view of the same memory as another type of the same size")]
pub(crate) fn bits_of(values: &[f32]) -> &[u32] {
    // SAFETY: f32 and u32 have the same size and alignment, every pattern is valid for both, and the borrow is the same.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

compile_for_each_isa! {
    /// residual = p − sign · scale · level.
    pub(crate) fn keep_rounding(isa, p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) = scalar::keep_rounding;
}

compile_for_each_isa! {
    /// Two fields of four bits a byte, the first in the low half: level, and sign in the highest bit of each.
    pub(crate) fn pack_nibbles(isa, fields: &[[u8; 2]], out: &mut [u8]) = scalar::pack_nibbles;
}

compile_for_each_isa! {
    /// acc[2·i], acc[2·i + 1] += weight · (sign · scale · level) for the two fields of byte i.
    pub(crate) fn add_nibbles(isa, packed: &[u8], scale: f32, weight: f32, acc: &mut [[f32; 2]]) = scalar::add_nibbles;
}

compile_for_each_isa! {
    /// acc[i] += weight · (sign · scale · level) for fields of eight bits.
    pub(crate) fn add_bytes(isa, fields: &[u8], scale: f32, weight: f32, acc: &mut [f32]) = scalar::add_bytes;
}

compile_for_each_isa! {
    /// Adds squares in f64 to eight strided partial sums, whose total is [`scalar::total_of`].
    pub(crate) fn add_squares(isa, p: &[u32], sums: &mut Squares) = scalar::add_squares;
}

compile_for_each_isa! {
    /// Sum of squares in f64: 32 strided partial sums, the four that are equal modulo 8 added up, then as
    /// [`scalar::total_of`].
    pub(crate) fn sum_of_squares_f32(isa, values: &[f32]) -> f64 = scalar::sum_of_squares_f32;
}

compile_for_each_isa! {
    /// Divides every value; whether all are finite then.
    pub(crate) fn divide(isa, values: &mut [f32], divisor: f32) -> bool = scalar::divide;
}

compile_for_each_isa! {
    /// Whether no value is NaN or infinite.
    pub(crate) fn are_finite(isa, values: &[f32]) -> bool = scalar::are_finite;
}

/// Adds to `counts` how often each symbol occurs; symbols are below the number of counts, which is at most 256.
pub(crate) fn histogram(isa: Isa, symbols: &[u8], counts: &mut [u32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 if counts.len() <= x86_64::symbols::FEW => {
            x86_64::symbols::histogram(isa, symbols, counts);
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if counts.len() <= aarch64::symbols::FEW => aarch64::symbols::histogram(symbols, counts),
        _ => scalar::histogram(symbols, counts),
    }
}

/// Classes whose costs are summed side by side.
pub(crate) const CLASS_LANES: usize = 16;

compile_for_each_isa! {
    /// Adds what each symbol costs in each class to the sum of the class.
    pub(crate) fn class_costs(
        isa,
        symbols: &[u8],
        costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
        sums: &mut [u32; CLASS_LANES],
    ) = scalar::class_costs;
}

compile_for_each_isa! {
    /// As [`class_costs`], for symbols that were counted.
    pub(crate) fn counted_class_costs(
        isa,
        counts: &[u32],
        costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
        sums: &mut [u32; CLASS_LANES],
    ) = scalar::counted_class_costs;
}

compile_for_each_isa! {
    /// Fields to symbols in order of likelihood: 0, +1, −1, +2, −2, …
    pub(crate) fn symbols_of(isa, fields: &[u8], symbols: &mut [u8]) = scalar::symbols_of;
}

compile_for_each_isa! {
    /// acc[i] += weight · (sign · scale · level) for symbols in order of likelihood.
    pub(crate) fn add_symbols(isa, symbols: &[u8], scale: f32, weight: f32, acc: &mut [f32]) = scalar::add_symbols;
}

/// Packs fields of a byte each to `bits` bits each, 2 to 8: level, and sign in the highest bit. The first field fills the
/// lowest bits of the first byte; what is left of the last byte is 0.
///
/// # Panics
/// When `out` is not as long as that takes.
pub(crate) fn pack_fields(isa: Isa, bits: u32, fields: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), (fields.len() * bits as usize).div_ceil(8), "fields and bytes differ in length");
    match bits {
        8 => out.copy_from_slice(fields),
        4 => {
            let (pairs, single) = fields.as_chunks();
            let (whole, rest) = out.split_at_mut(pairs.len());
            pack_nibbles(isa, pairs, whole);
            pack_tail(bits, single, rest);
        }
        _ => {
            let (eights, few) = fields.as_chunks();
            let (whole, rest) = out.split_at_mut(eights.len() * bits as usize);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx2 => x86_64::fields::pack_eights(bits, eights, whole),
                _ => {
                    for (fields, out) in eights.iter().zip(whole.chunks_exact_mut(bits as usize)) {
                        out.copy_from_slice(
                            &scalar::pack_eight(*fields, bits).to_le_bytes()[..bits as usize],
                        );
                    }
                }
            }
            pack_tail(bits, few, rest);
        }
    }
}

/// Fewer than eight fields.
fn pack_tail(bits: u32, fields: &[u8], out: &mut [u8]) {
    let mut eight = [0; 8];
    eight[..fields.len()].copy_from_slice(fields);
    out.copy_from_slice(&scalar::pack_eight(eight, bits).to_le_bytes()[..out.len()]);
}

/// What [`pack_fields`] made of `fields`, which begin with the first bit of `bytes`. Bytes past the end read as zero.
pub(crate) fn unpack_fields(isa: Isa, bits: u32, bytes: &[u8], fields: &mut [u8]) {
    if bits == 8 {
        return fields.copy_from_slice(&bytes[..fields.len()]);
    }
    let (eights, few) = fields.as_chunks_mut();
    let done = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::fields::unpack_eights(bits, bytes, eights),
        _ => 0,
    };
    let word = |i: usize| load_padded(bytes, i * bits as usize);
    for (i, fields) in eights.iter_mut().enumerate().skip(done) {
        *fields = scalar::unpack_eight(word(i), bits);
    }
    let last = scalar::unpack_eight(word(eights.len()), bits);
    few.copy_from_slice(&last[..few.len()]);
}

compile_for_each_isa! {
    /// Packs fields of level 0 or 1, five a byte, as digits of base 3; the last byte may hold fewer.
    pub(crate) fn pack_ternary(isa, fields: &[u8], out: &mut [u8]) = scalar::pack_ternary;
}

compile_for_each_isa! {
    /// What [`pack_ternary`] made of `fields`, which begin with the first digit of `bytes`.
    pub(crate) fn unpack_ternary(isa, bytes: &[u8], fields: &mut [u8]) = scalar::unpack_ternary;
}

/// Decodes the first rounds of `out` by vectors, as long as a round cannot run out of words; returns how many, and moves
/// `taken`, the bytes of `words` that are used. Machines without such vectors leave all of them to the caller.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "there are no such vectors"))]
pub(crate) fn decode_rounds(
    isa: Isa,
    slots: &[u32; SLOTS],
    states: &mut Lanes,
    words: &[u8],
    taken: &mut usize,
    out: &mut [[u8; ROUND]],
) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::rans::decode(isa, slots, states, words, taken, out),
        _ => 0,
    }
}

/// Encodes rounds by vectors, from the last to the first, into words that end with the first `free` bytes of `out`, as
/// long as there is room for all that a round can leave; returns how many rounds are left, and moves `free`. `seen`
/// keeps the bits that what the entries of all symbols pack has in common. Machines without such vectors leave all
/// rounds to the caller.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "there are no such vectors"))]
pub(crate) fn encode_rounds(
    isa: Isa,
    rounds: &[[u8; ROUND]],
    entries: &Entries,
    states: &mut Lanes,
    seen: &mut u32,
    out: &mut [u8],
    free: &mut usize,
) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::rans::encode(isa, rounds, entries, states, seen, out, free),
        _ => rounds.len(),
    }
}

#[cfg(test)]
mod tests;
