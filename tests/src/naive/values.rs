//! Value coders: formats of fixed width, and codebooks of magnitudes fitted to the unit.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure, finite};
use super::rans;
use gradwire::{ValueChoice, bf16, f16};

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

/// `value` in a format of fixed width, nearest even: its bytes and what they stand for.
#[must_use]
pub fn narrow(format: u8, value: f32) -> (Vec<u8>, f32) {
    match format {
        F16 => (f16::from_f32(value).to_le_bytes().to_vec(), f16::from_f32(value).to_f32()),
        BF16 => (bf16::from_f32(value).to_le_bytes().to_vec(), bf16::from_f32(value).to_f32()),
        _ => (value.to_le_bytes().to_vec(), value),
    }
}

/// Whether p − d, both of one sign and not zero, is a float: if they are far apart the difference has too many digits,
/// else f64 holds it exactly.
#[must_use]
pub fn difference_is_exact(p: f32, d: f32) -> bool {
    let [p, d] = [p, d].map(|value| f64::from(value.abs()));
    let difference = p - d;
    let far_apart = p.max(d) > p.min(d) * f64::from(1u32 << 28);
    !far_apart && f64::from(difference as f32) == difference
}

/// The values of a unit as they are sent: the section, and for each entry what it decodes to, or `None` where it stays
/// behind whole.
#[must_use]
pub fn section(choice: ValueChoice, values: &[f32]) -> (Vec<u8>, Vec<Option<f32>>) {
    match format(choice) {
        (CODEBOOK, max_log2) => codebook_section(max_log2, values),
        (format, _) => narrow_section(format, values),
    }
}

fn narrow_section(format: u8, values: &[f32]) -> (Vec<u8>, Vec<Option<f32>>) {
    let (mut section, mut decoded) = (Vec::new(), Vec::new());
    for &value in values {
        let (bytes, rounded) = narrow(format, value);
        let is_sent = rounded != 0.0 && difference_is_exact(value, rounded);
        decoded.push(is_sent.then_some(rounded));
        if is_sent {
            section.extend(bytes);
        }
    }
    (section, decoded)
}

fn codebook_section(max_log2: u32, values: &[f32]) -> (Vec<u8>, Vec<Option<f32>>) {
    if values.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let log2 = (0..max_log2).find(|&log2| values.len() <= 1 << log2).unwrap_or(max_log2);
    let book = fit(log2, values);
    let numbers: Vec<_> = values.iter().map(|&value| number_of(&book, value)).collect();
    let decode =
        |(&value, &number): (&f32, &Option<usize>)| number.map(|number| book[number].copysign(value));
    let decoded = values.iter().zip(&numbers).map(decode).collect();
    let symbols: Vec<u8> = values
        .iter()
        .zip(&numbers)
        .filter_map(|(value, number)| {
            number.map(|number| 2 * number as u8 + u8::from(value.is_sign_negative()))
        })
        .collect();
    let mut fixed = Bits::default();
    symbols.iter().for_each(|&symbol| fixed.field(u64::from(symbol), log2 + 1));
    let coded = rans::section(&symbols, 2 << log2);
    let (packing, symbols) = if coded.len() < fixed.bytes().len() { (1, coded) } else { (0, fixed.bytes()) };
    let mut section = vec![log2 as u8 | packing << 4];
    section.extend(book.iter().flat_map(|&magnitude| bf16::from_f32(magnitude).to_le_bytes()));
    section.extend(symbols);
    (section, decoded)
}

/// Halfway between two magnitudes; halves first, so that it does not overflow.
fn midpoint(a: f32, b: f32) -> f32 {
    a * 0.5 + b * 0.5
}

/// Lloyd's iteration: magnitudes spaced evenly over the bits of the floats, then twelve times each is moved to the mean
/// of the values nearest to it (summed in ascending order), then rounded to bfloat16 in ascending order, the first at
/// most twice the smallest value.
fn fit(log2: u32, values: &[f32]) -> Vec<f32> {
    let mut sorted: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    sorted.sort_by(f32::total_cmp);
    let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
    let count = 1usize << log2;
    let span = u64::from(high.to_bits() - low.to_bits());
    let start = |i: u64| f32::from_bits(low.to_bits() + (span * (2 * i + 1) / (2 * count as u64)) as u32);
    let mut book: Vec<f32> = (0..count as u64).map(start).collect();
    for _ in 0..12 {
        book = refined(&book, &sorted);
    }
    let mut floor = bf16::from_bits(1).to_f32();
    for (i, magnitude) in book.iter_mut().enumerate() {
        let bounded = if i == 0 { magnitude.min(2.0 * low) } else { *magnitude };
        floor = floor.max(bf16::from_f32(bounded).to_f32().min(bf16::MAX.to_f32()));
        *magnitude = floor;
    }
    book
}

fn refined(book: &[f32], sorted: &[f32]) -> Vec<f32> {
    let cell_of = |value: f32| {
        (0..book.len() - 1).find(|&i| value < midpoint(book[i], book[i + 1])).unwrap_or(book.len() - 1)
    };
    let mut sums = vec![(0.0f64, 0u32); book.len()];
    for &value in sorted {
        let (sum, count) = &mut sums[cell_of(value)];
        *sum += f64::from(value);
        *count += 1;
    }
    let mean = |(&old, &(sum, count)): (&f32, &(f64, u32))| {
        if count == 0 { old } else { (sum / f64::from(count)) as f32 }
    };
    book.iter().zip(&sums).map(mean).collect()
}

/// The nearest magnitude, the larger one of two equally near, or else the next smaller whose error is exact.
fn number_of(book: &[f32], value: f32) -> Option<usize> {
    let target = value.abs();
    let below = (0..book.len()).rfind(|&i| book[i] <= target);
    let above = (0..book.len()).find(|&i| book[i] > target);
    let nearest = match (below, above) {
        (Some(below), Some(above)) if target < midpoint(book[below], book[above]) => below,
        (Some(below), None) => below,
        (_, above) => above.expect("one of the two exists"),
    };
    (0..=nearest).rev().find(|&i| difference_is_exact(target, book[i]))
}

/// Reads `k` values of coder number `format`.
pub fn read(format: u8, bytes: &mut Bytes<'_>, k: usize) -> Checked<Vec<f32>> {
    match format {
        F32 => (0..k).map(|_| finite(f32::from_bits(bytes.u32()?))).collect(),
        F16 => (0..k).map(|_| finite(f16::from_bits(bytes.u16()?).to_f32())).collect(),
        BF16 => (0..k).map(|_| finite(bf16::from_bits(bytes.u16()?).to_f32())).collect(),
        CODEBOOK => read_codebook(bytes, k),
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
        _ => return Err("unknown packing of a codebook"),
    };
    let value = |symbol: u8| book[usize::from(symbol / 2)] * if symbol % 2 == 1 { -1.0 } else { 1.0 };
    Ok(symbols.into_iter().map(value).collect())
}
