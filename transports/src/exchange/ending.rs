//! The end of a step over a transport that may lose messages: the same at all ranks.
//!
//! | message | tag: unit 2³² − 1, and | says |
//! | --- | --- | --- |
//! | vote | chunk 1 | whether this rank has the mean; if not, who made the step void, if somebody did |
//! | word | chunk 2 | what became of the step here: the mean is used, nothing is, or a vote is missing |
//!
//! A rank without the mean votes no and undoes the step. A rank with the mean votes yes, and uses the mean
//! once it has a yes from all others. So no rank uses a mean that another rank lacks. This costs the wait for
//! one more message. A rank that has all votes sends its word to all others. Only ranks that miss a vote wait
//! for a word.
//!
//! Frames and votes must arrive within three quarters of the time that is left when `finish` begins. The last
//! quarter is for words.

use std::time::Duration;

use super::error::ExchangeError;
use super::step::{Step, timed};
use super::void::{Void, note_tag, void_frame};
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};

/// The first byte of a message. Any two of these differ in more than one bit; any other byte counts as a no.
const YES: u8 = 0xa5;
const NO: u8 = 0x5a;
const VOID: u8 = 0x3c;
const UNKNOWN: u8 = 0xc3;

/// A rank that waits for any of several messages looks for the others after this time; then after twice the
/// time, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(2);

fn vote_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(1)
}

fn word_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(2)
}

/// How the step went at a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    Yes,
    No,
    /// No, because a gradient cannot be encoded.
    Void(Void),
}

impl Vote {
    /// The vote of this rank after the step failed here.
    fn against(step: &Step<'_>, error: &ExchangeError) -> Self {
        match error {
            ExchangeError::Void { rank, index } => Self::Void(Void { rank: *rank, index: *index }),
            error => void_frame(step, error)
                .map_or(Self::No, |void| Self::Void(Void { rank: step.transport.rank(), index: void.index })),
        }
    }

    fn read(message: &[u8], len: usize) -> Self {
        match message {
            [YES] => Self::Yes,
            [VOID, rank @ .., _, _, _, _, _, _, _, _] => {
                let rank = rank.try_into().map(u32::from_le_bytes);
                let index = message.last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let index = index.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < len);
                match (rank, index) {
                    (Ok(rank), Some(index)) => Self::Void(Void { rank: Rank(rank), index }),
                    _ => Self::No,
                }
            }
            _ => Self::No,
        }
    }

    /// One byte. If the step is void, the rank as u32 LE and the coordinate as u64 LE follow it.
    fn write(self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Yes => out.push(YES),
            Self::No => out.push(NO),
            Self::Void(Void { rank, index }) => {
                out.push(VOID);
                out.extend_from_slice(&rank.0.to_le_bytes());
                out.extend_from_slice(&(index as u64).to_le_bytes());
            }
        }
    }
}

/// Whether ranks must tell each other how the step ended.
pub(super) fn is_needed(step: &Step<'_>) -> bool {
    !step.transport.is_fail_stop() && step.transport.membership().world() > 1
}

/// The deadline for frames and votes.
pub(super) fn votes_by(deadline: Deadline) -> Deadline {
    let left = deadline.remaining().map(|left| left - left / 4);
    left.map_or(deadline, Deadline::after)
}

/// Tells all others that the step failed here, and returns the error with all that is then known of its
/// reason.
pub(super) fn refuse(step: &mut Step<'_>, error: ExchangeError, by: Deadline) -> ExchangeError {
    let mut message = step.underway.lend();
    Vote::against(step, &error).write(&mut message);
    tell_of_failure(step, &message, by);
    let void = match error {
        ExchangeError::Transport(_) => others(step).into_iter().find_map(|from| {
            match vote_of(step, from, &mut message, Deadline::now()) {
                Ok(Vote::Void(void)) => Some(void),
                _ => None,
            }
        }),
        _ => None,
    };
    step.underway.give(message);
    void.map_or(error, ExchangeError::from)
}

/// Ends a step of which this rank has the mean. The mean may be used only if this returns `Ok`.
pub(super) fn agree(step: &mut Step<'_>, by: Deadline) -> Result<(), ExchangeError> {
    let mut message = step.underway.lend();
    Vote::Yes.write(&mut message);
    for to in others(step) {
        // A rank that misses this vote waits for a word of another rank.
        let _ = step.send(to, vote_tag(step.tag), &message);
    }
    let counted = count(step, &mut message);
    let word = match &counted {
        Ok(None) => YES,
        Ok(Some(_)) => UNKNOWN,
        Err(_) => NO,
    };
    for to in others(step) {
        // If a peer cannot be told, that is no error: only ranks that miss a vote wait for the word.
        let _ = step.transport.send(to, word_tag(step.tag), &[word], Deadline::now());
    }
    let ended = match counted {
        Ok(None) => Ok(()),
        Ok(Some(missing)) => ask(step, missing, &mut message, by),
        Err(error) => Err(error),
    };
    step.underway.give(message);
    ended
}

fn others(step: &Step<'_>) -> Vec<Rank> {
    let members = step.transport.membership().ranks;
    step.others_in(&members).map(|(_, rank)| rank).collect()
}

/// The rank that made the step void, if the note of a rank that failed names one.
pub(super) fn read_void(step: &Step<'_>, note: &[u8]) -> Option<Void> {
    match Vote::read(note, step.layout.len()) {
        Vote::Void(void) => Some(void),
        _ => None,
    }
}

/// Receives the vote of a rank.
fn vote_of(
    step: &mut Step<'_>,
    from: Rank,
    message: &mut Vec<u8>,
    by: Deadline,
) -> Result<Vote, TransportError> {
    let (tag, transport) = (vote_tag(step.tag), &mut *step.transport);
    timed(&mut step.clock.exchange, || transport.recv(from, tag, message, by))?;
    Ok(Vote::read(message, step.layout.len()))
}

/// Receives all votes. Returns the first rank whose vote is missing. A vote other than yes is an error.
fn count(step: &mut Step<'_>, message: &mut Vec<u8>) -> Result<Option<Rank>, ExchangeError> {
    let mut missing = None;
    for from in others(step) {
        let by = if missing.is_none() { step.deadline } else { Deadline::now() };
        match vote_of(step, from, message, by) {
            Ok(Vote::Yes) => {}
            Ok(Vote::No) => return Err(ExchangeError::NotAgreed { rank: from }),
            Ok(Vote::Void(void)) => return Err(void.into()),
            Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => {
                missing = missing.or(Some(from));
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(missing)
}

/// Waits for the word of any rank that knows how the step ended.
fn ask(step: &mut Step<'_>, missing: Rank, message: &mut Vec<u8>, by: Deadline) -> Result<(), ExchangeError> {
    let (mut silent, mut patience) = (others(step), FIRST_LOOK);
    let refused = Err(ExchangeError::NotAgreed { rank: missing });
    while !silent.is_empty() {
        let is_last = by.has_passed();
        if matches!(vote_of(step, missing, message, Deadline::now()), Ok(Vote::No | Vote::Void(_))) {
            return refused;
        }
        let mut at = 0;
        while let Some(&from) = silent.get(at) {
            let until = if at == 0 { by.earlier(Deadline::after(patience)) } else { Deadline::now() };
            let (tag, transport) = (word_tag(step.tag), &mut *step.transport);
            match timed(&mut step.clock.exchange, || transport.recv(from, tag, message, until)) {
                Ok(()) if *message == [YES] => return Ok(()),
                Ok(()) if *message == [NO] => return refused,
                Err(TransportError::Timeout { .. }) => at += 1,
                _ => {
                    silent.remove(at);
                }
            }
        }
        if is_last {
            break;
        }
        patience = patience.saturating_mul(2);
    }
    Err(ExchangeError::Undecided { missing })
}

/// Sends a vote against the step, and also as a note if ranks that wait for payloads look for notes. Drops
/// the messages of the step that have arrived here, so that no sender waits for room.
fn tell_of_failure(step: &mut Step<'_>, vote: &[u8], by: Deadline) {
    let note = step.underway.has_notes.then(|| note_tag(step.tag));
    let tags = [Some(vote_tag(step.tag)), note];
    for (to, tag) in
        others(step).into_iter().flat_map(|to| tags.into_iter().flatten().map(move |tag| (to, tag)))
    {
        let mut patience = FIRST_LOOK;
        loop {
            let (until, transport) = (by.earlier(Deadline::after(patience)), &mut *step.transport);
            let sent = timed(&mut step.clock.exchange, || transport.send(to, tag, vote, until));
            // No rank uses the mean without this vote, so a peer that does not get it undoes the step too.
            if !matches!(sent, Err(TransportError::NoRoom { .. })) || by.has_passed() {
                break;
            }
            step.underway.drop_arrived(step.transport);
            patience = patience.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_round_trip_and_damaged_ones_are_never_a_yes() {
        let mut message = Vec::new();
        for vote in [Vote::Yes, Vote::No, Vote::Void(Void { rank: Rank(7), index: 99 })] {
            vote.write(&mut message);
            assert_eq!(Vote::read(&message, 100), vote);
            for bit in 0..8 * message.len() {
                let mut damaged = message.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Vote::read(&damaged, 100), Vote::Yes, "{vote:?} with bit {bit} flipped");
            }
            for len in 0..message.len() {
                assert_eq!(Vote::read(&message[..len], 100), Vote::No, "{vote:?} cut to {len}");
            }
        }
        assert_eq!(Vote::read(&message, 99), Vote::No, "a coordinate beyond the layout");
    }

    #[test]
    fn a_quarter_of_the_time_is_left_for_the_last_word() {
        assert_eq!(votes_by(Deadline::NEVER), Deadline::NEVER);
        let left = votes_by(Deadline::after(Duration::from_secs(4000))).remaining().unwrap();
        assert!(left <= Duration::from_secs(3000) && left > Duration::from_secs(2000), "{left:?}");
        assert!(votes_by(Deadline::now()).has_passed());
    }
}
