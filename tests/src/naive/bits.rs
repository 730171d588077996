//! Bits in a `Vec<bool>`. They fill a byte from its least significant bit up.

use super::decode::{Checked, ensure};

/// A string of bits to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<bool>);

impl Bits {
    /// Appends the low `width` bits of `value`, the least significant first.
    pub fn field(&mut self, value: u64, width: u32) {
        self.0.extend((0..width).map(|bit| value >> bit & 1 == 1));
    }

    /// Appends binary digits as they stand on paper, the leftmost first.
    pub fn digits(&mut self, digits: &str) {
        self.0.extend(digits.chars().map(|digit| digit == '1'));
    }

    /// Appends `q` zeros and a one.
    pub fn unary(&mut self, q: u64) {
        self.0.extend((0..q).map(|_| false));
        self.0.push(true);
    }

    /// Number of bits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, the last one padded with zeros.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
        self.0.chunks(8).map(byte).collect()
    }
}

/// Bits to be read; there is nothing behind the end.
#[derive(Clone, Debug)]
pub struct BitSource<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> BitSource<'a> {
    /// The bits of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// The next bit.
    pub fn bit(&mut self) -> Checked<bool> {
        let byte = *self.bytes.get(self.position / 8).ok_or("bits end too early")?;
        self.position += 1;
        Ok(byte >> ((self.position - 1) % 8) & 1 == 1)
    }

    /// The next field of `width` bits.
    pub fn field(&mut self, width: u32) -> Checked<u64> {
        (0..width).try_fold(0, |value, bit| Ok(value | u64::from(self.bit()?) << bit))
    }

    /// Zeros up to the next one, which is consumed.
    pub fn unary(&mut self) -> Checked<u64> {
        let mut zeros = 0;
        while !self.bit()? {
            zeros += 1;
        }
        Ok(zeros)
    }

    /// Bits consumed.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bits up to the next byte, which must be zero.
    pub fn pad(&mut self) -> Checked<()> {
        while !self.position.is_multiple_of(8) {
            ensure(!self.bit()?, "padding bits are not zero")?;
        }
        Ok(())
    }

    /// What is left must be the padding of the last byte, and zero.
    pub fn finish(&mut self) -> Checked<()> {
        ensure(self.bytes.len() * 8 - self.position < 8, "bytes left over behind the bits")?;
        self.pad()
    }
}
