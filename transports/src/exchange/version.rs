//! The version of the messages between exchanges, in the first byte of those that begin with it.

use super::error::ExchangeError;
use crate::rank::Rank;

/// Ranks of two versions refuse each other.
pub(super) const VERSION: u8 = 1;
/// The first byte, less the version: no frame begins with it.
const MARK: u8 = 0xe0;
/// The second byte: what kind of message it is.
pub(super) const PART: u8 = 0;
pub(super) const FAILURE: u8 = 1;

/// Begins a message of that kind.
pub(super) fn begin(kind: u8, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[MARK | VERSION, kind]);
}

/// The kind of a message and its rest; an error for a message of another version. `None` for a message that
/// does not begin in this way, such as a frame.
pub(super) fn split(rank: Rank, message: &[u8]) -> Result<Option<(u8, &[u8])>, ExchangeError> {
    match message {
        [first, kind, rest @ ..] if *first == MARK | VERSION => Ok(Some((*kind, rest))),
        [first, ..] if first & 0xf0 == MARK && *first != MARK | VERSION => {
            Err(ExchangeError::OtherVersion { rank, theirs: first & 0x0f, own: VERSION })
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_told_from_a_frame() {
        let rank = Rank(3);
        assert_eq!(split(rank, b"GW\x01"), Ok(None));
        assert_eq!(split(rank, &[]), Ok(None));
        assert_eq!(split(rank, &[0xe1, 1, 9]), Ok(Some((FAILURE, &[9][..]))));
        assert_eq!(split(rank, &[0xe2, 0]), Err(ExchangeError::OtherVersion { rank, theirs: 2, own: 1 }));
    }
}
