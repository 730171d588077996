//! Value coders: formats of fixed width, and codebooks of magnitudes fitted to the unit.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure, finite};
use super::header::varint;
use super::planes::{self, PLANES};
use super::rans;
use gradwire::codecs::{Rounding, ValueChoice};
use gradwire::half::{bf16, f16};
use std::ops::Range;

/// Numbers of the value coders on the wire.
pub const F32: u8 = 0;
/// See [`F32`].
pub const F16: u8 = 1;
/// See [`F32`].
pub const BF16: u8 = 2;
/// See [`F32`].
pub const CODEBOOK: u8 = 3;

/// The number of the coder that a choice names, and for codebooks log2 of its largest size.
#[must_use]
pub fn format(choice: ValueChoice) -> (u8, u32) {
    match choice {
        ValueChoice::F32 => (F32, 0),
        ValueChoice::F16 => (F16, 0),
        ValueChoice::Bf16 => (BF16, 0),
        ValueChoice::Q8 => (CODEBOOK, 7),
        ValueChoice::Q4 => (CODEBOOK, 3),
        ValueChoice::Q2 => (CODEBOOK, 1),
        ValueChoice::Sign => (CODEBOOK, 0),
        _ => unreachable!("every choice is listed"),
    }
}

/// The smallest magnitude that the format cannot hold: it rounds to infinity, or is infinite.
#[must_use]
pub fn overflow_bound(format: u8) -> f32 {
    match format {
        // Half a step above the largest value, 65504 and (2 − 2⁻⁷)·2¹²⁷.
        F16 => 65_504.0 + 16.0,
        BF16 => bf16::MAX.to_f32() + f32::from_bits((127 + 119) << 23),
        _ => f32::INFINITY,
    }
}

/// The smallest magnitude that values of this choice cannot be sent with.
#[must_use]
pub fn bound(choice: ValueChoice, rounding: Rounding) -> f32 {
    match format(choice).0 {
        // The largest magnitude of a codebook is a bfloat16, and not below any value.
        CODEBOOK if rounding == Rounding::Stochastic => bf16::MAX.to_f32().next_up(),
        format => overflow_bound(format),
    }
}

/// `value` in a format of fixed width, nearest even: its bytes and what they stand for.
#[must_use]
pub fn narrow(format: u8, value: f32) -> (Vec<u8>, f32) {
    match format {
        F16 => (f16::from_f32(value).to_le_bytes().to_vec(), f16::from_f32(value).to_f32()),
        BF16 => (bf16::from_f32(value).to_le_bytes().to_vec(), bf16::from_f32(value).to_f32()),
        _ => (value.to_le_bytes().to_vec(), value),
    }
}

/// Whether p − d, both of one sign and not zero, is a float: if they are far apart the difference has too
/// many digits, else f64 holds it exactly.
#[must_use]
pub fn difference_is_exact(p: f32, d: f32) -> bool {
    let [p, d] = [p, d].map(|value| f64::from(value.abs()));
    let difference = p - d;
    let far_apart = p.max(d) > p.min(d) * f64::from(1u32 << 28);
    !far_apart && f64::from(difference as f32) == difference
}

/// What is sent of a unit's values: for each what it decodes to, or `None` where it stays behind whole. The
/// codebook, if there is one, is fitted to all of them, and any part of them can be written.
#[derive(Clone, Debug)]
pub struct Decided {
    format: u8,
    book: Vec<f32>,
    /// One for each value.
    pub decoded: Vec<Option<f32>>,
    /// Numbers of the magnitudes of those that are sent.
    numbers: Vec<usize>,
}

/// Decides what the values of a unit are sent as; with one draw out of 2³² for each, they are rounded to
/// codebooks by these.
#[must_use]
pub fn decide(choice: ValueChoice, values: &[f32], draws: Option<&[u64]>) -> Decided {
    match format(choice) {
        (CODEBOOK, max_log2) if !values.is_empty() => decide_codebook(max_log2, values, draws),
        (format, _) => {
            let decode = |&value: &f32| {
                let rounded = narrow(format, value).1;
                (rounded != 0.0 && difference_is_exact(value, rounded)).then_some(rounded)
            };
            Decided {
                format,
                book: Vec::new(),
                decoded: values.iter().map(decode).collect(),
                numbers: Vec::new(),
            }
        }
    }
}

fn decide_codebook(max_log2: u32, values: &[f32], draws: Option<&[u64]>) -> Decided {
    let log2 = log2_for(values.len()).min(max_log2);
    let (book, numbers): (Vec<f32>, Vec<Option<usize>>) = match draws {
        None => {
            let book = fit(log2, values);
            let numbers = values.iter().map(|&value| number_of(&book, value)).collect();
            (book, numbers)
        }
        Some(draws) => {
            let book = fit_covering(log2.max(1), values);
            let drawn = |(&value, &draw): (&f32, &u64)| Some(number_drawn(&book, value, draw));
            let numbers = values.iter().zip(draws).map(drawn).collect();
            (book, numbers)
        }
    };
    let decode =
        |(&value, &number): (&f32, &Option<usize>)| number.map(|number| book[number].copysign(value));
    let decoded = values.iter().zip(&numbers).map(decode).collect();
    Decided { format: CODEBOOK, book, decoded, numbers: numbers.into_iter().flatten().collect() }
}

/// The smallest power of two, as its exponent, that is at least this number.
fn log2_for(count: usize) -> u32 {
    (0..).find(|&log2| count <= 1 << log2).expect("some power is large enough")
}

impl Decided {
    /// The number of the format and the section of the sent values number `range`; if `packs_values`, in
    /// planes or with changes of sign where that is shorter.
    #[must_use]
    pub fn section(&self, range: Range<usize>, packs_values: bool) -> (u8, Vec<u8>) {
        let sent: Vec<f32> = self.decoded.iter().copied().flatten().collect();
        let sent = &sent[range.clone()];
        if self.format == CODEBOOK {
            return (CODEBOOK, codebook_section(&self.book, &self.numbers[range], sent, packs_values));
        }
        let plain: Vec<u8> = sent.iter().flat_map(|&value| narrow(self.format, value).0).collect();
        let planes = packs_values.then(|| planes::section(self.format, sent)).flatten();
        match planes.filter(|planes| planes.len() < plain.len()) {
            Some(planes) => (self.format + PLANES, planes),
            None => (self.format, plain),
        }
    }
}

/// Without the magnitudes that are not used, if that makes the book smaller; in the shortest packing, the
/// first of equals.
fn codebook_section(book: &[f32], numbers: &[usize], sent: &[f32], packs_values: bool) -> Vec<u8> {
    let used: Vec<usize> = (0..book.len()).filter(|number| numbers.contains(number)).collect();
    let log2 = log2_for(used.len());
    if 1 << log2 < book.len() {
        let numbers: Vec<usize> = numbers
            .iter()
            .map(|number| used.iter().position(|other| other == number).expect("a number in use"))
            .collect();
        let mut smaller: Vec<f32> = used.iter().map(|&number| book[number]).collect();
        smaller.resize(1 << log2, smaller[smaller.len() - 1]);
        return codebook_section(&smaller, &numbers, sent, packs_values);
    }
    let signs: Vec<bool> = sent.iter().map(|value| value.is_sign_negative()).collect();
    let symbol = |(&number, sign): (&usize, bool)| 2 * number as u8 + u8::from(sign);
    let symbols: Vec<u8> = numbers.iter().zip(signs.iter().copied()).map(symbol).collect();
    let changes: Vec<u8> = numbers.iter().zip(planes::changes(signs.iter().copied())).map(symbol).collect();
    let mut fixed = Bits::default();
    symbols.iter().for_each(|&symbol| fixed.field(u64::from(symbol), log2 + 1));
    let bits = |symbols: &[u8]| rans::ideal_bits(symbols, 2 << log2);
    let (coded, symbols) =
        if packs_values && bits(&changes) < bits(&symbols) { (3, changes) } else { (1, symbols) };
    let mut packings = vec![(0, fixed.bytes()), (coded, rans::section(&symbols, 2 << log2))];
    if (1..=3).contains(&log2) {
        packings.push((2, prefix_section(book.len(), numbers, &signs)));
    }
    let (packing, symbols) = packings.into_iter().min_by_key(|(_, bytes)| bytes.len()).expect("some packing");
    let mut section = vec![log2 as u8 | packing << 4];
    section.extend(book.iter().flat_map(|&magnitude| bf16::from_f32(magnitude).to_le_bytes()));
    section.extend(symbols);
    section
}

/// Huffman's construction: the two lightest sets of magnitudes are joined until one is left, the first made
/// of equals.
fn code_lengths(counts: &[usize]) -> Vec<u32> {
    let mut sets: Vec<(usize, Vec<usize>)> = counts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(i, &count)| (count, vec![i]))
        .collect();
    let mut lengths = vec![0; counts.len()];
    while sets.len() > 1 {
        let mut take = || {
            let lightest = (0..sets.len()).min_by_key(|&i| sets[i].0).expect("there are sets");
            sets.remove(lightest)
        };
        let (first, second) = (take(), take());
        let joined = [first.1, second.1].concat();
        joined.iter().for_each(|&i| lengths[i] += 1);
        sets.push((first.0 + second.0, joined));
    }
    lengths
}

/// Canonical codes as binary digits: shorter ones first, then lower numbers; empty where the length is 0.
fn codes(lengths: &[u32]) -> Vec<String> {
    let mut codes = vec![String::new(); lengths.len()];
    let (mut next, mut last) = (0u32, 0);
    let mut order: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
    order.sort_by_key(|&i| (lengths[i], i));
    for i in order {
        next <<= lengths[i] - last;
        last = lengths[i];
        codes[i] = format!("{next:0width$b}", width = lengths[i] as usize);
        next += 1;
    }
    codes
}

fn prefix_section(magnitudes: usize, numbers: &[usize], signs: &[bool]) -> Vec<u8> {
    let counts: Vec<usize> =
        (0..magnitudes).map(|number| numbers.iter().filter(|&&other| other == number).count()).collect();
    let lengths = code_lengths(&counts);
    let codes = codes(&lengths);
    let mut bits = Bits::default();
    lengths.iter().for_each(|&length| bits.field(u64::from(length), 3));
    for (&number, &sign) in numbers.iter().zip(signs) {
        bits.field(u64::from(sign), 1);
        bits.digits(&codes[number]);
    }
    let bytes = bits.bytes();
    [varint(bytes.len() as u64), bytes].concat()
}

/// Halfway between two magnitudes; halves first, so that it does not overflow.
fn midpoint(a: f32, b: f32) -> f32 {
    a * 0.5 + b * 0.5
}

/// Number and mean of the magnitudes in each bin that is not empty, ascending. A bin holds the magnitudes
/// whose bits agree above the lowest `shift`; `shift` is the smallest for which there are at most 512.
fn points(magnitudes: &[f32]) -> Vec<(f64, f64)> {
    let bits = |value: f32| value.to_bits();
    let low = magnitudes.iter().copied().map(bits).min().expect("there are values");
    let high = magnitudes.iter().copied().map(bits).max().expect("there are values");
    let shift = (0..).find(|&shift| (high >> shift) - (low >> shift) < 512).expect("bins of any size");
    let mut bins = std::collections::BTreeMap::new();
    for bits in magnitudes.iter().copied().map(bits) {
        let (count, sum) = bins.entry(bits >> shift).or_insert((0u32, 0u64));
        *count += 1;
        *sum += u64::from(bits % (1 << shift));
    }
    let point = |(bin, (count, sum)): (u32, (u32, u64))| {
        let start = f32::from_bits(bin << shift);
        // The distance between floats at `start`; subnormals are as far apart as the smallest normal numbers.
        let spacing = 2f64.powi((start.to_bits() >> 23).max(1) as i32 - 150);
        (f64::from(count), f64::from(start) + sum as f64 / f64::from(count) * spacing)
    };
    bins.into_iter().map(point).collect()
}

/// Lloyd's iteration: magnitudes spaced evenly over the bits of the floats, then 24 times each is moved to
/// the mean of the points nearest to it (summed in ascending order), then rounded to bfloat16 in ascending
/// order, the first at most twice the smallest value.
fn fit(log2: u32, values: &[f32]) -> Vec<f32> {
    let magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    let low = magnitudes.iter().copied().fold(f32::INFINITY, f32::min);
    let high = magnitudes.iter().copied().fold(0.0, f32::max);
    let count = 1usize << log2;
    let span = u64::from(high.to_bits() - low.to_bits());
    let start = |i: u64| f32::from_bits(low.to_bits() + (span * (2 * i + 1) / (2 * count as u64)) as u32);
    let mut book: Vec<f32> = (0..count as u64).map(start).collect();
    let points = points(&magnitudes);
    for _ in 0..24 {
        book = refined(&book, &points);
    }
    let mut floor = bf16::from_bits(1).to_f32();
    for (i, magnitude) in book.iter_mut().enumerate() {
        let mut rounded = bf16::from_f32(*magnitude).to_f32().min(bf16::MAX.to_f32());
        if i == 0 && count > 1 && rounded > 2.0 * low {
            rounded = f32::from_bits((2.0 * low).to_bits() & 0xffff_0000);
        }
        floor = floor.max(rounded);
        *magnitude = floor;
    }
    book
}

/// The same between the bfloat16 below the smallest magnitude and that above the largest, which stay where
/// they are.
#[must_use]
pub fn fit_covering(log2: u32, values: &[f32]) -> Vec<f32> {
    let magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    let low = magnitudes.iter().copied().fold(f32::INFINITY, f32::min).to_bits();
    let high = magnitudes.iter().copied().fold(0.0, f32::max).to_bits();
    let bfloat = |bits: u32| bf16::from_bits(bits.max(1) as u16).to_f32();
    let (first, last) = (bfloat(low / 65_536), bfloat(high.div_ceil(65_536)));
    let count = 1usize << log2;
    let span = u64::from(high - low);
    let start = |i: u64| f32::from_bits(low + (span * (2 * i + 1) / (2 * count as u64)) as u32);
    let mut book: Vec<f32> = (0..count as u64).map(start).collect();
    let points = points(&magnitudes);
    let pin = |book: &mut Vec<f32>| (book[0], book[count - 1]) = (first, last);
    for _ in 0..24 {
        pin(&mut book);
        book = refined(&book, &points);
    }
    pin(&mut book);
    for i in 0..count {
        let floor = if i == 0 { first } else { book[i - 1] };
        book[i] = bf16::from_f32(book[i]).to_f32().max(floor).min(last);
    }
    book
}

/// The magnitude above the value, with a probability that is the share of the way that it is there, or else
/// the one below.
fn number_drawn(book: &[f32], value: f32, draw: u64) -> usize {
    let target = f64::from(value.abs());
    let Some(above) = book.iter().position(|&magnitude| f64::from(magnitude) > target) else {
        return book.len() - 1;
    };
    if above == 0 {
        return 0;
    }
    let [low, high] = [book[above - 1], book[above]].map(f64::from);
    let is_up = (draw as f64) < (target - low) / (high - low) * 2f64.powi(32);
    if is_up { above } else { above - 1 }
}

/// Borders are those between the magnitudes as they were.
fn refined(book: &[f32], points: &[(f64, f64)]) -> Vec<f32> {
    let (mut moved, mut next) = (book.to_vec(), 0);
    for i in 0..book.len() {
        let upper =
            if i + 1 < book.len() { f64::from(midpoint(book[i], book[i + 1])) } else { f64::INFINITY };
        let cell: Vec<_> = points[next..].iter().take_while(|(_, mean)| *mean < upper).collect();
        next += cell.len();
        let weighed = cell.iter().fold(0.0f64, |sum, (count, mean)| sum + count * mean);
        let count = cell.iter().fold(0.0f64, |sum, (count, _)| sum + count);
        if count > 0.0 {
            moved[i] = (weighed / count) as f32;
        }
    }
    moved
}

/// The nearest magnitude, the larger one of two equally near, or else the next smaller whose error is exact
/// and which is at most twice the value.
fn number_of(book: &[f32], value: f32) -> Option<usize> {
    let target = value.abs();
    let nearest = book.windows(2).filter(|pair| midpoint(pair[0], pair[1]) <= target).count();
    (0..=nearest).rev().find(|&i| book[i] <= 2.0 * target && difference_is_exact(target, book[i]))
}

/// Reads `k` values of coder number `format`.
pub fn read(format: u8, bytes: &mut Bytes<'_>, k: usize) -> Checked<Vec<f32>> {
    match format {
        F32 => (0..k).map(|_| finite(f32::from_bits(bytes.u32()?))).collect(),
        F16 => (0..k).map(|_| finite(f16::from_bits(bytes.u16()?).to_f32())).collect(),
        BF16 => (0..k).map(|_| finite(bf16::from_bits(bytes.u16()?).to_f32())).collect(),
        CODEBOOK => read_codebook(bytes, k),
        PLANES..=6 => planes::read(format - PLANES, bytes, k),
        _ => Err("unknown value coder"),
    }
}

fn read_codebook(bytes: &mut Bytes<'_>, k: usize) -> Checked<Vec<f32>> {
    let head = bytes.u8()?;
    let (log2, packing) = (u32::from(head & 15), head >> 4);
    ensure(log2 <= 7, "codebook too large")?;
    let book = (0..1 << log2)
        .map(|_| finite(bf16::from_bits(bytes.u16()?).to_f32()))
        .collect::<Checked<Vec<_>>>()?;
    ensure(book.iter().all(|&magnitude| magnitude > 0.0), "magnitude not positive")?;
    ensure(book.windows(2).all(|pair| pair[0] <= pair[1]), "magnitudes do not ascend")?;
    let symbols = match packing {
        0 => {
            let mut bits = BitSource::new(bytes.take((k * (log2 as usize + 1)).div_ceil(8))?);
            let symbols = (0..k).map(|_| Ok(bits.field(log2 + 1)? as u8)).collect::<Checked<Vec<_>>>()?;
            bits.finish()?;
            symbols
        }
        1 => rans::read_section(bytes, k, 2 << log2)?,
        3 => {
            let mut sign = 0;
            let changes = rans::read_section(bytes, k, 2 << log2)?.into_iter();
            let symbol = |change| {
                sign ^= change % 2;
                change / 2 * 2 + sign
            };
            changes.map(symbol).collect()
        }
        2 if (1..=3).contains(&log2) => read_prefix(bytes, k, 1 << log2)?,
        _ => return Err("unknown packing of a codebook"),
    };
    let value = |symbol: u8| book[usize::from(symbol / 2)] * if symbol % 2 == 1 { -1.0 } else { 1.0 };
    Ok(symbols.into_iter().map(value).collect())
}

/// Symbols in prefix codes: lengths, then a sign and a code for each.
fn read_prefix(bytes: &mut Bytes<'_>, k: usize, magnitudes: usize) -> Checked<Vec<u8>> {
    let length = bytes.varint_usize()?;
    let mut bits = BitSource::new(bytes.take(length)?);
    let lengths = (0..magnitudes).map(|_| Ok(bits.field(3)? as u32)).collect::<Checked<Vec<_>>>()?;
    let share: f64 =
        lengths.iter().filter(|&&length| length > 0).map(|&length| 0.5f64.powi(length as i32)).sum();
    ensure(share == 1.0, "prefix code not complete")?;
    let codes = codes(&lengths);
    let mut symbols = Vec::new();
    for _ in 0..k {
        let sign = bits.bit()?;
        let mut code = String::new();
        let number = loop {
            code.push(if bits.bit()? { '1' } else { '0' });
            if let Some(number) = codes.iter().position(|other| *other == code) {
                break number;
            }
        };
        symbols.push(2 * number as u8 + u8::from(sign));
    }
    bits.finish()?;
    Ok(symbols)
}
