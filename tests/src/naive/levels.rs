//! QSGD: norms, levels, and the five ways to pack them.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure, finite};
use super::draws::Draws;
use super::header::varint;
use super::{classes, elias, level_stream, rans};
use gradwire::codecs::{Cutoff, EntropyChoice, LevelBits, Norm, Qsgd};
use std::ops::Range;

/// Numbers of the packings on the wire.
const FIXED: u8 = 0;
const ELIAS: u8 = 1;
const RANS: u8 = 2;
const TERNARY: u8 = 3;
const CONTEXT: u8 = 4;

/// What stands for the width where the number of levels is stated.
const COUNTED: u8 = 10;

/// Numbers of the codings of norms on the wire.
const PLAIN: u8 = 0;
const PLANES: u8 = 1;
const STREAM: u8 = 2;

/// Buckets whose norm is below this are sent as zeros: 2⁻¹⁰⁰.
const LEAST_NORM: f64 = 7.888_609_052_210_118e-31;

/// Bits of a field with a level up to `s` and its sign.
#[must_use]
pub fn width(s: u32) -> u32 {
    (0..).find(|digits| s < 1 << digits).expect("s has 32 digits at the most") + 1
}

/// The width as the first byte has it, and the byte that states the number of levels.
fn form(bits: LevelBits) -> (u8, Vec<u8>) {
    match bits {
        LevelBits::Bits(bits) => (bits, Vec::new()),
        LevelBits::Ternary => (2, Vec::new()),
        LevelBits::Levels(s) => (COUNTED, vec![s]),
        other => panic!("the reference does not know {other:?}"),
    }
}

/// A level and whether it is negative.
pub type Level = (u32, bool);

/// The norm of one bucket as f32.
#[must_use]
pub fn bucket_norm(norm: Norm, p: &[f32]) -> f32 {
    let norm = match norm {
        Norm::L2 => sum_of_squares(p).sqrt() as f32,
        Norm::Max => p.iter().fold(0.0f32, |max, value| max.max(value.abs())),
        other => panic!("the reference does not know {other:?}"),
    };
    if f64::from(norm) < LEAST_NORM { 0.0 } else { norm }
}

/// The norm `max` where magnitudes above some standard deviations count as these.
#[must_use]
pub fn cut_off_norm(cutoff: Option<Cutoff>, p: &[f32]) -> f32 {
    let n = p.len() as f64;
    let mean = strided_sum(p, f64::from) / n;
    let variance = sum_of_squares(p) / n - mean * mean;
    let mut norm = bucket_norm(Norm::Max, p);
    if let Some(cutoff) = cutoff.filter(|_| variance >= mean * mean) {
        norm = norm.min((f64::from(cutoff.sigmas()) * variance.sqrt()) as f32);
    }
    if f64::from(norm) < LEAST_NORM { 0.0 } else { norm }
}

fn sum_of_squares(p: &[f32]) -> f64 {
    strided_sum(p, |v| f64::from(v) * f64::from(v))
}

/// In f64, as eight partial sums with a stride of eight; then halves are added to halves.
fn strided_sum(p: &[f32], of: impl Fn(f32) -> f64) -> f64 {
    let lane = |lane: usize| p.iter().skip(lane).step_by(8).fold(0.0, |sum, &v| sum + of(v));
    let sums: [f64; 8] = std::array::from_fn(lane);
    let fours: [f64; 4] = std::array::from_fn(|i| sums[i] + sums[i + 4]);
    let twos: [f64; 2] = std::array::from_fn(|i| fours[i] + fours[i + 2]);
    twos[0] + twos[1]
}

/// The level of `value` in a bucket with this norm, with a 16-bit draw for stochastic rounding or none for
/// nearest: in units of 2⁻¹⁶ levels, ⌊a + draw⌋, a rounded to nearest even; nearest draws one half.
#[must_use]
pub fn level(value: f32, norm: f32, levels: u32, draw: Option<u16>) -> Level {
    let per_unit = levels as f32 / norm;
    let a = (value.abs() * per_unit).min(levels as f32);
    let fixed = (f64::from(a) * 65_536.0).round_ties_even() as u64;
    let mut level = ((fixed + draw.map_or(32_768, u64::from)) / 65_536) as u32;
    // The error of a level above twice the value would not be a float.
    if draw.is_none() && level == 1 && 2.0 * value.abs() < norm / levels as f32 {
        level = 0;
    }
    (level, value.is_sign_negative())
}

/// What a level decodes to.
#[must_use]
pub fn value((level, is_negative): Level, norm: f32, levels: u32) -> f32 {
    let magnitude = norm / levels as f32 * level as f32;
    if is_negative { -magnitude } else { magnitude }
}

/// Symbols in order of likelihood: 0, +1, −1, +2, −2, …
fn symbol((level, is_negative): Level) -> u8 {
    if level == 0 { 0 } else { (2 * level - u32::from(!is_negative)) as u8 }
}

fn from_symbol(symbol: u8) -> Level {
    (u32::from(symbol).div_ceil(2), symbol > 0 && symbol.is_multiple_of(2))
}

fn pack_fixed(levels: &[Level], bits: u32) -> Vec<u8> {
    let mut out = Bits::default();
    for &(level, is_negative) in levels {
        out.field(u64::from(level), bits - 1);
        out.field(u64::from(is_negative), 1);
    }
    out.bytes()
}

fn pack_ternary(levels: &[Level]) -> Vec<u8> {
    let digit = |level: &Level| match level {
        (0, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    };
    let byte = |levels: &[Level]| {
        levels.iter().zip([1, 3, 9, 27, 81]).map(|(level, weight)| digit(level) * weight).sum()
    };
    levels.chunks(5).map(byte).collect()
}

/// The levels of a unit.
#[derive(Clone, Debug)]
pub struct Rounded {
    norms: Vec<f32>,
    levels: Vec<Level>,
}

/// Rounds a unit.
#[must_use]
pub fn round(qsgd: &Qsgd, p: &[f32], draws: Option<&Draws>) -> Rounded {
    let (s, bucket) = (qsgd.bits().levels(), qsgd.bucket().get() as usize);
    let (mut norms, mut levels) = (Vec::new(), Vec::new());
    for (first, values) in (0..).step_by(bucket).zip(p.chunks(bucket)) {
        let norm = match qsgd.norm() {
            Norm::Max => cut_off_norm(qsgd.cutoff(), values),
            norm => bucket_norm(norm, values),
        };
        norms.push(norm);
        for (i, &v) in values.iter().enumerate() {
            let draw = draws.map(|draws| draws.u16_at(first + i as u64));
            levels.push(if norm == 0.0 { (0, false) } else { level(v, norm, s, draw) });
        }
    }
    Rounded { norms, levels }
}

impl Rounded {
    /// Coordinates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether there are no coordinates.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// What the unit decodes to.
    #[must_use]
    pub fn decoded(&self, qsgd: &Qsgd) -> Vec<f32> {
        let (s, bucket) = (qsgd.bits().levels(), qsgd.bucket().get() as usize);
        self.levels.iter().enumerate().map(|(i, &level)| value(level, self.norms[i / bucket], s)).collect()
    }

    /// The body of the unit.
    #[must_use]
    pub fn body(&self, qsgd: &Qsgd) -> Vec<u8> {
        self.body_of(qsgd, 0..self.len())
    }

    /// The body of a packet with these coordinates: whole buckets, or a part of one; any coordinates where
    /// they are under context.
    #[must_use]
    pub fn piece(&self, qsgd: &Qsgd, range: Range<usize>) -> Vec<u8> {
        match qsgd.entropy() {
            EntropyChoice::Auto | EntropyChoice::Adaptive => self.stream_of(qsgd, range),
            _ => self.body_of(qsgd, range),
        }
    }

    fn stream_of(&self, qsgd: &Qsgd, range: Range<usize>) -> Vec<u8> {
        let bucket = qsgd.bucket().get() as usize;
        let (form, count) = form(qsgd.bits());
        let mut buckets: Vec<level_stream::Bucket> = Vec::new();
        for i in range.clone() {
            if i == range.start || i.is_multiple_of(bucket) {
                buckets.push((self.norms[i / bucket], Vec::new()));
            }
            buckets.last_mut().expect("the first begins one").1.push(self.levels[i]);
        }
        let stream = level_stream::write(qsgd.bits().levels(), &buckets);
        let mut body = vec![form | CONTEXT << 4, qsgd.norm() as u8 | STREAM << 4];
        body.extend(count);
        for field in [bucket, bucket - range.start % bucket, stream.len()] {
            body.extend(varint(field as u64));
        }
        body.extend(stream);
        body
    }

    fn body_of(&self, qsgd: &Qsgd, range: Range<usize>) -> Vec<u8> {
        let (s, bucket) = (qsgd.bits().levels(), qsgd.bucket().get() as usize);
        let all = &self.levels[range.clone()];
        let norm_of = |i: usize| self.norms[i / bucket];
        let coded: Vec<Level> =
            range.clone().filter(|&i| norm_of(i) != 0.0).map(|i| self.levels[i]).collect();
        let buckets = range.start / bucket..range.end.div_ceil(bucket);
        let norms: Vec<u8> = self.norms[buckets].iter().flat_map(|norm| norm.to_le_bytes()).collect();
        let simple = match qsgd.bits() {
            LevelBits::Ternary => (TERNARY, pack_ternary(all)),
            _ => (FIXED, pack_fixed(all, width(s))),
        };
        let symbols: Vec<u8> = coded.iter().map(|&level| symbol(level)).collect();
        let alphabet = 2 * s as usize + 1;
        let plain = |(packing, levels): (u8, Vec<u8>)| (packing, PLAIN, [norms.clone(), levels].concat());
        let elias = || {
            let codes = elias::pack(&coded);
            (ELIAS, [varint(codes.len() as u64), codes].concat())
        };
        let adaptive = || {
            let levels = classes::section(&symbols, alphabet, all.len());
            (RANS, PLANES, [in_planes(&norms), levels].concat())
        };
        let rans = || plain((RANS, rans::section(&symbols, alphabet)));
        let (packing, coding, rest) = match qsgd.entropy() {
            EntropyChoice::Fixed => plain(simple),
            EntropyChoice::Elias => plain(elias()),
            EntropyChoice::Rans => rans(),
            EntropyChoice::Adaptive => adaptive(),
            // The first of the smallest.
            EntropyChoice::Auto => {
                let all = [plain(simple), rans(), adaptive()];
                all.into_iter().min_by_key(|(_, _, rest)| rest.len()).expect("there are three")
            }
            other => panic!("the reference does not know {other:?}"),
        };
        let (form, count) = form(qsgd.bits());
        let mut body = vec![form | packing << 4, qsgd.norm() as u8 | coding << 4];
        body.extend(count);
        body.extend(varint(bucket as u64));
        body.extend(rest);
        body
    }
}

/// Norms as exponents in rANS, and the mantissas of those that are not 0.
fn in_planes(norms: &[u8]) -> Vec<u8> {
    let bits = |norm: &[u8]| u32::from_le_bytes(norm.try_into().expect("four bytes"));
    let norms: Vec<u32> = norms.chunks(4).map(bits).collect();
    let exponents: Vec<u8> = norms.iter().map(|bits| (bits >> 23) as u8).collect();
    let set: Vec<u32> = norms.into_iter().filter(|bits| *bits != 0).collect();
    let mut mantissas = Bits::default();
    set.iter().for_each(|bits| mantissas.field(u64::from(bits & 0x7f_ffff), 23));
    [rans::section(&exponents, 255), varint(set.len() as u64), mantissas.bytes()].concat()
}

fn read_planes(bytes: &mut Bytes<'_>, buckets: usize) -> Checked<Vec<f32>> {
    let exponents = rans::read_section(bytes, buckets, 255)?;
    let set = bytes.varint_usize()?;
    ensure(set == exponents.iter().filter(|exponent| **exponent > 0).count(), "another number of norms")?;
    let mut mantissas = BitSource::new(bytes.take((set * 23).div_ceil(8))?);
    let mut norms = Vec::new();
    for exponent in exponents {
        let mantissa = if exponent > 0 { mantissas.field(23)? as u32 } else { 0 };
        norms.push(f32::from_bits(u32::from(exponent) << 23 | mantissa));
    }
    mantissas.finish()?;
    Ok(norms)
}

/// The rest of a body under context.
fn read_stream(bytes: &mut Bytes<'_>, len: usize, s: u32, bucket: usize) -> Checked<Vec<f32>> {
    let first = bytes.varint_usize()?;
    ensure((1..=bucket).contains(&first), "the first bucket is longer than the others, or empty")?;
    let length = bytes.varint_usize()?;
    let mut sizes = vec![first.min(len); usize::from(len > 0)];
    while sizes.iter().sum::<usize>() < len {
        sizes.push(bucket.min(len - sizes.iter().sum::<usize>()));
    }
    let mut values = Vec::new();
    for (norm, levels) in level_stream::read(bytes.take(length)?, s, &sizes)? {
        finite(value((s, false), norm, s))?;
        ensure(levels.iter().all(|&(level, _)| level <= s), "a level above the largest")?;
        values.extend(levels.into_iter().map(|level| value(level, norm, s)));
    }
    Ok(values)
}

/// Reads the body of a unit of `len` elements: one value a coordinate.
pub fn read(bytes: &mut Bytes<'_>, len: usize) -> Checked<Vec<f32>> {
    let (form, norm) = (bytes.u8()?, bytes.u8()?);
    let (first, packing, norm_kind) = (form & 15, form >> 4, norm & 15);
    ensure((2..=8).contains(&first) || first == COUNTED, "level width out of range")?;
    ensure(norm_kind < 2, "unknown norm")?;
    let s = if first == COUNTED { u32::from(bytes.u8()?) } else { (1 << (first - 1)) - 1 };
    ensure((1..=127).contains(&s), "number of levels out of range")?;
    let bits = width(s);
    let bucket = bytes.varint_usize()?;
    ensure((1..=u32::MAX as usize).contains(&bucket), "bucket size out of range")?;
    if (packing, norm >> 4) == (CONTEXT, STREAM) {
        return read_stream(bytes, len, s, bucket);
    }
    let buckets = len.div_ceil(bucket);
    let norms = match norm >> 4 {
        PLAIN => (0..buckets).map(|_| Ok(f32::from_bits(bytes.u32()?))).collect::<Checked<Vec<_>>>()?,
        PLANES => read_planes(bytes, buckets)?,
        _ => return Err("unknown coding of norms"),
    };
    let norm_of = |i: usize| norms[i / bucket];
    let coded: Vec<usize> = (0..len).filter(|&i| norm_of(i) != 0.0).collect();
    let mut levels = vec![(0, false); len];
    match packing {
        FIXED => {
            let mut source = BitSource::new(bytes.take((len * bits as usize).div_ceil(8))?);
            for level in &mut levels {
                *level = (source.field(bits - 1)? as u32, source.bit()?);
            }
            source.finish()?;
            ensure(levels.iter().all(|&(level, _)| level <= s), "a level above the largest")?;
        }
        ELIAS => {
            let length = bytes.varint_usize()?;
            let read = elias::unpack(bytes.take(length)?, coded.len(), s)?;
            coded.iter().zip(read).for_each(|(&i, level)| levels[i] = level);
        }
        RANS => {
            let read = rans::read_classed_section(bytes, coded.len(), 2 * s as usize + 1)?;
            coded.iter().zip(read).for_each(|(&i, symbol)| levels[i] = from_symbol(symbol));
        }
        TERNARY => {
            ensure(first == 2, "ternary packing of wider levels")?;
            let packed = bytes.take(len.div_ceil(5))?;
            ensure(packed.iter().all(|&byte| byte < 243), "more than five digits in a byte")?;
            for i in 0..packed.len() * 5 {
                let digit = packed[i / 5] / [1, 3, 9, 27, 81][i % 5] % 3;
                match levels.get_mut(i) {
                    Some(level) => *level = (u32::from(digit > 0), digit == 2),
                    None => ensure(digit == 0, "padding digits are not zero")?,
                }
            }
        }
        _ => return Err("unknown packing"),
    }
    for &norm in &norms {
        ensure(!finite(norm)?.is_sign_negative(), "negative norm")?;
        finite(value((s, false), norm, s))?;
    }
    Ok((0..len).map(|i| value(levels[i], norm_of(i), s)).collect())
}
