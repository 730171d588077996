//! The only code that packs bits into bytes.

use super::MAX_FIELD_BITS;

/// Writes bit fields into a buffer that the caller lends.
///
/// Every field is stored with one unconditional eight-byte store, so bytes after the last one written may be
/// overwritten with zeros. The bytes that [`finish`](Self::finish) counts do not depend on the earlier
/// content of the buffer. Writing past the end is harmless: nothing more is stored, and `finish` returns
/// `None`.
pub(crate) struct BitWriter<'a> {
    out: &'a mut [u8],
    /// Whole bytes put so far; more than `out` holds once the writer has overflowed.
    stored: usize,
    /// The `pending` bits that do not fill a byte yet; the bits above them are zero.
    acc: u64,
    /// 0..=7.
    pending: u32,
}

impl<'a> BitWriter<'a> {
    /// A writer at the first bit of `out`.
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        BitWriter { out, stored: 0, acc: 0, pending: 0 }
    }

    /// Appends the low `width` bits of `value`: `width` is at most 56 and `value` below 2^`width`.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width <= MAX_FIELD_BITS, "field of {width} bits");
        debug_assert!(value >> width == 0, "{value} does not fit {width} bits");
        let acc = self.acc | value << self.pending;
        let pending = self.pending + width;
        let bytes = (pending / 8) as usize;
        let rest = self.out.get_mut(self.stored..).unwrap_or_default();
        if let Some(word) = rest.first_chunk_mut() {
            *word = acc.to_le_bytes();
            self.stored += bytes;
        } else {
            store_tail(rest, acc, bytes);
            self.stored = self.stored.saturating_add(bytes);
        }
        self.acc = acc >> (pending & !7);
        self.pending = pending & 7;
    }

    /// Appends `q` zero bits and then a one bit.
    #[inline]
    pub(crate) fn put_unary(&mut self, mut q: u64) {
        while q >= u64::from(MAX_FIELD_BITS) && self.stored <= self.out.len() {
            self.put(0, MAX_FIELD_BITS);
            q -= u64::from(MAX_FIELD_BITS);
        }
        // `q` is still larger only if the writer has overflowed.
        let q = q.min(u64::from(MAX_FIELD_BITS) - 1) as u32;
        self.put(1 << q, q + 1);
    }

    /// Bits put so far. Exact until the buffer has overflowed, then some number above its capacity.
    #[inline]
    #[cfg(test)]
    pub(crate) fn bits(&self) -> u64 {
        (self.stored as u64).saturating_mul(8).saturating_add(u64::from(self.pending))
    }

    /// Number of bytes written, the last one padded with zero bits; `None` if they did not fit.
    pub(crate) fn finish(self) -> Option<usize> {
        if self.pending > 0 {
            *self.out.get_mut(self.stored)? = self.acc as u8;
        }
        let written = self.stored.checked_add(usize::from(self.pending > 0))?;
        (written <= self.out.len()).then_some(written)
    }
}

/// Stores the low `bytes` bytes of `acc` where fewer than eight remain, or nothing if they do not fit.
// Values in, nothing out: were the writer itself passed, its fields would live in memory throughout hot
// loops.
#[cold]
fn store_tail(rest: &mut [u8], acc: u64, bytes: usize) {
    if let Some(tail) = rest.get_mut(..bytes) {
        tail.copy_from_slice(&acc.to_le_bytes()[..bytes]);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    use super::super::BitReader;
    use super::*;

    fn write(fields: &[(u64, u32)], out: &mut [u8]) -> Option<usize> {
        let mut writer = BitWriter::new(out);
        fields.iter().for_each(|&(value, width)| writer.put(value, width));
        writer.finish()
    }

    /// The reference: the definition of the layout, one bit at a time.
    fn naive(fields: &[(u64, u32)]) -> Vec<u8> {
        let bits: Vec<u8> =
            fields.iter().flat_map(|&(v, w)| (0..w).map(move |bit| (v >> bit & 1) as u8)).collect();
        bits.chunks(8).map(|byte| byte.iter().enumerate().map(|(i, bit)| bit << i).sum()).collect()
    }

    fn field() -> impl Strategy<Value = (u64, u32)> {
        (any::<u64>(), 0..=MAX_FIELD_BITS).prop_map(|(value, width)| (value & ((1 << width) - 1), width))
    }

    #[test]
    fn fields_fill_bytes_from_the_least_significant_bit() {
        let mut out = [0xa5; 16];
        assert_eq!(write(&[(0b1, 1), (0b10, 2), (0b10111, 5), (0x1234, 16)], &mut out), Some(3));
        assert_eq!(out[..3], [0b1011_1101, 0x34, 0x12]);
    }

    #[test]
    fn the_last_byte_is_padded_with_zeros() {
        let mut out = [0xff; 1];
        assert_eq!(write(&[(0b101, 3)], &mut out), Some(1));
        assert_eq!(out, [0b101]);
    }

    #[test]
    fn an_empty_buffer_holds_exactly_nothing() {
        assert_eq!(write(&[], &mut []), Some(0));
        assert_eq!(write(&[(0, 0)], &mut []), Some(0));
        assert_eq!(write(&[(0, 1)], &mut []), None);
    }

    #[test]
    fn a_huge_unary_number_ends_at_the_buffer() {
        let mut out = [0xa5; 100];
        let mut writer = BitWriter::new(&mut out);
        writer.put_unary(u64::MAX);
        writer.put(3, 2);
        assert!(writer.bits() > 800);
        assert_eq!(writer.finish(), None);
    }

    #[test]
    fn unary_numbers_of_every_length_read_back() {
        for q in 0..400 {
            for lead in 0..8 {
                let mut out = [0xa5; 64];
                let mut writer = BitWriter::new(&mut out);
                writer.put(0, lead);
                writer.put_unary(q);
                assert_eq!(writer.bits(), q + 1 + u64::from(lead));
                let written = writer.finish().unwrap();
                let mut reader = BitReader::new(&out[..written]);
                assert_eq!(reader.take(lead), 0);
                assert_eq!(reader.take_unary(), Some(q));
                assert_eq!(reader.position(), q + 1 + u64::from(lead));
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_are_those_of_the_definition(fields in prop::collection::vec(field(), 0..80)) {
            let expected = naive(&fields);
            let bits: u64 = fields.iter().map(|field| u64::from(field.1)).sum();
            for fill in [0, 0xa5] {
                for room in [expected.len(), expected.len() + 1, expected.len() + 40] {
                    let mut out = vec![fill; room];
                    let mut writer = BitWriter::new(&mut out);
                    fields.iter().for_each(|&(value, width)| writer.put(value, width));
                    prop_assert_eq!(writer.bits(), bits);
                    prop_assert_eq!(writer.finish(), Some(expected.len()));
                    prop_assert_eq!(&out[..expected.len()], &expected[..]);
                }
            }
        }

        #[test]
        fn overflow_is_reported_and_harmless(
            fields in prop::collection::vec(field(), 1..80),
            cut in any::<u16>(),
        ) {
            let needed = naive(&fields).len();
            prop_assume!(needed > 0);
            let room = usize::from(cut) % needed;
            let mut out = vec![0; room];
            prop_assert_eq!(write(&fields, &mut out), None);
        }
    }
}
