//! What a rank says of a step at its end: see [`ending`](super::ending).

use gradwire::Layout;

use super::error::ExchangeError;
use super::void::{Void, cut_text, refusal, text_of};
use crate::rank::Rank;

/// The first byte of a message. Any two of these differ in more than one bit.
pub(super) const YES: u8 = 0xa5;
pub(super) const NO: u8 = 0x5a;
const VOID: u8 = 0x3c;
pub(super) const UNKNOWN: u8 = 0xc3;
const FAILED: u8 = 0x69;

/// How the step went at a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    Yes,
    /// No, because of that rank, if one is known.
    No(Option<Rank>),
    /// No, because a gradient cannot be encoded.
    Void(Void),
    /// No, because the caller at a rank has failed.
    Failed {
        rank: Rank,
        text: String,
    },
}

impl Vote {
    /// `None` for a message that is no vote any more. It counts as one that was lost: a yes that was damaged
    /// must not undo a step that others use.
    pub(super) fn read(message: &[u8], len: usize) -> Option<Self> {
        match message {
            [YES] => Some(Self::Yes),
            [VOID, rank @ .., _, _, _, _, _, _, _, _] => {
                let rank = rank.try_into().map(u32::from_le_bytes);
                let index = message.last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let index = index.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < len);
                match (rank, index) {
                    (Ok(rank), Some(index)) => Some(Self::Void(Void { rank: Rank(rank), index })),
                    _ => Some(Self::No(None)),
                }
            }
            [FAILED, a, b, c, d, text @ ..] => {
                Some(Self::Failed { rank: Rank(u32::from_le_bytes([*a, *b, *c, *d])), text: text_of(text) })
            }
            [NO, a, b, c, d] => Some(Self::No(Some(Rank(u32::from_le_bytes([*a, *b, *c, *d]))))),
            [NO | VOID | FAILED, ..] => Some(Self::No(None)),
            _ => None,
        }
    }

    /// Why the vote is no, if it says so.
    pub(super) fn reason(&self) -> Option<ExchangeError> {
        match self {
            Self::Yes | Self::No(None) => None,
            Self::No(Some(rank)) => Some(ExchangeError::NotAgreed { rank: *rank }),
            Self::Void(void) => Some((*void).into()),
            Self::Failed { rank, text } => Some(ExchangeError::Failed { rank: *rank, text: text.clone() }),
        }
    }

    /// One byte. If a rank is to blame for a no, it follows as u32 LE. If the step is void, the rank as u32
    /// LE and the coordinate as u64 LE follow it; if a caller has failed, the rank and its text.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Yes => out.push(YES),
            Self::No(blamed) => {
                out.push(NO);
                out.extend(blamed.iter().flat_map(|rank| rank.0.to_le_bytes()));
            }
            Self::Void(Void { rank, index }) => {
                out.push(VOID);
                out.extend_from_slice(&rank.0.to_le_bytes());
                out.extend_from_slice(&(*index as u64).to_le_bytes());
            }
            Self::Failed { rank, text } => {
                out.push(FAILED);
                out.extend_from_slice(&rank.0.to_le_bytes());
                out.extend_from_slice(cut_text(text).as_bytes());
            }
        }
    }
}

/// Why the step failed at a rank that sent a note: a void frame, a failure, or a vote.
pub(super) fn read_note(rank: Rank, note: &[u8], layout: &Layout, step: u64) -> ExchangeError {
    let refusal = refusal(rank, note, &layout.as_ref(), step);
    let reason = refusal.or_else(|| Vote::read(note, layout.len())?.reason());
    reason.unwrap_or(ExchangeError::NotAgreed { rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_round_trip_and_damaged_ones_are_never_a_yes() {
        let mut message = Vec::new();
        let void = Vote::Void(Void { rank: Rank(7), index: 99 });
        let failed = Vote::Failed { rank: Rank(7), text: "no batch is left".to_owned() };
        for vote in [Vote::Yes, Vote::No(None), Vote::No(Some(Rank(9))), failed, void] {
            vote.write(&mut message);
            assert_eq!(Vote::read(&message, 100), Some(vote.clone()));
            for bit in 0..8 * message.len() {
                let mut damaged = message.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Vote::read(&damaged, 100), Some(Vote::Yes), "{vote:?} with bit {bit} flipped");
            }
            assert_eq!(Vote::read(&[], 100), None, "a message that was cut may have been a yes");
            for len in 1..message.len() {
                let read = Vote::read(&message[..len], 100);
                let is_against = read == Some(Vote::No(None)) || matches!(read, Some(Vote::Failed { .. }));
                assert!(is_against, "{vote:?} cut to {len}");
            }
        }
        assert_eq!(Vote::read(&message, 99), Some(Vote::No(None)), "a coordinate beyond the layout");
    }
}
