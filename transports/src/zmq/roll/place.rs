//! What the server knows of one worker, and what becomes of it when a step closes.

use std::time::Instant;

use crate::rank::Rank;
use crate::tag::Tag;
use crate::zmq::transport::ZmqTransport;

/// A change of the membership.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It takes part from the next step on.
    Joined {
        /// Who.
        rank: Rank,
    },
    /// It left, and its residual is lost.
    Left {
        /// Who.
        rank: Rank,
        /// Norm of its residual in its last report. No step will add that residual any more.
        lost_norm: f64,
    },
    /// It is out until it asks again; it still has its residual.
    Out {
        /// Who.
        rank: Rank,
        /// Why.
        why: String,
    },
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Joined { rank } => write!(f, "{rank} takes part"),
            Self::Left { rank, lost_norm } => {
                write!(f, "{rank} is gone; its residual is lost: norm {lost_norm:.6}")
            }
            Self::Out { rank, why } => write!(f, "{rank} is out until it asks again: {why}"),
        }
    }
}

/// What the server knows of one worker.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) rank: Rank,
    /// The session in which it is a member.
    pub(super) member: Option<u64>,
    /// The session of its last request, and how many requests were answered in it.
    pub(super) asked: (u64, u32),
    /// Whether a request waits to be answered.
    pub(super) wants_in: bool,
    pub(super) missed: u32,
    /// The answer with the state, until it has arrived: its tag, and when its receiver is no longer excused.
    pub(super) state: Option<(Tag, Instant)>,
    /// Consecutive frames that were refused, and the reason for the last one.
    pub(super) spoiled: (u32, String),
    pub(super) norm: f64,
    /// Whether it leaves, and its residual is lost.
    pub(super) is_lost: bool,
    /// Why it will be put out, if it will be.
    pub(super) fault: Option<String>,
}

impl Place {
    /// Whether the state was on its way when the step began, and is not overdue: without the parameters a
    /// worker cannot take part, however slow its link.
    pub(super) fn had_no_state(&mut self, transport: &ZmqTransport, now: Instant) -> bool {
        let Some((tag, excused)) = self.state else { return false };
        let is_overdue = now >= excused;
        if is_overdue || transport.has_arrived(self.rank, tag) {
            self.state = None;
        }
        !is_overdue
    }

    /// Ends the membership of a worker that is gone, was late too often, or is at fault. `is_in` if it took
    /// part in the step, or could not.
    pub(super) fn judge(
        &mut self,
        session: Option<u64>,
        is_in: bool,
        may_miss: u32,
        changes: &mut Vec<Change>,
    ) {
        let fault = self.fault.take();
        let Some(member) = self.member else { return };
        self.missed = if is_in { 0 } else { self.missed + 1 };
        let (rank, missed) = (self.rank, self.missed);
        let change = match (session, fault) {
            (session, _) if session != Some(member) || self.is_lost => {
                Change::Left { rank, lost_norm: self.norm }
            }
            (_, Some(why)) => Change::Out { rank, why },
            _ if missed > may_miss => Change::Out { rank, why: format!("it missed {missed} steps in a row") },
            // A member that asks to join has lost its place in the run.
            _ if self.wants_in => Change::Out { rank, why: "it asked to begin again".to_owned() },
            _ => return,
        };
        self.member = None;
        changes.push(change);
    }

    /// Ends the membership of a worker that is not at fault, because too few members are left for a step.
    pub(super) fn wait_for_others(&mut self) -> Option<Change> {
        self.member.take()?;
        let why = "too few are left for a step, and all begin the next one together".to_owned();
        Some(Change::Out { rank: self.rank, why })
    }

    /// Makes a worker that asked to join a member.
    pub(super) fn let_in(&mut self) -> Option<Rank> {
        if !self.wants_in {
            return None;
        }
        (self.wants_in, self.missed, self.norm, self.is_lost) = (false, 0, 0.0, false);
        self.member = Some(self.asked.0);
        Some(self.rank)
    }
}
