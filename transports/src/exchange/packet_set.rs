//! Which packets of one worker are in the mean.

/// One bit for each packet; packet 0 is the lowest bit of the first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketSet {
    bits: Vec<u8>,
}

impl PacketSet {
    /// None of `count` packets.
    pub(super) fn reset(&mut self, count: usize) {
        self.bits.clear();
        self.bits.resize(count.div_ceil(8), 0);
    }

    pub(super) fn set(&mut self, at: usize) {
        if let Some(byte) = self.bits.get_mut(at / 8) {
            *byte |= 1 << (at % 8);
        }
    }

    pub(super) fn has(&self, at: usize) -> bool {
        self.bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// How many packets are in the set.
    pub(super) fn ones(&self) -> usize {
        self.bits.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// The number of bytes as u32 LE, and the bytes.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.bits.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.bits);
    }

    /// Reads a set of `count` packets; an absent set is empty. Returns the rest of the message.
    pub(super) fn read<'m>(&mut self, message: &'m [u8], count: usize) -> Option<&'m [u8]> {
        let (len, rest) = message.split_first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (bits, rest) = rest.split_at_checked(len)?;
        self.reset(count);
        if bits.is_empty() {
            return Some(rest);
        }
        let strays = !count.is_multiple_of(8) && bits.last().is_some_and(|last| last >> (count % 8) != 0);
        if bits.len() != self.bits.len() || strays {
            return None;
        }
        self.bits.copy_from_slice(bits);
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_round_trip_and_strange_ones_are_refused() {
        let (mut packet_set, mut read, mut message) =
            (PacketSet::default(), PacketSet::default(), Vec::new());
        for count in [0, 1, 8, 9, 20] {
            packet_set.reset(count);
            (0..count).step_by(3).for_each(|at| packet_set.set(at));
            message.clear();
            packet_set.write(&mut message);
            message.extend_from_slice(b"frame");
            assert_eq!(read.read(&message, count), Some(&b"frame"[..]));
            assert_eq!((&read, read.ones()), (&packet_set, count.div_ceil(3)));
            assert!((0..message.len() - 5).all(|cut| read.read(&message[..cut], count).is_none()));
        }
        assert_eq!(read.read(&message, 30), None);
        assert_eq!(read.read(&[1, 0, 0, 0, 0b100], 2), None);
        assert_eq!(read.read(&[0; 4], 9), Some(&[][..]));
        assert_eq!(read.ones(), 0);
    }
}
