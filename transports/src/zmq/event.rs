//! Events of the network, for people: who, and why.

use std::fmt;
use std::sync::Arc;

use crate::rank::Rank;

/// An event for the operator of the job. Events that strangers cause are reported once and then at growing
/// intervals, with their number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer is there.
    Joined {
        /// Who.
        rank: Rank,
    },
    /// The connection to a peer broke and was restored. No message was lost.
    Resumed {
        /// Who.
        rank: Rank,
    },
    /// A peer is silent, or the connection to it broke.
    Silent {
        /// Who.
        rank: Rank,
    },
    /// A peer is waited for. Told at growing intervals.
    Waiting {
        /// Who.
        rank: Rank,
        /// For how many seconds.
        seconds: u64,
        /// What is known of the reason: where it is looked for, how far it has come.
        known: String,
    },
    /// A peer is gone.
    Gone {
        /// Who.
        rank: Rank,
        /// Why: it left, was given up, or broke the protocol.
        why: String,
    },
    /// The list of peers was replaced, and a rank has another key, or none.
    Listed {
        /// The rank.
        rank: Rank,
        /// What changed for it.
        what: &'static str,
    },
    /// A peer was turned away.
    Refused {
        /// Its rank, or its address and key.
        who: String,
        /// Why.
        why: String,
        /// How often since the last such event.
        times: u64,
    },
    /// A peer that was let in sent an invalid message, which was dropped.
    Garbage {
        /// Its rank.
        who: String,
        /// What.
        what: String,
        /// How often since the last such event.
        times: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let often = |times: &u64| if *times > 1 { format!(" ({times} times)") } else { String::new() };
        match self {
            Self::Joined { rank } => write!(f, "{rank} is here"),
            Self::Resumed { rank } => write!(f, "{rank} is here again; nothing was lost"),
            Self::Silent { rank } => write!(f, "{rank} is silent"),
            Self::Waiting { rank, seconds, known } => {
                write!(f, "waiting for {rank} for {seconds} s: {known}")
            }
            Self::Gone { rank, why } => write!(f, "{rank} is gone: {why}"),
            Self::Listed { rank, what } => write!(f, "{rank} {what}"),
            Self::Refused { who, why, times } => write!(f, "{who} was not let in: {why}{}", often(times)),
            Self::Garbage { who, what, times } => write!(f, "dropped from {who}: {what}{}", often(times)),
        }
    }
}

/// The receiver of events. It is called on the transport's own thread, so it must be quick.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&Event) + Send + Sync>);

impl Log {
    /// Calls `hear` for each event.
    pub fn new(hear: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    pub(super) fn tell(&self, event: &Event) {
        (self.0)(event);
    }
}

impl Default for Log {
    /// No receiver.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}
