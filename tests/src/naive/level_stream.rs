//! Packing 4 of levels, from FORMAT.md, section 7.5: norms and levels as decisions of the range coder.

use super::context::{Context, Contexts, Decisions, Reader, Writer, bitlen};
use super::coordinates::Word;
use super::decode::{Checked, ensure};
use super::levels::{Level, width};

/// Norm and levels of a bucket, or of a part of one.
pub(super) type Bucket = (f32, Vec<Level>);

/// What is known between two levels.
struct State {
    contexts: Contexts,
    bits: u32,
    fast: i64,
    slow: i64,
    exponent: Option<i64>,
    was_zero: bool,
    /// By the last sign and the one before it.
    signs: [[Word; 2]; 2],
    last_signs: [bool; 2],
}

/// Half octaves: 0, 1, then two for each doubling.
fn class(average: i64) -> u32 {
    let octave = bitlen(average as u64).max(1) - 1;
    if octave == 0 { average as u32 } else { 2 * octave + (average >> (octave - 1) & 1) as u32 }
}

impl State {
    fn new(s: u32) -> Self {
        let start = 64 * i64::from(s);
        Self {
            contexts: Contexts::default(),
            bits: width(s),
            fast: start,
            slow: start,
            exponent: None,
            was_zero: false,
            signs: [[Word { p: 32_768 * 64, count: 20 }; 2]; 2],
            last_signs: [false; 2],
        }
    }

    fn norm(&mut self, coder: &mut impl Decisions, told: Option<f32>) -> Checked<f32> {
        let told = told.map(|norm| i64::from(norm.to_bits()));
        let after_zero = u32::from(self.was_zero);
        let zero = [(Context::Zero, 1)];
        self.was_zero = self.contexts.decide(coder, &zero, after_zero, told.map(|norm| norm == 0));
        if self.was_zero {
            return Ok(0.0);
        }
        let exponent = self.exponent(coder, told.map(|norm| norm >> 23));
        ensure((1..=254).contains(&exponent), "an exponent that no norm has")?;
        self.exponent = Some(exponent);
        let mantissa = coder.bits(23, told.map(|norm| norm as u64 % (1 << 23)));
        Ok(f32::from_bits((exponent as u32) << 23 | mantissa as u32))
    }

    fn exponent(&mut self, coder: &mut impl Decisions, told: Option<i64>) -> i64 {
        let Some(last) = self.exponent else {
            return coder.bits(8, told.map(|exponent| exponent as u64)) as i64;
        };
        let context = [(Context::Exponent, 1)];
        let mut steps = 0;
        while steps < 254 {
            let more = told.map(|exponent| (exponent - last).abs() > steps);
            if !self.contexts.decide(coder, &context, steps.min(14) as u32, more) {
                break;
            }
            steps += 1;
        }
        let is_down = told.map(|exponent| exponent < last);
        if steps > 0 && self.contexts.decide(coder, &context, 15, is_down) {
            last - steps
        } else {
            last + steps
        }
    }

    fn level(&mut self, coder: &mut impl Decisions, told: Option<Level>) -> Level {
        let size = told.map(|(level, _)| u64::from(level));
        let both = [(Context::Fast(class(self.fast)), 1), (Context::Slow(class(self.slow)), 1)];
        let mut digits = 0;
        while digits < self.bits - 1 {
            if !self.contexts.decide(coder, &both, digits, size.map(|size| bitlen(size) > digits)) {
                break;
            }
            digits += 1;
        }
        let mut level = u64::from(digits > 0);
        for place in 2..=digits {
            let digit = size.map(|size| size >> (digits - place) & 1);
            let told = digit.map(|digit| digit == 1);
            let digit = match place {
                2 => u64::from(self.contexts.decide(coder, &both, 6 + digits, told)),
                3 => {
                    let number = 2 * (digits - 3) + level as u32 % 2;
                    u64::from(self.contexts.decide(coder, &[(Context::Digits, 1)], number, told))
                }
                _ => break,
            };
            level = 2 * level + digit;
        }
        if digits > 3 {
            let rest = digits - 3;
            level = level << rest | coder.bits(rest, size.map(|size| size % (1 << rest)));
        }
        let mut sign = false;
        if level > 0 {
            let [last, before] = self.last_signs;
            sign =
                self.signs[usize::from(last)][usize::from(before)].alone(coder, told.map(|(_, sign)| sign));
            self.last_signs = [sign, last];
        }
        self.fast += (256 * level as i64 - self.fast).div_euclid(2);
        self.slow += (256 * level as i64 - self.slow).div_euclid(16);
        (level as u32, sign)
    }
}

/// The stream of these buckets, of levels up to `s`.
pub(super) fn write(s: u32, buckets: &[Bucket]) -> Vec<u8> {
    let (mut writer, mut state) = (Writer::new(), State::new(s));
    for (norm, levels) in buckets {
        state.norm(&mut writer, Some(*norm)).expect("norms are finite and not subnormal");
        for &level in levels.iter().filter(|_| *norm != 0.0) {
            state.level(&mut writer, Some(level));
        }
    }
    writer.finish()
}

/// Buckets of these sizes.
pub(super) fn read(stream: &[u8], s: u32, sizes: &[usize]) -> Checked<Vec<Bucket>> {
    let (mut reader, mut state) = (Reader::new(stream), State::new(s));
    let bucket = |&size: &usize| {
        let norm = state.norm(&mut reader, None)?;
        let mut level = || if norm == 0.0 { (0, false) } else { state.level(&mut reader, None) };
        Ok((norm, (0..size).map(|_| level()).collect()))
    };
    sizes.iter().map(bucket).collect()
}
