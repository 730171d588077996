//! The only code that unpacks bits from bytes.

use super::{MAX_FIELD_BITS, load_padded};

/// Reads bit fields from untrusted bytes: no call fails or panics, and bits past the end read as zero.
///
/// The position is the only state. Each call loads the eight bytes around it. So a field of known width waits
/// for the field before it only by one addition.
#[derive(Clone, Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits consumed, which may exceed the bits present.
    position: u64,
}

impl<'a> BitReader<'a> {
    /// A reader at the first bit of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        BitReader { bytes, position: 0 }
    }

    /// The next bits, first bit lowest, without consuming them: at least 57, zeros above and past the end.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        // A position that does not fit the address space lies past the end.
        let byte = usize::try_from(self.position / 8).unwrap_or(usize::MAX);
        load_padded(self.bytes, byte) >> (self.position % 8)
    }

    /// Consumes `count` bits without reading them.
    #[inline]
    pub(crate) fn skip(&mut self, count: u32) {
        self.position += u64::from(count);
    }

    /// Consumes and returns `width` bits, at most 56.
    #[inline]
    pub(crate) fn take(&mut self, width: u32) -> u64 {
        debug_assert!(width <= MAX_FIELD_BITS, "field of {width} bits");
        let value = self.peek() & ((1 << width) - 1);
        self.skip(width);
        value
    }

    /// Consumes zero bits up to and including the next one bit, and returns how many zeros there were;
    /// `None`, with everything consumed, if no one bit is left.
    #[inline]
    pub(crate) fn take_unary(&mut self) -> Option<u64> {
        let start = self.position;
        loop {
            let word = self.peek();
            if word != 0 {
                self.position += u64::from(word.trailing_zeros()) + 1;
                return Some(self.position - 1 - start);
            }
            self.position += 64 - self.position % 8;
            if self.remaining() == 0 {
                self.position = start.max(self.end());
                return None;
            }
        }
    }

    /// Bits consumed so far; the count goes on past the end.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bits left before the end.
    #[inline]
    pub(crate) fn remaining(&self) -> u64 {
        self.end().saturating_sub(self.position)
    }

    /// Whether a read went past the end, and so returned zeros that are not in the bytes.
    #[inline]
    pub(crate) fn overran(&self) -> bool {
        self.position > self.end()
    }

    #[inline]
    fn end(&self) -> u64 {
        self.bytes.len() as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    fn bit(bytes: &[u8], at: u64) -> u64 {
        bytes.get((at / 8) as usize).map_or(0, |byte| u64::from(byte >> (at % 8) & 1))
    }

    #[test]
    fn fields_come_from_the_least_significant_bit() {
        let mut reader = BitReader::new(&[0b1011_1101, 0x34, 0x12]);
        assert_eq!([1, 2, 5, 16].map(|width| reader.take(width)), [0b1, 0b10, 0b10111, 0x1234]);
        assert_eq!((reader.position(), reader.remaining(), reader.overran()), (24, 0, false));
    }

    #[test]
    fn bits_past_the_end_read_as_zero() {
        let mut reader = BitReader::new(&[0xff]);
        assert_eq!(reader.take(12), 0xff);
        assert!(reader.overran());
        assert_eq!(reader.take(56), 0);
        assert_eq!((reader.position(), reader.remaining()), (68, 0));
        assert_eq!(reader.take_unary(), None);
        assert_eq!(reader.position(), 68);
    }

    #[test]
    fn a_unary_number_without_its_one_bit_is_none() {
        for len in 0..40 {
            let mut reader = BitReader::new(&[0; 40][..len]);
            reader.skip(3.min(len as u32));
            assert_eq!(reader.take_unary(), None);
            assert_eq!((reader.remaining(), reader.overran()), (0, false));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_read_as_the_definition_says(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            widths in prop::collection::vec(0..=MAX_FIELD_BITS, 0..20),
        ) {
            let mut reader = BitReader::new(&bytes);
            let mut position = 0;
            for width in widths {
                let expected: u64 = (0..u64::from(width)).map(|i| bit(&bytes, position + i) << i).sum();
                prop_assert_eq!(reader.take(width), expected);
                position += u64::from(width);
                prop_assert_eq!(reader.position(), position);
                prop_assert_eq!(reader.remaining(), (bytes.len() as u64 * 8).saturating_sub(position));
            }
        }

        #[test]
        fn unary_numbers_read_as_the_definition_says(
            bytes in prop::collection::vec(prop_oneof![4 => Just(0), 1 => any::<u8>()], 0..80),
            lead in 0_u32..20,
        ) {
            let mut reader = BitReader::new(&bytes);
            reader.skip(lead);
            let ones: Vec<u64> =
                (u64::from(lead)..bytes.len() as u64 * 8).filter(|&at| bit(&bytes, at) == 1).collect();
            let mut from = u64::from(lead);
            for one in ones {
                prop_assert_eq!(reader.take_unary(), Some(one - from));
                from = one + 1;
            }
            prop_assert_eq!(reader.take_unary(), None);
            prop_assert_eq!(reader.remaining(), 0);
        }
    }
}
