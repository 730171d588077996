//! Values of a fixed format in two planes: their upper bits, with changes of sign, in rANS, their lower bits
//! as they are.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure};
use super::header::varint;
use super::rans;
use super::values::{BF16, F16, narrow};
use gradwire::half::{bf16, f16};

/// The number of a format in planes, above that of the format itself.
pub const PLANES: u8 = 4;

/// Bits of the fraction, and of the whole number.
fn widths(format: u8) -> (u32, u32) {
    match format {
        F16 => (10, 16),
        BF16 => (7, 16),
        _ => (23, 32),
    }
}

/// Sign and magnitude bits of a number in the format.
fn parts(format: u8, value: f32) -> (bool, u64) {
    let number = narrow(format, value).0.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    (value.is_sign_negative(), number % (1 << (widths(format).1 - 1)))
}

/// Whether each sign is not the one before, which ahead of the first is positive.
pub fn changes(signs: impl Iterator<Item = bool> + Clone) -> impl Iterator<Item = bool> {
    signs.clone().zip(std::iter::once(false).chain(signs)).map(|(sign, before)| sign != before)
}

/// A way to cut magnitudes in two: the length of the tails, the first head and one symbol a value.
struct Cut {
    shift: u32,
    low: u64,
    alphabet: usize,
    symbols: Vec<u8>,
}

impl Cut {
    fn new(shift: u32, parts: &[(bool, u64)]) -> Option<Self> {
        let heads: Vec<u64> = parts.iter().map(|part| part.1 >> shift).collect();
        let (low, high) = (*heads.iter().min()?, *heads.iter().max()?);
        let alphabet = 2 * (high - low + 1) as usize;
        let changes = changes(parts.iter().map(|part| part.0));
        let symbols =
            heads.iter().zip(changes).map(|(head, change)| 2 * (head - low) as u8 + u8::from(change));
        (alphabet <= 256).then(|| Self { shift, low, alphabet, symbols: symbols.collect() })
    }

    /// Whole bits of symbols, table and tails.
    fn bits(&self) -> u64 {
        rans::ideal_bits(&self.symbols, self.alphabet) + self.symbols.len() as u64 * u64::from(self.shift)
    }

    fn section(&self, parts: &[(bool, u64)]) -> Vec<u8> {
        let head = [self.shift as u8, (self.alphabet / 2 - 1) as u8];
        let mut tails = Bits::default();
        parts.iter().for_each(|part| tails.field(part.1 % (1 << self.shift), self.shift));
        let symbols = rans::section(&self.symbols, self.alphabet);
        [&head[..], &varint(self.low), &symbols, &tails.bytes()].concat()
    }
}

/// The section of `values`, which the format holds, at the cut with the fewest bits, the one with the longest
/// tails of equals; none where exponents alone are too many.
#[must_use]
pub fn section(format: u8, values: &[f32]) -> Option<Vec<u8>> {
    let parts: Vec<_> = values.iter().map(|&value| parts(format, value)).collect();
    let cuts = (0..=widths(format).0).rev().map_while(|shift| Cut::new(shift, &parts));
    cuts.min_by_key(Cut::bits).map(|cut| cut.section(&parts))
}

/// Reads `k` values in the planes of `format`, the number of the format itself.
pub fn read(format: u8, bytes: &mut Bytes<'_>, k: usize) -> Checked<Vec<f32>> {
    let (fraction, width) = widths(format);
    let infinity = (1u64 << (width - 1)) - (1 << fraction);
    let (shift, heads) = (u32::from(bytes.u8()?), u64::from(bytes.u8()?) + 1);
    let low = bytes.varint()?;
    ensure(shift <= fraction, "tails longer than fractions")?;
    ensure(heads <= 128, "too many heads")?;
    ensure(low < 1 << 32 && (low + heads) << shift <= infinity, "heads of what is not finite")?;
    let symbols = rans::read_section(bytes, k, 2 * heads as usize)?;
    let mut tails = BitSource::new(bytes.take((k * shift as usize).div_ceil(8))?);
    let mut is_negative = false;
    let mut values = Vec::new();
    for symbol in symbols {
        let magnitude = (low + u64::from(symbol / 2)) << shift | tails.field(shift)?;
        let magnitude = match format {
            F16 => f16::from_bits(magnitude as u16).to_f32(),
            BF16 => bf16::from_bits(magnitude as u16).to_f32(),
            _ => f32::from_bits(magnitude as u32),
        };
        is_negative ^= symbol % 2 == 1;
        values.push(if is_negative { -magnitude } else { magnitude });
    }
    tails.finish()?;
    Ok(values)
}
