//! The version of the messages of exchanges and of gossip: their last byte, except for packets, which nobody
//! reads before the message that announces them. So the version is taken off without a copy, and a frame
//! begins where its message does.

/// Ranks of two versions refuse each other. Payloads of rounds (FORMAT.md, section 16) have no version of
/// their own, so this one also changes when they do.
pub(super) const VERSION: u8 = 1;
/// The last byte, less the version.
const MARK: u8 = 0xe0;
/// The last byte of a message.
pub(super) const TAIL: u8 = MARK | VERSION;

/// Takes the version off a message. Returns it if it is another one than this rank's. A message without a
/// version was damaged on its way, and becomes empty; one of 16 such messages seems to have another version.
pub(super) fn take_off(message: &mut Vec<u8>) -> Option<u8> {
    match message.pop() {
        Some(TAIL) => None,
        last => {
            message.clear();
            last.filter(|last| last & 0xf0 == MARK).map(|last| last & 0x0f)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_told_from_a_damaged_message() {
        for (bytes, theirs, rest) in [
            (&b"GW\xe1"[..], None, &b"GW"[..]),
            (b"\xe1", None, b""),
            (b"GW\xe2", Some(2), b""),
            (b"GW", None, b""),
            (b"", None, b""),
        ] {
            let mut message = bytes.to_vec();
            assert_eq!((take_off(&mut message), &message[..]), (theirs, rest), "{bytes:?}");
        }
    }
}
