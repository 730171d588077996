//! The messages of a step as this rank sees them: those that leave, those that arrived, and those that it
//! waits for.
//!
//! Routes queue messages and take messages; they never wait. A driver moves what is queued, and hands in what
//! arrives, in any order.

mod arriving;
mod leaving;

use std::collections::VecDeque;

use gradwire::Layout;

pub(crate) use self::leaving::Body;
pub use self::leaving::Care;
use self::leaving::Parcel;
use super::error::ExchangeError;
use super::version::VERSION;
use super::vote::read_note;
use crate::error::TransportError;
use crate::inbox::{Inbox, InboxLimits};
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Tag, Wanted};

/// The first capacity of a buffer for messages that arrive.
const PAGE: usize = 4096;

/// The unit of packets by routes that have any.
pub(super) const PACKET_UNIT: u32 = 1;

/// Messages that peers have promised are taken by name, most of them in the order in which they were
/// promised. Every peer sends its own in that order too, so no message waits for a later one. Messages that
/// may come or not are asked for.
#[derive(Debug)]
pub struct Port {
    me: Rank,
    members: Membership,
    /// The first tag of the step.
    step: Tag,
    pub(super) is_fail_stop: bool,
    pub(crate) now: u64,
    pub(crate) deadline: u64,
    outbox: VecDeque<Parcel>,
    next_id: u64,
    /// Receivers without room for a message, until the next try.
    full: Vec<Rank>,
    promised: VecDeque<(Rank, Tag)>,
    /// The messages that arrived of those promised, by position.
    arrived: VecDeque<Option<Vec<u8>>>,
    /// The one without which the step does not go on.
    needed: Option<(Rank, Tag)>,
    /// Messages that may come or not, and those of them that came.
    asked: Vec<Wanted>,
    found: Vec<(Rank, Tag, Vec<u8>)>,
    /// Messages that nobody has asked for yet.
    inbox: Inbox,
    early: InboxLimits,
    /// How many messages were handed in, and how many there were when a wait last ran out of time. Messages
    /// that have arrived count, even if nobody has handed them in yet.
    heard: u64,
    looked: Option<u64>,
    /// Promised messages that were taken, to know a second copy.
    taken: Vec<(Rank, Tag)>,
    /// Peers that send nothing more, and messages that do not come.
    lost: Vec<Rank>,
    never: Vec<Wanted>,
    /// Why a message that the step needs was not sent.
    unsent: Option<TransportError>,
    /// Why the network is of no more use.
    broken: Option<TransportError>,
    /// Whether parts are added one by one. What a peer sends of a part may then come before this rank adds
    /// it, and every message is taken when it is there.
    pub(super) is_open: bool,
    /// Whether all ranks vote at the end of a step, also over a network that is fail-stop.
    pub(super) votes: bool,
    /// Whether parts also hold if their means are not finite.
    pub(super) takes_any: bool,
    /// The step of frames, which tags may give another number.
    pub(super) frame_step: u64,
    /// What the caller at this rank says of its failure.
    pub(super) failing: Option<String>,
    /// Whether ranks that fail send notes, and not only void frames in place of their frames.
    pub(crate) has_notes: bool,
    /// Whether messages of the unit of packets are packets, which have no version.
    pub(super) has_packets: bool,
    /// The first rank of another version, and that version.
    other: Option<(Rank, u8)>,
    /// The first note, and its sender.
    pub(super) note: Option<(Rank, Vec<u8>)>,
    /// Buffers of messages that were sent. They stay apart from those that the network swaps for its own,
    /// whose lengths are not known here.
    sent: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// What [`wanted`](Self::wanted) returned last.
    wanted: Vec<Wanted>,
}

impl Port {
    /// `early` bounds the messages of each sender that nobody has asked for yet.
    pub(crate) fn new(early: InboxLimits) -> Self {
        let (outbox, full, promised, arrived, asked) = Default::default();
        let (taken, lost, never, unsent, broken, note) = Default::default();
        let (sent, spare, wanted, found, failing) = Default::default();
        Self {
            me: Rank(0),
            members: Membership { epoch: 0, ranks: RankSet::default() },
            step: Tag::default(),
            is_fail_stop: true,
            now: 0,
            deadline: u64::MAX,
            outbox,
            next_id: 0,
            full,
            promised,
            arrived,
            needed: None,
            asked,
            found,
            inbox: Inbox::new(early),
            early,
            heard: 0,
            looked: None,
            taken,
            lost,
            never,
            unsent,
            broken,
            is_open: false,
            votes: false,
            takes_any: false,
            frame_step: 0,
            failing,
            has_notes: false,
            has_packets: false,
            other: None,
            note,
            sent,
            spare,
            wanted,
        }
    }

    /// Begins a step. Messages of earlier ones are dropped, now and when they arrive; messages of this one
    /// may be here already.
    pub(crate) fn begin(&mut self, me: Rank, members: Membership, is_fail_stop: bool, step: Tag) {
        self.end();
        (self.me, self.members, self.is_fail_stop, self.step) = (me, members, is_fail_stop, step);
        (self.has_notes, self.note, self.unsent, self.broken, self.looked) = (false, None, None, None, None);
        (self.is_open, self.failing, self.frame_step) = (false, None, step.step);
        (self.has_packets, self.other) = (false, None);
        self.taken.clear();
        self.lost.clear();
        self.lost.reserve(self.members.world());
        self.never.clear();
        // A peer that has finished may leave while this rank has not. It is asked for a note or a vote then.
        self.never.reserve(4 * self.members.world());
        if self.inbox.is_retired(step) {
            // Steps are counted afresh.
            self.inbox = Inbox::new(self.early);
        }
        self.inbox.retire(step, |buffer| self.spare.push(buffer));
        // One for each member, as all may send before the first is heard, and one in the driver's hands. What
        // is swapped with an empty one is lost to the network.
        self.spare.retain(|buffer| buffer.capacity() > 0);
        while self.spare.len() <= self.members.world() {
            self.spare.push(Vec::with_capacity(PAGE));
        }
    }

    /// Drops what is queued and what is waited for.
    pub(crate) fn end(&mut self) {
        self.spare.extend(self.arrived.drain(..).flatten());
        self.promised.clear();
        self.needed = None;
        self.asked.clear();
        self.spare.extend(self.found.drain(..).map(|(_, _, message)| message));
        self.full.clear();
        while let Some(parcel) = self.outbox.pop_front() {
            self.recycle(parcel);
        }
    }

    /// Frees the buffers that wait for the next messages.
    pub(super) fn free(&mut self) {
        (self.sent, self.spare) = Default::default();
    }

    pub(super) fn rank(&self) -> Rank {
        self.me
    }

    pub(super) fn members(&self) -> &Membership {
        &self.members
    }

    /// Whether the ranks must tell each other how the step ended.
    pub(super) fn has_votes(&self) -> bool {
        (self.votes || self.is_open || !self.is_fail_stop) && self.members.world() > 1
    }

    /// An empty buffer for a message that arrives.
    pub(crate) fn lend(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// The first rank that has sent a message of another version in this step.
    pub(super) fn other_version(&self) -> Option<ExchangeError> {
        self.other.map(|(rank, theirs)| ExchangeError::OtherVersion { rank, theirs, own: VERSION })
    }

    /// # Errors
    /// If a rank has another version.
    pub(super) fn require_version(&self) -> Result<(), ExchangeError> {
        self.other_version().map_or(Ok(()), Err)
    }

    /// Whether no rank has said that it fails, and the network works.
    ///
    /// # Errors
    /// What has happened.
    pub(super) fn heed(&self, layout: &Layout) -> Result<(), ExchangeError> {
        self.require_version()?;
        if let Some((rank, note)) = &self.note {
            return Err(read_note(*rank, note, layout, self.frame_step));
        }
        Ok(self.failure()?)
    }

    /// Why messages that the step needs do not travel.
    pub(super) fn failure(&self) -> Result<(), TransportError> {
        self.unsent.as_ref().or(self.broken.as_ref()).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The network is of no more use.
    pub(crate) fn fail(&mut self, error: TransportError) {
        self.broken.get_or_insert(error);
    }
}
