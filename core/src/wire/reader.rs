//! The only cursor that reads untrusted bytes.

use crate::error::{DecodeError, Field};

/// Takes fields off the front of a byte string; every read says whether it succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes not yet taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated { needed: len, actual: self.rest.len() })?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated { needed: N, actual: self.rest.len() })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 integer in its shortest form.
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let digit = u64::from(byte & 0x7f);
            let overflows = shift == 63 && digit > 1;
            let superfluous = shift > 0 && byte == 0;
            if overflows || superfluous {
                return Err(DecodeError::InvalidField(Field::Varint));
            }
            value |= digit << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::InvalidField(Field::Varint))
    }

    /// A varint that must fit `usize`.
    pub(crate) fn varint_usize(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.varint()?).map_err(|_| DecodeError::InvalidField(Field::Varint))
    }

    /// Checks that no byte is left.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::writer::Writer;

    #[test]
    fn varints_round_trip_and_only_the_shortest_form_is_accepted() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = [0xa5; 10];
            let mut writer = Writer::new(&mut out);
            writer.varint(value);
            let len = writer.len();
            let mut reader = Reader::new(&out[..len]);
            assert_eq!(reader.varint(), Ok(value));
            reader.finish().unwrap();
        }
        let invalid = Err(DecodeError::InvalidField(Field::Varint));
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), invalid);
        assert_eq!(Reader::new(&[0xff; 10]).varint(), invalid);
        let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(Reader::new(&too_large).varint(), invalid);
        assert_eq!(Reader::new(&[0x80]).varint(), Err(DecodeError::Truncated { needed: 1, actual: 0 }));
    }
}
