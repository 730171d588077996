//! The end of a step over a transport that may lose messages: the same at all ranks.
//!
//! | message | tag: unit 2³² − 1, and | says |
//! | --- | --- | --- |
//! | vote | chunk 1 | whether this rank has the mean; if not, who made the step void or failed, and why |
//! | word | chunk 2 | what became of the step here: the mean is used, nothing is, or a vote is missing |
//!
//! A rank without the mean votes no and undoes the step. A rank with the mean votes yes, and uses the mean
//! once it has a yes from all others. So no rank uses a mean that another rank lacks. This costs the wait for
//! one more message. A rank that has all votes sends its word to all others. Only ranks that miss a vote wait
//! for a word.
//!
//! Frames and votes must arrive within three quarters of the time that is left when the step is to be
//! finished. The last quarter is for words.

use super::error::ExchangeError;
use super::port::{Care, Port};
use super::step::Step;
use super::void::{Void, note_tag};
use super::vote::{NO, UNKNOWN, Vote, YES, read_note};
use crate::rank::Rank;
use crate::tag::Tag;

fn vote_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(1)
}

fn word_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(2)
}

/// The vote of this rank after the step failed here.
fn vote_against(step: &Step<'_>, error: &ExchangeError) -> Vote {
    match error {
        ExchangeError::Void { rank, index } => Vote::Void(Void { rank: *rank, index: *index }),
        ExchangeError::Failed { rank, text } => Vote::Failed { rank: *rank, text: text.clone() },
        ExchangeError::OtherVersion { .. } => Vote::Failed { rank: step.rank(), text: error.to_string() },
        error => match step.void_frame(error) {
            Some(void) => Vote::Void(Void { rank: step.rank(), index: void.index }),
            None => Vote::No(blamed(error)),
        },
    }
}

/// The rank because of which the step failed here.
fn blamed(error: &ExchangeError) -> Option<Rank> {
    match error {
        ExchangeError::Transport(error) => error.peer(),
        ExchangeError::NotAgreed { rank } => Some(*rank),
        _ => None,
    }
}

/// The time until which frames and votes may come.
pub(super) fn votes_by(now: u64, by: u64) -> u64 {
    if by == u64::MAX { by } else { by - by.saturating_sub(now) / 4 }
}

/// Asks for what a rank that fails sends to all others.
pub(super) fn ask_for_votes(step: &mut Step<'_>) {
    step.port.ask_all(vote_tag(step.tag));
    step.port.ask_all(note_tag(step.tag));
}

/// Tells all others that the step failed here, with a vote against it, and also with a note for ranks that
/// wait for messages of the step.
pub(super) fn refuse(step: &mut Step<'_>, error: &ExchangeError, by: u64) {
    let mut message = step.port.lend();
    vote_against(step, error).write(&mut message);
    // No rank uses the mean without this vote, so a peer that does not get it undoes the step too.
    step.send_to_all(vote_tag(step.tag), &message, Care::Until(by));
    step.send_to_all(note_tag(step.tag), &message, Care::Until(by));
    step.port.give(message);
}

/// Why the step failed elsewhere, if a vote or a note says so that is here.
pub(super) fn reason_told(step: &mut Step<'_>) -> Option<ExchangeError> {
    let members = step.members();
    let voted = step.others_in(&members).find_map(|(_, from)| vote_of(step, from)??.reason());
    voted.or_else(|| step.port.other_version()).or_else(|| {
        let (rank, note) = step.port.note.as_ref()?;
        let told = read_note(*rank, note, step.layout, step.key.step);
        Some(told).filter(|told| !matches!(told, ExchangeError::NotAgreed { .. }))
    })
}

/// The vote of a rank, if it is here; `Some(None)` if it cannot be read.
fn vote_of(step: &mut Step<'_>, from: Rank) -> Option<Option<Vote>> {
    let message = step.port.find(from, vote_tag(step.tag))?;
    let vote = Vote::read(&message, step.layout.len());
    step.port.give(message);
    Some(vote)
}

/// The end of a step of which this rank has the mean.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The others, in the order in which their votes count, and their votes that are here; `Some(None)` if
    /// one cannot be read.
    votes: Vec<(Rank, Option<Option<Vote>>)>,
    /// The first rank whose vote is missing, once the votes are counted.
    missing: Option<Rank>,
    /// The ranks whose words are still to come, if a vote is missing.
    silent: Vec<Rank>,
}

impl Ending {
    /// Votes yes.
    pub(super) fn begin(&mut self, step: &mut Step<'_>) {
        let members = step.members();
        self.votes.clear();
        self.votes.extend(step.others_in(&members).map(|(_, rank)| (rank, None)));
        self.missing = None;
        // A rank that misses this vote waits for a word of another rank.
        let until = Care::Until(step.port.deadline);
        step.send_to_all(vote_tag(step.tag), &[YES], until);
    }

    /// Counts the votes, or the words if a vote is missing. Returns whether the mean may be used; false: it
    /// is not known yet.
    pub(super) fn poll(&mut self, step: &mut Step<'_>, by: u64) -> Result<bool, ExchangeError> {
        if let Some(missing) = self.missing {
            return self.listen(step, missing);
        }
        let Some(counted) = self.count(step) else { return Ok(false) };
        let word = match &counted {
            Ok(None) => YES,
            Ok(Some(_)) => UNKNOWN,
            Err(_) => NO,
        };
        // If a peer cannot be told, that is no error: only ranks that miss a vote wait for the word. Where a
        // job has no deadlines, such a rank would wait for ever for a word that found no room.
        let until = if step.port.is_fail_stop { by } else { 0 };
        step.send_to_all(word_tag(step.tag), &[word], Care::Until(until));
        let Some(missing) = counted? else { return Ok(true) };
        self.missing = Some(missing);
        self.silent.clear();
        self.silent.extend(self.votes.iter().map(|(rank, _)| *rank));
        step.port.ask_all(word_tag(step.tag));
        step.port.deadline = by;
        Ok(false)
    }

    /// The first rank whose vote is missing, or the first vote other than yes; `None` while a vote may come.
    fn count(&mut self, step: &mut Step<'_>) -> Option<Result<Option<Rank>, ExchangeError>> {
        let mut missing = None;
        for (from, vote) in &mut self.votes {
            *vote = vote.take().or_else(|| vote_of(step, *from));
            match vote {
                Some(Some(Vote::Yes)) => {}
                Some(Some(vote)) => {
                    let not_agreed = ExchangeError::NotAgreed { rank: *from };
                    let reason = vote.reason().or_else(|| step.port.other_version());
                    let reason = reason.unwrap_or(not_agreed);
                    return Some(Err(reason));
                }
                None if missing.is_none() && is_awaited(step.port, *from, vote_tag(step.tag)) => return None,
                None | Some(None) => missing = missing.or(Some(*from)),
            }
        }
        Some(Ok(missing))
    }

    /// Looks for votes that came late, and for the word of any rank that knows how the step ended.
    fn listen(&mut self, step: &mut Step<'_>, missing: Rank) -> Result<bool, ExchangeError> {
        for (from, vote) in &mut self.votes {
            *vote = vote.take().or_else(|| vote_of(step, *from));
            if matches!(vote, Some(Some(vote)) if *vote != Vote::Yes) {
                return Err(ExchangeError::NotAgreed { rank: *from });
            }
        }
        if self.votes.iter().all(|(_, vote)| *vote == Some(Some(Vote::Yes))) {
            return Ok(true);
        }
        let mut at = 0;
        while let Some(&from) = self.silent.get(at) {
            let word = step.port.find(from, word_tag(step.tag));
            let said = word.as_deref().map(|word| <[u8; 1]>::try_from(word).unwrap_or([UNKNOWN]));
            word.into_iter().for_each(|word| step.port.give(word));
            match said {
                Some([YES]) => return Ok(true),
                Some([NO]) => return Err(ExchangeError::NotAgreed { rank: missing }),
                None if is_awaited(step.port, from, word_tag(step.tag)) => at += 1,
                _ => {
                    self.silent.remove(at);
                }
            }
        }
        if self.silent.is_empty() { Err(ExchangeError::Undecided { missing }) } else { Ok(false) }
    }
}

/// Whether that message may still come in time.
fn is_awaited(port: &mut Port, from: Rank, tag: Tag) -> bool {
    !port.is_lost(from, tag) && !port.is_over(port.deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_time_is_left_for_the_last_word() {
        assert_eq!(votes_by(7, u64::MAX), u64::MAX);
        assert_eq!(votes_by(1000, 5000), 4000);
        assert_eq!(votes_by(1000, 1000), 1000);
        assert_eq!(votes_by(1000, 10), 10);
    }
}
