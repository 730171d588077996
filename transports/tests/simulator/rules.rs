//! What holds after every schedule.

use std::ops::AddAssign;

use gradwire_transports::exchange::{ExchangeError, Route};
use gradwire_transports::{Rank, Tag};

use super::network::OTHER_VERSION;
use super::schedule::{self, Case, End, Schedule};

/// How often steps ended in each way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    means: u64,
    void: u64,
    failed: u64,
    undecided: u64,
    /// Ranks that were told what another rank's caller says.
    told: u64,
    /// Parts whose mean was there before the step was over, and parts that were void.
    parts: u64,
    void_parts: u64,
    /// Ranks that refused another one for its version.
    refused: u64,
    /// Servers whose network failed after a worker had their mean.
    answered: u64,
}

impl Seen {
    /// Whether every way was seen. Where a server decides, or nothing is lost, every rank knows how the step
    /// ended or has no answer.
    pub(crate) fn is_complete(&self, case: &Case) -> bool {
        let is_served = matches!(case.route, Route::Server(_));
        let is_decided = is_served || matches!(case.route, Route::Native { .. });
        let is_decided = (self.undecided > 0) != is_decided && self.told > 0 && self.refused > 0;
        let has_parts = !case.adds || self.parts > 0 && self.void_parts > 0;
        let has_answered = !is_served || self.answered > 0;
        let has_ends = [self.means, self.void, self.failed].iter().all(|count| *count > 0);
        is_decided && has_parts && has_answered && has_ends
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.means += other.means;
        self.void += other.void;
        self.failed += other.failed;
        self.undecided += other.undecided;
        self.told += other.told;
        self.parts += other.parts;
        self.void_parts += other.void_parts;
        self.refused += other.refused;
        self.answered += other.answered;
    }
}

/// Votes and words: see `exchange/ending.rs`.
const LAST_UNIT: u32 = u32::MAX;
const VOTE: u32 = 1;
const WORD: u32 = 2;
const YES: u8 = 0xa5;
const NO: u8 = 0x5a;
/// How a vote begins that can be read.
const VOTES: [u8; 3] = [YES, NO, 0x3c];

pub(crate) fn check(schedule: &Schedule) -> Seen {
    let mut seen = Seen::default();
    for step in 0..schedule.steps as usize {
        let ends: Vec<(Rank, &End)> =
            schedule.peers.iter().filter_map(|peer| Some((peer.rank, peer.ends.get(step)?))).collect();
        for (rank, end) in &ends {
            match &end.outcome {
                Ok(_) => seen.means += 1,
                Err(ExchangeError::Undecided { .. }) => {
                    let heard = &schedule.peers[rank.0 as usize].heard[..end.heard];
                    let may_be = may_be_undecided(schedule, step as u64, *rank, heard);
                    assert!(may_be, "{rank} can know how the step ended: it has heard {heard:?}");
                    seen.undecided += 1;
                }
                Err(error) if error.is_void() => seen.void += 1,
                Err(ExchangeError::Failed { rank: by, text }) => {
                    let said = schedule::text(*by, step as u64);
                    let is_cut = schedule.is_lossy && said.starts_with(text);
                    let is_version = text.contains("exchanges by version");
                    assert!(*text == said || is_cut || is_version, "{rank} was told {text}");
                    seen.told += u64::from(by != rank);
                }
                Err(_) => seen.failed += 1,
            }
            conserves(schedule, *rank, end);
        }
        refuse(schedule, &ends, &mut seen);
        same_parts(schedule, &ends, &mut seen);
        told(schedule, &ends);
        agree(schedule, &ends);
        keeps_means(schedule, &ends, &mut seen);
        applied(schedule, &ends);
    }
    seen
}

/// No mean holds anything of a rank of another version, and who refuses it says so.
fn refuse(schedule: &Schedule, ends: &[(Rank, &End)], seen: &mut Seen) {
    let stranger = schedule.network.stranger;
    for (rank, end) in ends {
        let is_other = |other: Rank| (Some(other) == stranger) != (Some(*rank) == stranger);
        match &end.outcome {
            Ok((_, report)) => {
                let other = report.contributors.iter().find(|other| is_other(*other));
                assert_eq!(other, None, "the mean of {rank} holds the gradient of another version");
            }
            Err(ExchangeError::OtherVersion { rank: other, theirs, own }) => {
                let is_damaged = schedule.network.faults.cut > 0;
                assert_ne!(theirs, own);
                assert!(is_damaged || is_other(*other) && *theirs == OTHER_VERSION, "{rank} refuses {other}");
                seen.refused += u64::from(is_other(*other));
            }
            Err(error) => {
                // An owner that refuses a part of a sparse sum says no more than that.
                let is_told = error.is_void()
                    || matches!(error, ExchangeError::Failed { .. } | ExchangeError::NoSum { .. });
                let must_say = stranger.is_some() && !schedule.is_lossy && !schedule.has_deaths;
                assert!(!must_say || is_told, "{rank} does not name the version: {error}");
            }
        }
    }
}

/// The mean of a part has the same bits wherever it was there, and stays as it is.
fn same_parts(schedule: &Schedule, ends: &[(Rank, &End)], seen: &mut Seen) {
    for (at, units) in schedule.parts.iter().enumerate() {
        let mut first: Option<(Rank, &Vec<u32>)> = None;
        for (rank, end) in ends {
            let Some(given) = end.given.get(at) else { continue };
            seen.void_parts += u64::from(given.is_none());
            let Some(given) = given else { continue };
            seen.parts += 1;
            let (other, same) = *first.get_or_insert((*rank, given));
            assert!(given == same, "part {at}: {rank} and {other} have different means");
            if let Ok((mean, _)) = &end.outcome {
                let now: Vec<u32> = schedule.bits_of(units, mean);
                assert!(now == *given, "part {at} has changed at {rank}");
            }
        }
    }
}

/// Where nothing is lost, no rank goes on when another one says that it fails, or that its gradient cannot be
/// encoded.
fn told(schedule: &Schedule, ends: &[(Rank, &End)]) {
    let says = |(rank, end): &(Rank, &End)| match &end.outcome {
        Err(ExchangeError::Failed { rank: by, .. }) => by == rank,
        outcome => matches!(outcome, Err(ExchangeError::Encode(_))),
    };
    if schedule.is_lossy || schedule.ends_with_failure || !ends.iter().any(says) {
        return;
    }
    for (rank, end) in ends {
        let is_told =
            |error: &ExchangeError| error.is_void() || matches!(error, ExchangeError::Failed { .. });
        assert!(end.outcome.as_ref().is_err_and(is_told), "{rank} is not told: {:?}", end.outcome);
    }
}

/// All have the same mean, or none has one; only a rank that cannot know may differ. Where the job ends, some
/// ranks have ended a step and others cannot.
fn agree(schedule: &Schedule, ends: &[(Rank, &End)]) {
    let means: Vec<_> =
        ends.iter().filter_map(|(rank, end)| Some((rank, &end.outcome.as_ref().ok()?.0))).collect();
    let bits = |mean: &[f32]| mean.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for (rank, mean) in &means {
        assert!(bits(mean) == bits(means[0].1), "{rank} and {} have different means", means[0].0);
    }
    if means.is_empty() || schedule.ends_with_failure {
        return;
    }
    for (rank, end) in ends {
        if let Err(error) = &end.outcome {
            let is_open = schedule.is_lossy && is_open(schedule.is_served, *rank, &end.outcome);
            assert!(is_open, "{} has a mean, and {rank} has none: {error}", means[0].0);
        }
    }
}

/// Whether a rank failed in a step in which others may have a mean, where messages are lost.
pub(crate) fn is_open<T>(is_served: bool, rank: Rank, outcome: &Result<T, ExchangeError>) -> bool {
    match outcome {
        Ok(_) => false,
        // The server can continue without this rank, and its answer may be lost or cut.
        Err(_) if is_served => rank != Rank(0),
        Err(error) => matches!(error, ExchangeError::Undecided { .. }),
    }
}

/// A rank cannot know how a step ended only if a vote did not come in time, and no word of a rank that knows.
fn may_be_undecided(schedule: &Schedule, step: u64, rank: Rank, heard: &[(Rank, Tag, Vec<u8>)]) -> bool {
    let heard = |chunk, from, says: &dyn Fn(&[u8]) -> bool| {
        heard.iter().any(|(by, tag, bytes)| {
            (tag.step, tag.unit, tag.chunk, *by) == (step, LAST_UNIT, chunk, from) && says(bytes)
        })
    };
    let is_vote = |bytes: &[u8]| bytes.first().is_some_and(|first| VOTES.contains(first));
    let mut others = schedule.peers.iter().map(|peer| peer.rank).filter(|other| *other != rank);
    let misses_a_vote = others.clone().any(|from| !heard(VOTE, from, &is_vote));
    let has_a_word = others.any(|from| heard(WORD, from, &|bytes| bytes == [YES] || bytes == [NO]));
    (schedule.is_lossy || schedule.ends_with_failure) && misses_a_vote && !has_a_word
}

/// Sent + kept = residual + gradient. A step without a mean has sent nothing, and taught nothing.
fn conserves(schedule: &Schedule, rank: Rank, end: &End) {
    let End { outcome, grad, before, after, state, .. } = end;
    assert!(outcome.is_ok() || state[0] == state[1], "{rank} has learned of a step that failed");
    let error = match outcome {
        Ok((_, report)) if report.contributors.contains(rank) => return,
        // The server did without this rank.
        Ok(_) => &ExchangeError::NotStarted,
        Err(error) => error,
    };
    let is_own = match error {
        ExchangeError::Failed { rank: by, .. } => *by == rank,
        error => matches!(error, ExchangeError::Encode(_)),
    };
    // So it is with a part that cannot be encoded after another rank has failed.
    let is_own = is_own || grad.iter().any(|value| !value.is_finite());
    let is_undone = schedule.undoes && outcome.is_err();
    for at in 0..grad.len() {
        let all = if schedule.keeps[at] { before[at] + grad[at] } else { before[at] };
        // A rank whose gradient was refused keeps what it had, and of parts that it had encoded all of it.
        let is_kept = match (is_undone, is_own) {
            (true, _) => after[at] == before[at],
            (false, true) => after[at] == before[at] || after[at] == all,
            (false, false) => after[at] == all,
        };
        let (kept, before) = (after[at], before[at]);
        assert!(is_kept, "{rank} keeps {kept} at {at}; it had {before}, with the gradient {all}: {error}");
    }
}

/// A server keeps of a mean what it does not send, and what it kept before where its step fails, also after
/// it has answered. No worker keeps any of it.
fn keeps_means(schedule: &Schedule, ends: &[(Rank, &End)], seen: &mut Seen) {
    let has_mean = ends.iter().any(|(_, end)| end.outcome.is_ok());
    for (rank, end) in ends {
        let is_broken = matches!(end.outcome, Err(ExchangeError::Transport(_)));
        seen.answered += u64::from(schedule.is_served && *rank == Rank(0) && is_broken && has_mean);
        let [before, after] = &end.downlink;
        let is_server = schedule.is_served && *rank == Rank(0);
        let is_same = before == after || is_server && end.outcome.is_ok();
        assert!(is_same, "{rank} keeps {after:?} of means, and kept {before:?}: {:?}", end.outcome);
    }
}

/// The mean of what all ranks sent, if each of them has it.
fn applied(schedule: &Schedule, ends: &[(Rank, &End)]) {
    let Some((_, End { outcome: Ok((mean, report)), downlink, .. })) = ends.first() else { return };
    // A worker that missed the server's answer has taken back what was applied.
    let who = report.contributors.as_slice();
    let mut ends = ends.iter().filter(|(rank, end)| who.contains(rank) && end.outcome.is_ok());
    let ends: Vec<_> = ends.by_ref().collect();
    if ends.len() < who.len() || !schedule.is_whole {
        return;
    }
    let world = who.len();
    let size = |end: &End, at: usize| end.before[at].abs() + end.grad[at].abs() + end.after[at].abs();
    let sizes = |at| ends.iter().map(|(_, end)| size(end, at)).sum::<f32>();
    let largest = (0..mean.len()).map(sizes).fold(0.0, f32::max);
    for (at, mean) in mean.iter().enumerate() {
        let sent_by =
            |end: &End| f64::from(end.before[at]) + f64::from(end.grad[at]) - f64::from(end.after[at]);
        let sent: f64 = ends.iter().map(|(_, end)| sent_by(end)).sum();
        // What a server sent of the mean, and what it keeps of it.
        let [before, after] = [0, 1].map(|time| f64::from(downlink[time][at]));
        let all = f64::from(*mean) + after - before;
        let off = (all * world as f64 - sent).abs();
        let bound = f64::from(largest) * schedule.rounding;
        assert!(off <= bound, "{mean} was applied {world} times at {at}, {after} is kept, {sent} was sent");
    }
}
