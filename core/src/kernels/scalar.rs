//! The plain loops that define every result. Inlined into one function for each instruction set; see
//! [`compile_for_each_isa`](super::isa).

use super::{Bucket, CLASS_LANES, Candidates, MomentSums, STRIDES};
use crate::entropy::rans::MAX_ALPHABET;
use crate::momentum::Momentum;
use crate::rng::stream::Stream;

/// Clears the sign of float bits.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;

/// The bits of infinity; those of NaN are above them.
const INFINITY: u32 = 0xff << 23;

/// Fields carry the sign in this bit.
pub(crate) const FIELD_SIGN: u8 = 0x80;

#[inline(always)]
pub(super) fn add_assign(residual: &mut [f32], grad: &[f32]) -> u32 {
    let mut max = 0;
    for (residual, grad) in residual.iter_mut().zip(grad) {
        *residual += grad;
        max = max.max(residual.to_bits() & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(super) fn peek_momentum(rule: Momentum, momentum: &[f32], step: &mut [f32]) {
    step.iter_mut().zip(momentum).for_each(|(step, &momentum)| *step = rule.apply(momentum, *step).1);
}

#[inline(always)]
pub(super) fn advance_momentum(rule: Momentum, momentum: &mut [f32], step: &mut [f32]) {
    for (step, momentum) in step.iter_mut().zip(momentum) {
        (*momentum, *step) = rule.apply(*momentum, *step);
    }
}

#[inline(always)]
pub(super) fn add_to(residual: &[f32], grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for ((p, residual), grad) in p.iter_mut().zip(residual).zip(grad) {
        *p = (residual + grad).to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

#[inline(always)]
pub(super) fn copy_to(grad: &[f32], p: &mut [u32]) -> u32 {
    let mut max = 0;
    for (p, grad) in p.iter_mut().zip(grad) {
        *p = grad.to_bits();
        max = max.max(*p & MAGNITUDE);
    }
    max
}

pub(super) fn keep_from(
    grad: &[f32],
    mut residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let mut max = 0;
    for (i, &grad) in grad.iter().enumerate() {
        let mut p = grad;
        if let Some(residual) = &mut residual {
            residual[i] += grad;
            p = residual[i];
        }
        let bits = p.to_bits();
        max = max.max(bits & MAGNITUDE);
        if bits & MAGNITUDE >= least {
            candidates.indices[candidates.len] = first + i as u32;
            candidates.values[candidates.len] = bits;
            candidates.len += 1;
        }
    }
    max
}

/// Entries from `at` on move down to `len` and above; returns how many there are then.
pub(super) fn compact(
    indices: &mut [u32],
    values: &mut [u32],
    at: usize,
    mut len: usize,
    least: u32,
) -> usize {
    for i in at..values.len() {
        // Written whether kept or not: a branch here would be mispredicted half of the time.
        (indices[len], values[len]) = (indices[i], values[i]);
        len += usize::from(values[i] & MAGNITUDE >= least);
    }
    len
}

pub(super) fn keep_between(p: &[u32], (low, high): (u32, u32), out: &mut [u32]) -> (usize, usize) {
    let (mut above, mut inside) = (0, 0);
    for magnitude in p.iter().map(|bits| bits & MAGNITUDE) {
        above += usize::from(magnitude > high);
        out[inside] = magnitude;
        inside += usize::from((low..=high).contains(&magnitude));
    }
    (above, inside)
}

#[inline(always)]
pub(super) fn add_moments(p: &[u32], least: u32, threshold: f64, sums: &mut MomentSums) {
    let mut add = |lane: usize, bits: u32| {
        let magnitude = bits & MAGNITUDE;
        let counts = magnitude >= least;
        let excess = if counts { f64::from(f32::from_bits(magnitude)) - threshold } else { 0.0 };
        sums.count[lane] += u64::from(counts);
        sums.sum[lane] += excess;
        sums.squares[lane] += excess * excess;
    };
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        chunk.iter().enumerate().for_each(|(lane, &bits)| add(lane, bits));
    }
    tail.iter().enumerate().for_each(|(lane, &bits)| add(lane, bits));
}

/// Mantissa in [1, 2) and exponent of a normal float above 0.
#[inline(always)]
pub(crate) fn mantissa_and_exponent(value: f64) -> (f64, i64) {
    let bits = value.to_bits();
    (f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52), (bits >> 52) as i64 - 1023)
}

#[inline(always)]
pub(super) fn multiply_magnitudes(p: &[u32], mantissas: &mut [f64; STRIDES], exponents: &mut [i64; STRIDES]) {
    let mut multiply = |lane: usize, bits: u32| {
        let magnitude = bits & MAGNITUDE;
        // Every f32 above 0 is a normal f64.
        let value = if magnitude == 0 { 1.0 } else { f64::from(f32::from_bits(magnitude)) };
        let (mantissa, exponent) = mantissa_and_exponent(value);
        mantissas[lane] *= mantissa;
        exponents[lane] += exponent;
    };
    let (chunks, tail) = p.as_chunks::<STRIDES>();
    for chunk in chunks {
        chunk.iter().enumerate().for_each(|(lane, &bits)| multiply(lane, bits));
    }
    tail.iter().enumerate().for_each(|(lane, &bits)| multiply(lane, bits));
}

#[inline(always)]
pub(super) fn max_magnitude(p: &[u32]) -> u32 {
    p.iter().fold(0, |max, &bits| max.max(bits & MAGNITUDE))
}

#[inline(always)]
pub(super) fn max_magnitude_bytes(values: &[[u8; 4]]) -> u32 {
    values.iter().fold(0, |max, &bytes| max.max(u32::from_le_bytes(bytes) & MAGNITUDE))
}

#[inline(always)]
pub(super) fn max_magnitude_narrow(values: &[[u8; 2]]) -> u16 {
    values.iter().fold(0, |max, &bytes| max.max(u16::from_le_bytes(bytes) & (MAGNITUDE >> 16) as u16))
}

#[inline(always)]
pub(super) fn add_f32(values: &[[u8; 4]], weight: f32, acc: &mut [f32]) {
    acc.iter_mut().zip(values).for_each(|(acc, &bytes)| *acc += weight * f32::from_le_bytes(bytes));
}

#[inline(always)]
pub(super) fn add_bf16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

#[inline(always)]
pub(super) fn add_f16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    for (acc, &bytes) in acc.iter_mut().zip(values) {
        *acc += weight * widen_f16(u16::from_le_bytes(bytes));
    }
}

/// A half-precision value as f32, without branches: the mantissa and exponent bits are read as a float 2¹¹² times too small,
/// which subnormals survive as well as normals. Infinities and NaN get their exponent afterwards.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let exponent = if bits & 0x7c00 == 0x7c00 { INFINITY } else { 0 };
    f32::from_bits(magnitude.to_bits() | exponent | u32::from(bits & 0x8000) << 16)
}

#[inline(always)]
pub(super) fn put_f32(p: &[u32], out: &mut [[u8; 4]]) {
    out.iter_mut().zip(p).for_each(|(out, bits)| *out = bits.to_le_bytes());
}

#[inline(always)]
pub(super) fn put_bf16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        // Half of the last place, less one where the kept part is even: ties go to even.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        *out = ((rounded >> 16) as u16).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn put_f16(p: &[u32], out: &mut [[u8; 2]]) {
    for (out, &bits) in out.iter_mut().zip(p) {
        *out = narrow_f16(bits).to_le_bytes();
    }
}

/// Bits of a value as half precision, without branches. Normal results round as [`put_bf16`] does, and end with infinity; a
/// sum with ½, whose last place is the smallest half-precision value, rounds the others.
#[inline(always)]
fn narrow_f16(bits: u32) -> u16 {
    let magnitude = bits & MAGNITUDE;
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    let normal = (rounded.wrapping_sub(112 << 23) >> 13).min(0x7c00);
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let half = if magnitude < 113 << 23 { subnormal } else { normal };
    let half = if magnitude > INFINITY { 0x7e00 | magnitude >> 13 & 0x3ff } else { half };
    half as u16 | (bits >> 16) as u16 & 0x8000
}

/// Eight strided partial sums of squares; what is added to them begins at a multiple of eight.
pub(crate) type Squares = [f64; 8];

/// Halves are added to halves: 0+4, 1+5, 2+6, 3+7; 0+2, 1+3; 0+1.
pub(crate) fn total_of([a, b, c, d, e, f, g, h]: Squares) -> f64 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[inline(always)]
pub(super) fn add_squares(p: &[u32], sums: &mut Squares) {
    strided_squares(p, sums, |&bits| f32::from_bits(bits));
}

#[inline(always)]
pub(super) fn sum_of_squares_f32(values: &[f32]) -> f64 {
    let mut sums = [0.0; WIDE_STRIDES];
    strided_squares(values, &mut sums, |&value| value);
    let (wide, narrow) = (sums.as_chunks::<8>().0, [0.0; 8]);
    total_of(wide.iter().fold(narrow, |total, sums| core::array::from_fn(|i| total[i] + sums[i])))
}

/// Where a sum is long: four vectors of them are added to at a time, so that none waits for the sum before.
const WIDE_STRIDES: usize = 32;

#[inline(always)]
fn strided_squares<T, const STRIDES: usize>(
    values: &[T],
    sums: &mut [f64; STRIDES],
    value: impl Fn(&T) -> f32,
) {
    let (chunks, tail) = values.as_chunks::<STRIDES>();
    for chunk in chunks {
        for (sum, element) in sums.iter_mut().zip(chunk) {
            let value = f64::from(value(element));
            *sum += value * value;
        }
    }
    for (sum, element) in sums.iter_mut().zip(tail) {
        let value = f64::from(value(element));
        *sum += value * value;
    }
}

#[inline(always)]
pub(super) fn divide(values: &mut [f32], divisor: f32) -> bool {
    // The reciprocal of a power of two is exact, so the product is the quotient, and takes a fraction of its time.
    let is_power_of_two = divisor >= 1.0 && divisor.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    if is_power_of_two {
        let factor = divisor.recip();
        change_each(values, |value| value * factor)
    } else {
        change_each(values, |value| value / divisor)
    }
}

#[inline(always)]
fn change_each(values: &mut [f32], change: impl Fn(f32) -> f32) -> bool {
    values.iter_mut().fold(true, |are_finite, value| {
        *value = change(*value);
        are_finite & value.is_finite()
    })
}

#[inline(always)]
pub(super) fn are_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |are_finite, value| are_finite & value.is_finite())
}

/// Adding 2²³ to a float in 0 ‥ 2²³ leaves the nearest integer, ties to even, in the low mantissa bits: the rounding
/// of the vector conversions, without a library call.
pub(super) const ROUND_MAGIC: f32 = 8_388_608.0;

/// Half a level in units of 2⁻¹⁶: what nearest rounding draws.
pub(super) const HALF: u32 = 1 << 15;

/// Draws that are made at a time: 16 blocks of the generator.
const DRAWS: usize = 128;

#[inline(always)]
pub(super) fn quantize(p: &[u32], bucket: &Bucket, stream: Option<&Stream>, fields: &mut [u8]) {
    let Some(stream) = stream else {
        for (field, &bits) in fields.iter_mut().zip(p) {
            *field = nearest(bits, bucket);
        }
        return;
    };
    let mut draws = [0u16; DRAWS];
    // The first draws may begin inside a block.
    let mut skip = (bucket.first % 8) as usize;
    let mut block = bucket.first / 8;
    let (mut p, mut fields) = (p, fields);
    while !p.is_empty() {
        stream.fill_u16_plainly(block, &mut draws);
        let len = p.len().min(DRAWS - skip);
        let (now, later) = p.split_at(len);
        let (fields_now, fields_later) = fields.split_at_mut(len);
        for ((field, &bits), &draw) in fields_now.iter_mut().zip(now).zip(&draws[skip..]) {
            *field = level_field(bits, fixed_point(bits, bucket) + u32::from(draw));
        }
        (p, fields) = (later, fields_later);
        block += (DRAWS / 8) as u64;
        skip = 0;
    }
}

/// Level from a sum in units of 2⁻¹⁶, and the sign of `bits` in bit 7.
#[inline(always)]
fn level_field(bits: u32, sum: u32) -> u8 {
    (sum >> 16) as u8 | ((bits >> 24) as u8 & FIELD_SIGN)
}

#[inline(always)]
fn nearest(bits: u32, bucket: &Bucket) -> u8 {
    let magnitude = f32::from_bits(bits & MAGNITUDE);
    let sum = fixed_point(bits, bucket) + HALF;
    // Error feedback needs an exact error: a value below half of level 1 is level 0, however its product was rounded.
    let is_zero = magnitude + magnitude < bucket.scale;
    level_field(bits, if is_zero { 0 } else { sum })
}

/// min(|p|·inverse, levels) in units of 2⁻¹⁶, nearest even.
#[inline(always)]
fn fixed_point(bits: u32, bucket: &Bucket) -> u32 {
    let level = f32::from_bits(bits & MAGNITUDE) * bucket.inverse;
    let largest = bucket.levels as f32;
    let level = if level < largest { level } else { largest };
    (level * 65_536.0 + ROUND_MAGIC).to_bits() & 0x007f_ffff
}

#[inline(always)]
pub(super) fn keep_rounding(p: &[u32], fields: &[u8], scale: f32, residual: &mut [f32]) {
    for ((residual, &bits), &field) in residual.iter_mut().zip(p).zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        let decoded = f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
        *residual = f32::from_bits(bits) - decoded;
    }
}

#[inline(always)]
pub(super) fn pack_nibbles(fields: &[[u8; 2]], out: &mut [u8]) {
    let nibble = |field: u8| field & 7 | field >> 4 & 8;
    out.iter_mut().zip(fields).for_each(|(out, &[low, high])| *out = nibble(low) | nibble(high) << 4);
}

#[inline(always)]
pub(super) fn add_nibbles(packed: &[u8], scale: f32, weight: f32, acc: &mut [[f32; 2]]) {
    let value = |nibble: u32| {
        let magnitude = scale * (nibble & 7) as f32;
        f32::from_bits(magnitude.to_bits() | (nibble & 8) << 28)
    };
    for (acc, &byte) in acc.iter_mut().zip(packed) {
        acc[0] += weight * value(u32::from(byte));
        acc[1] += weight * value(u32::from(byte) >> 4);
    }
}

#[inline(always)]
pub(super) fn add_bytes(fields: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    for (acc, &field) in acc.iter_mut().zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        *acc += weight * f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
    }
}

/// The bits of a byte that a field of `bits` bits keeps: the level, and the sign in the highest one.
pub(super) fn field_mask(bits: u32) -> u8 {
    FIELD_SIGN | ((1 << (bits - 1)) - 1)
}

/// Eight fields of `bits` bits in a row, the first lowest.
pub(super) fn pack_eight(fields: [u8; 8], bits: u32) -> u64 {
    let packed = |field: u8| field & field_mask(bits) & !FIELD_SIGN | field >> 7 << (bits - 1);
    fields.iter().rev().fold(0, |word, &field| word << bits | u64::from(packed(field)))
}

/// What [`pack_eight`] made of eight fields, back to a byte each.
pub(super) fn unpack_eight(word: u64, bits: u32) -> [u8; 8] {
    let field = |i: usize| (word >> (bits as usize * i)) as u8 & ((1u16 << bits) - 1) as u8;
    core::array::from_fn(|i| field(i) & field_mask(bits) & !FIELD_SIGN | field(i) >> (bits - 1) << 7)
}

/// Weights of five digits of base 3, the first coordinate's lowest, from the top: in a product with five bytes, each
/// below 3, they meet in byte 4, and the bytes below it carry nothing into it.
const DIGIT_WEIGHTS: u64 = u64::from_le_bytes([81, 27, 9, 3, 1, 0, 0, 0]);

/// Five base-3 digits a byte: 0, 1 for +1, 2 for −1.
#[inline(always)]
pub(super) fn pack_ternary(fields: &[u8], out: &mut [u8]) {
    let (fives, few) = fields.as_chunks::<5>();
    let byte = |[a, b, c, d, e]: [u8; 5]| {
        let fields = u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]);
        let digits = fields & LOWEST_BITS;
        // A level of 1 with its sign set counts twice.
        let digits = digits + (digits & fields >> 7);
        (digits.wrapping_mul(DIGIT_WEIGHTS) >> 32) as u8
    };
    out.iter_mut().zip(fives).for_each(|(out, &five)| *out = byte(five));
    if let Some(last) = out.get_mut(fives.len()) {
        let mut five = [0; 5];
        five[..few.len()].copy_from_slice(few);
        *last = byte(five);
    }
}

/// The lowest bit of every byte.
const LOWEST_BITS: u64 = 0x0101_0101_0101_0101;

/// The five fields of every byte of [`pack_ternary`], and three that belong to nobody.
static FIVE_FIELDS: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut i = 0;
    while i < 243 * 5 {
        let (byte, place) = (i / 5, i % 5);
        let digit = byte / 3usize.pow(place as u32) % 3;
        table[byte][place] = [0, 1, FIELD_SIGN | 1][digit];
        i += 1;
    }
    table
};

#[inline(always)]
pub(super) fn unpack_ternary(bytes: &[u8], fields: &mut [u8]) {
    for (fields, &byte) in fields.chunks_mut(5).zip(bytes) {
        let five = &FIVE_FIELDS[usize::from(byte)];
        match fields.first_chunk_mut::<5>() {
            Some(fields) => *fields = [five[0], five[1], five[2], five[3], five[4]],
            None => fields.copy_from_slice(&five[..fields.len()]),
        }
    }
}

/// Symbols from which on it pays to count in several tables.
const MANY: usize = 1024;

/// Long runs are counted in four tables by turns: neighbours are often the same symbol, and one counter would wait for
/// itself.
pub(super) fn histogram(symbols: &[u8], counts: &mut [u32]) {
    if symbols.len() < MANY {
        return symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    }
    let mut tables = [[0u32; MAX_ALPHABET]; 4];
    let (fours, rest) = symbols.as_chunks::<4>();
    for four in fours {
        tables.iter_mut().zip(four).for_each(|(table, &symbol)| table[usize::from(symbol)] += 1);
    }
    rest.iter().for_each(|&symbol| tables[0][usize::from(symbol)] += 1);
    for table in &tables {
        counts.iter_mut().zip(table).for_each(|(count, more)| *count += more);
    }
}

#[inline(always)]
pub(super) fn counted_class_costs(
    counts: &[u32],
    costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
    sums: &mut [u32; CLASS_LANES],
) {
    let mut total = *sums;
    for (&count, costs) in counts.iter().zip(costs) {
        total.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += count * cost);
    }
    *sums = total;
}

#[inline(always)]
pub(super) fn class_costs(
    symbols: &[u8],
    costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
    sums: &mut [u32; CLASS_LANES],
) {
    // In a variable of its own, it stays in registers.
    let mut total = *sums;
    for &symbol in symbols {
        total.iter_mut().zip(&costs[usize::from(symbol)]).for_each(|(sum, cost)| *sum += cost);
    }
    *sums = total;
}

/// Symbols in order of likelihood: 0, +1, −1, +2, −2, …
#[inline(always)]
pub(super) fn symbols_of(fields: &[u8], symbols: &mut [u8]) {
    for (symbol, &field) in symbols.iter_mut().zip(fields) {
        let is_positive = !field >> 7;
        *symbol = (field << 1).saturating_sub(is_positive);
    }
}

#[inline(always)]
pub(super) fn add_symbols(symbols: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    for (acc, &symbol) in acc.iter_mut().zip(symbols) {
        let symbol = u32::from(symbol);
        let magnitude = scale * symbol.div_ceil(2) as i32 as f32;
        let is_negative = u32::from(symbol > 0) & !symbol;
        *acc += weight * f32::from_bits(magnitude.to_bits() | is_negative << 31);
    }
}
