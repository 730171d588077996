//! What travels after a payload: its tag and its length.

use crate::tag::Tag;

/// Length of an envelope: the tag, and the length of the payload as u64.
pub(super) const ENVELOPE_BYTES: usize = Tag::BYTES + size_of::<u64>();

/// Names a message. It follows the payload, so that taking it off moves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) tag: Tag,
    pub(super) payload_bytes: u64,
}

impl Envelope {
    /// Little-endian: epoch, step, unit, chunk, length.
    pub(super) fn to_bytes(self) -> [u8; ENVELOPE_BYTES] {
        let Tag { epoch, step, unit, chunk } = self.tag;
        let mut bytes = [0; ENVELOPE_BYTES];
        bytes[..4].copy_from_slice(&epoch.to_le_bytes());
        bytes[4..12].copy_from_slice(&step.to_le_bytes());
        bytes[12..16].copy_from_slice(&unit.to_le_bytes());
        bytes[16..20].copy_from_slice(&chunk.to_le_bytes());
        bytes[20..].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    /// Reads the end of a message; `None` when it is too short to have one.
    pub(super) fn at_end_of(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENVELOPE_BYTES] = message.last_chunk()?;
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (step, rest) = rest.split_first_chunk()?;
        let (unit, rest) = rest.split_first_chunk()?;
        let (chunk, rest) = rest.split_first_chunk()?;
        let payload_bytes = u64::from_le_bytes(*rest.first_chunk()?);
        let [epoch, unit, chunk] = [epoch, unit, chunk].map(|bytes| u32::from_le_bytes(*bytes));
        Some(Self { tag: Tag { epoch, step: u64::from_le_bytes(*step), unit, chunk }, payload_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_round_trip_behind_any_payload() {
        let tag = Tag { epoch: 1, step: u64::MAX - 2, unit: 3, chunk: Tag::FIRST_COLLECTIVE_CHUNK | 4 };
        let envelope = Envelope { tag, payload_bytes: 5 << 32 };
        for payload in [&b""[..], b"payload"] {
            let message = [payload, &envelope.to_bytes()].concat();
            assert_eq!(Envelope::at_end_of(&message), Some(envelope));
        }
        assert_eq!(Envelope::at_end_of(&[0; ENVELOPE_BYTES - 1]), None);
    }
}
