//! Elias omega, with digits in a string.

use super::bits::{BitSource, Bits};
use super::decode::Checked;

/// The code of `v` ≥ 1: start from "0"; while x > 1, put the digits of x in front and go on with their number
/// less one.
#[must_use]
pub fn code(v: u32) -> String {
    let (mut code, mut x) = (String::from("0"), v);
    while x > 1 {
        let digits = format!("{x:b}");
        x = digits.len() as u32 - 1;
        code = digits + &code;
    }
    code
}

/// Levels and signs as the `elias` packing writes them: the code of level + 1, then a sign bit where the
/// level is not 0.
#[must_use]
pub fn pack(fields: &[(u32, bool)]) -> Vec<u8> {
    let mut bits = Bits::default();
    for &(level, is_negative) in fields {
        bits.digits(&code(level + 1));
        if level > 0 {
            bits.field(u64::from(is_negative), 1);
        }
    }
    bits.bytes()
}

/// One code; a value above `max` counts as `max`, and so does a group of more than 32 digits, of which only
/// the first is read.
fn take(bits: &mut BitSource<'_>, max: u32) -> Checked<u32> {
    let mut value = 1u64;
    while bits.bit()? {
        if value > 31 {
            return Ok(max);
        }
        let digits = value;
        value = 1;
        for _ in 0..digits {
            value = value << 1 | u64::from(bits.bit()?);
        }
    }
    Ok(value.min(u64::from(max)) as u32)
}

/// `n` levels with signs; nothing but zero padding may follow.
pub fn unpack(bytes: &[u8], n: usize, levels: u32) -> Checked<Vec<(u32, bool)>> {
    let mut bits = BitSource::new(bytes);
    let mut fields = Vec::new();
    for _ in 0..n {
        let level = take(&mut bits, levels + 1)? - 1;
        fields.push((level, level > 0 && bits.bit()?));
    }
    bits.finish()?;
    Ok(fields)
}
