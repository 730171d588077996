//! The messages of a step as this rank sees them: those that leave, those that arrived, and those that it
//! waits for.
//!
//! Routes queue messages and take messages; they never wait. A driver moves what is queued, and hands in what
//! arrives, in any order.

use std::collections::VecDeque;

use gradwire::Layout;

use super::error::ExchangeError;
use super::refusal::Refusal;
use super::version::{self, TAIL, VERSION};
use super::void::{is_short, note_tag, refusal};
use crate::error::TransportError;
use crate::inbox::{Admission, Inbox, InboxLimits};
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Tag, Wanted};

/// The first capacity of a buffer for messages that arrive.
const PAGE: usize = 4096;

/// The unit of packets by routes that have any.
pub(super) const PACKET_UNIT: u32 = 1;

/// Where the bytes of a queued message are.
#[derive(Debug)]
pub(crate) enum Body {
    /// In a buffer of the port, which ends it with the [version](super::version).
    Own(Vec<u8>),
    /// With the route, which keeps them until the message is sent, and ends them with the version: its frame
    /// of a part, for one of the members.
    Frame { part: usize, place: usize },
}

/// What becomes of a message that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// The step fails if it does not leave before the deadline.
    Must,
    /// It is lost at that time.
    Until(u64),
    /// It may also be lost on the way: see [`Transport::send_packet`](crate::Transport::send_packet). Nobody
    /// sends it again after that time.
    Packet(u64),
}

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(super) id: u64,
    pub(super) to: Rank,
    pub(super) tag: Tag,
    pub(super) body: Body,
    pub(super) care: Care,
}

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

    // --- the route's side ------------------------------------------

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

    /// An empty buffer for a message of at most so many bytes.
    pub(crate) fn lend_for(&mut self, bytes: usize) -> Vec<u8> {
        // The version follows.
        let bytes = bytes + 1;
        let at = self.sent.iter().position(|buffer| buffer.capacity() >= bytes);
        let fitting = at.map(|at| self.sent.swap_remove(at));
        let mut buffer = fitting.or_else(|| self.sent.pop()).unwrap_or_default();
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    pub(crate) fn queue(&mut self, to: Rank, tag: Tag, body: Body, care: Care) {
        let mut body = body;
        if let Body::Own(bytes) = &mut body {
            bytes.push(TAIL);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.outbox.push_back(Parcel { id, to, tag, body, care });
    }

    /// Queues a copy of a short message.
    pub(crate) fn queue_copy(&mut self, to: Rank, tag: Tag, message: &[u8], care: Care) {
        let mut copy = self.lend_for(message.len());
        copy.extend_from_slice(message);
        self.queue(to, tag, Body::Own(copy), care);
    }

    /// Drops what the step alone needs, because it has failed and all ranks are told so.
    pub(crate) fn drop_musts(&mut self) {
        for _ in 0..self.outbox.len() {
            match self.outbox.pop_front() {
                Some(parcel) if parcel.care == Care::Must => self.recycle(parcel),
                parcel => self.outbox.extend(parcel),
            }
        }
    }

    /// Records that `from` will send a message with `tag`.
    pub(crate) fn expect(&mut self, from: Rank, tag: Tag) {
        self.looked = None;
        self.promised.push_back((from, tag));
        let early = self.inbox.take(from, tag).map(|message| self.open(from, tag, message));
        let early = early.or_else(|| self.find(from, tag));
        self.arrived.push_back(early);
    }

    /// Takes the version off a message of this step.
    fn open(&mut self, from: Rank, tag: Tag, mut message: Vec<u8>) -> Vec<u8> {
        if !(self.has_packets && tag.unit == PACKET_UNIT) {
            let theirs = version::take_off(&mut message);
            self.other = self.other.or(theirs.map(|theirs| (from, theirs)));
        }
        message
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

    /// Takes the message that is expected first, if it is here.
    ///
    /// # Errors
    /// Why it does not come any more.
    ///
    /// # Panics
    /// When no message is expected.
    pub(super) fn take(&mut self, into: &mut Vec<u8>, layout: &Layout) -> Result<bool, ExchangeError> {
        let first = *self.promised.front().expect("who takes a message was promised one");
        self.take_named(first, into, layout)
    }

    /// Takes a message that is expected, if it is here.
    ///
    /// # Errors
    /// Why it does not come any more.
    ///
    /// # Panics
    /// When it is not expected.
    pub(crate) fn take_named(
        &mut self,
        (from, tag): (Rank, Tag),
        into: &mut Vec<u8>,
        layout: &Layout,
    ) -> Result<bool, ExchangeError> {
        self.require_version()?;
        let at = self.promised.iter().position(|promised| *promised == (from, tag));
        let at = at.expect("who takes a message was promised it");
        self.needed = Some((from, tag));
        if self.arrived[at].is_none() {
            return self.wait((from, tag), layout).map(|()| false);
        }
        self.needed = None;
        self.taken.extend(self.promised.remove(at));
        let message = self.arrived.remove(at).flatten().unwrap_or_default();
        self.spare.push(std::mem::replace(into, message));
        Ok(true)
    }

    /// Whether there is a reason not to wait for a message.
    fn wait(&mut self, (from, tag): (Rank, Tag), layout: &Layout) -> Result<(), ExchangeError> {
        if let Some((rank, note)) = &self.note {
            return Err(super::ending::read_note(*rank, note, layout, self.frame_step));
        }
        if !self.has_notes
            && let Some(refusal) = self.refusal_beside(tag, layout)
        {
            return Err(refusal);
        }
        self.failure()?;
        if self.is_lost(from, tag) {
            return Err(TransportError::Disconnected { rank: from }.into());
        }
        if self.is_over(self.deadline) { Err(TransportError::Timeout { from, tag }.into()) } else { Ok(()) }
    }

    /// Whether no rank has said that it fails, and the network works.
    ///
    /// # Errors
    /// What has happened.
    pub(super) fn heed(&self, layout: &Layout) -> Result<(), ExchangeError> {
        self.require_version()?;
        if let Some((rank, note)) = &self.note {
            return Err(super::ending::read_note(*rank, note, layout, self.frame_step));
        }
        Ok(self.failure()?)
    }

    /// A void frame or a failure among the other messages with the tag that this rank waits for. Messages
    /// with this tag are enough: a rank sends its void frame to all others with the same tag, and this rank
    /// has already sent all that they wait for before they reach that tag.
    fn refusal_beside(&self, tag: Tag, layout: &Layout) -> Option<ExchangeError> {
        let mut here = self.promised.iter().zip(&self.arrived).filter(|((_, other), _)| *other == tag);
        here.find_map(|((from, _), message)| {
            let message = message.as_ref().filter(|message| is_short(message))?;
            refusal(*from, message, &layout.as_ref(), self.frame_step)
        })
    }

    /// Asks every other member for a message that may come or not.
    pub(super) fn ask_all(&mut self, tag: Tag) {
        let (ranks, me) = (self.members.ranks.clone(), self.me);
        ranks.iter().filter(|rank| *rank != me).for_each(|from| self.ask(Wanted::one(from, tag)));
    }

    /// Asks for messages that may come or not.
    pub(crate) fn ask(&mut self, wanted: Wanted) {
        self.looked = None;
        let mut is_here = false;
        while let Some(((from, tag), message)) = self.inbox.take_any(&[wanted]) {
            self.file_asked(from, tag, message);
            is_here = true;
        }
        if wanted.chunks > 1 || !is_here {
            self.asked.push(wanted);
        }
    }

    /// Asks for nothing more of that rank.
    pub(super) fn forget(&mut self, from: Rank) {
        self.asked.retain(|asked| asked.from != from);
    }

    fn file_asked(&mut self, from: Rank, tag: Tag, message: Vec<u8>) {
        let message = self.open(from, tag, message);
        if tag != note_tag(self.step) {
            self.found.push((from, tag, message));
        } else if self.note.is_none() {
            self.note = Some((from, message));
        } else {
            self.spare.push(message);
        }
    }

    /// Takes a message that was asked for, if it is here.
    pub(super) fn find(&mut self, from: Rank, tag: Tag) -> Option<Vec<u8>> {
        let at = self.found.iter().position(|found| (found.0, found.1) == (from, tag))?;
        self.taken.push((from, tag));
        Some(self.found.swap_remove(at).2)
    }

    /// Takes any of several messages that were asked for.
    pub(super) fn find_any(&mut self, wanted: &Wanted) -> Option<(Tag, Vec<u8>)> {
        let at = self.found.iter().position(|(from, tag, _)| wanted.holds(*from, *tag))?;
        let (_, tag, message) = self.found.swap_remove(at);
        Some((tag, message))
    }

    /// Whether a wait until `by` is over: the time has come, and what has arrived by then is handed in.
    pub(super) fn is_over(&mut self, by: u64) -> bool {
        if self.now < by || self.looked == Some(self.heard) {
            return self.now >= by;
        }
        self.looked = Some(self.heard);
        self.deadline = self.deadline.min(self.now);
        false
    }

    /// Whether a message cannot come any more.
    pub(super) fn is_lost(&self, from: Rank, tag: Tag) -> bool {
        let is_gone = self.lost.contains(&from) || self.never.iter().any(|never| never.holds(from, tag));
        self.broken.is_some() || is_gone
    }

    /// The senders of messages that have not come, with the tag of the one that is needed.
    pub(super) fn missing(&self) -> Vec<Rank> {
        let tag = self.needed.map(|(_, tag)| tag);
        let missing = self.promised.iter().zip(&self.arrived).filter(|(_, message)| message.is_none());
        let missing = missing.map(|(name, _)| *name).filter(|(_, other)| tag.is_none_or(|tag| tag == *other));
        let mut ranks: Vec<Rank> = missing.map(|(from, _)| from).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Whether everything that must leave has left.
    ///
    /// # Errors
    /// If it can no longer leave.
    pub(crate) fn has_sent(&self) -> Result<bool, TransportError> {
        self.failure()?;
        let Some(parcel) = self.outbox.iter().find(|parcel| parcel.care == Care::Must) else {
            return Ok(true);
        };
        let late = TransportError::NoRoom { to: parcel.to, tag: parcel.tag };
        if self.now >= self.deadline { Err(late) } else { Ok(false) }
    }

    /// Why messages that the step needs do not travel.
    pub(super) fn failure(&self) -> Result<(), TransportError> {
        self.unsent.as_ref().or(self.broken.as_ref()).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether nothing is queued that can still leave.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty() || self.broken.is_some()
    }

    // --- the driver's side ------------------------------------------

    /// The first queued message whose receiver may have room.
    pub(crate) fn outgoing(&self) -> Option<&Parcel> {
        self.outbox.iter().find(|parcel| !self.full.contains(&parcel.to))
    }

    /// A message has left, or nobody needs it any more.
    pub(crate) fn sent(&mut self, id: u64) {
        if let Some(at) = self.outbox.iter().position(|parcel| parcel.id == id)
            && let Some(parcel) = self.outbox.remove(at)
        {
            self.recycle(parcel);
        }
    }

    fn recycle(&mut self, parcel: Parcel) {
        if let Body::Own(buffer) = parcel.body {
            self.sent.push(buffer);
        }
    }

    /// A message found no room. It is lost if its time is over; else its receiver is tried again later.
    pub(crate) fn no_room(&mut self, id: u64) {
        let Some(parcel) = self.outbox.iter().find(|parcel| parcel.id == id) else { return };
        match parcel.care {
            Care::Until(until) | Care::Packet(until) if until <= self.now => self.sent(id),
            _ => self.full.push(parcel.to),
        }
    }

    /// Whether a message waits for room.
    pub(crate) fn is_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Receivers that were full may have room again.
    pub(crate) fn retry(&mut self) {
        self.full.clear();
    }

    /// A message cannot be sent. One that may be lost is lost.
    pub(crate) fn not_sent(&mut self, id: u64, error: TransportError) {
        if let Some(parcel) = self.outbox.iter().find(|parcel| parcel.id == id)
            && parcel.care == Care::Must
        {
            self.unsent.get_or_insert(error);
        }
        self.sent(id);
    }

    /// The messages to receive now, those needed first at the front.
    pub(crate) fn wanted(&mut self) -> &[Wanted] {
        self.wanted.clear();
        // Others with the tag of the one that is needed may be void frames, and what its sender promised
        // before may stand in its way. Those behind are taken when their turn comes, or at once if this rank
        // has no room to send: that makes room for others.
        let needed = self.needed.or_else(|| self.promised.front().copied()).filter(|_| self.full.is_empty());
        let at = needed.and_then(|needed| self.promised.iter().position(|promised| *promised == needed));
        let is_urgent = |place: usize, (from, tag): (Rank, Tag)| {
            self.is_open
                || needed.is_none_or(|needed| tag == needed.1 || from == needed.0 && Some(place) < at)
        };
        let missing = self.promised.iter().zip(&self.arrived).enumerate();
        let missing = missing.filter(|(at, (name, message))| message.is_none() && is_urgent(*at, **name));
        let missing = missing.map(|(_, both)| both);
        let missing = missing.map(|((from, tag), _)| Wanted::one(*from, *tag));
        let all = missing.chain(self.asked.iter().copied());
        let is_gone = |wanted: &Wanted| self.lost.contains(&wanted.from) || self.never.contains(wanted);
        self.wanted.extend(all.filter(|wanted| !is_gone(wanted)));
        &self.wanted
    }

    /// Files a message. It is taken when its turn comes.
    pub(crate) fn receive(&mut self, from: Rank, tag: Tag, message: Vec<u8>) -> Result<(), Refusal> {
        if from == self.me || !self.members.ranks.contains(from) {
            return Err(Refusal::Stranger { from });
        }
        if tag.epoch != self.members.epoch {
            return Err(Refusal::OtherEpoch { from, tag });
        }
        self.heard += 1;
        if let Some(at) = self.promised.iter().position(|promised| *promised == (from, tag)) {
            if self.arrived[at].is_some() {
                return Err(Refusal::Duplicate { from, tag });
            }
            self.arrived[at] = Some(self.open(from, tag, message));
            return Ok(());
        }
        let is_found = self.found.iter().any(|found| (found.0, found.1) == (from, tag));
        if is_found || self.taken.contains(&(from, tag)) {
            return Err(Refusal::Duplicate { from, tag });
        }
        if let Some(at) = self.asked.iter().position(|asked| asked.holds(from, tag)) {
            if self.asked[at].chunks == 1 {
                self.asked.remove(at);
            }
            self.file_asked(from, tag, message);
            return Ok(());
        }
        self.inbox.insert(from, tag, message).map_err(|(why, message)| match why {
            Admission::Full => Refusal::Full { from, tag, message },
            Admission::Stale => Refusal::Stale { from, tag },
            _ => Refusal::Duplicate { from, tag },
        })
    }

    /// Nothing more comes from a peer.
    pub(crate) fn peer_lost(&mut self, rank: Rank) {
        if !self.lost.contains(&rank) {
            self.lost.push(rank);
        }
    }

    /// Nothing that was [wanted](Self::wanted) last comes from a peer. What was not may be in the network's
    /// inbox.
    pub(crate) fn not_here(&mut self, rank: Rank) {
        let before = self.never.len();
        self.never.extend(self.wanted.iter().filter(|wanted| wanted.from == rank));
        if self.never.len() == before {
            self.peer_lost(rank);
        }
    }

    /// The network is of no more use.
    pub(crate) fn fail(&mut self, error: TransportError) {
        self.broken.get_or_insert(error);
    }

    /// Bytes of messages that arrived and were not taken.
    pub(crate) fn filed_bytes(&self) -> usize {
        let found = self.found.iter().map(|(_, _, message)| message.len()).sum::<usize>();
        self.inbox.bytes() + found + self.arrived.iter().flatten().map(Vec::len).sum::<usize>()
    }
}
