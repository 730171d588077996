//! Messages that arrive, in any order, and those that this rank waits for.

use gradwire::Layout;

use super::{PACKET_UNIT, Port};
use crate::error::TransportError;
use crate::exchange::error::ExchangeError;
use crate::exchange::refusal::Refusal;
use crate::exchange::version;
use crate::exchange::void::{is_short, note_tag, refusal};
use crate::exchange::vote::read_note;
use crate::inbox::Admission;
use crate::rank::Rank;
use crate::tag::{Tag, Wanted};

impl Port {
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

    /// Takes the message that is expected first, if it is here.
    ///
    /// # Errors
    /// Why it does not come any more.
    ///
    /// # Panics
    /// When no message is expected.
    pub(in crate::exchange) fn take(
        &mut self,
        into: &mut Vec<u8>,
        layout: &Layout,
    ) -> Result<bool, ExchangeError> {
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
            return Err(read_note(*rank, note, layout, self.frame_step));
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
    pub(in crate::exchange) fn ask_all(&mut self, tag: Tag) {
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
    pub(in crate::exchange) fn forget(&mut self, from: Rank) {
        self.asked.retain(|asked| asked.from != from);
    }

    /// Waits for what was asked of that rank only while it is connected.
    pub(in crate::exchange) fn do_without(&mut self, from: Rank) {
        let of_it = self.asked.iter_mut().filter(|asked| asked.from == from);
        of_it.for_each(|asked| asked.unless_cut_off = true);
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
    pub(in crate::exchange) fn find(&mut self, from: Rank, tag: Tag) -> Option<Vec<u8>> {
        let at = self.found.iter().position(|found| (found.0, found.1) == (from, tag))?;
        self.taken.push((from, tag));
        Some(self.found.swap_remove(at).2)
    }

    /// Whether anything that was asked of that rank is here.
    pub(in crate::exchange) fn has_any(&self, from: Rank) -> bool {
        self.found.iter().any(|found| found.0 == from)
    }

    /// Takes any of several messages that were asked for.
    pub(in crate::exchange) fn find_any(&mut self, wanted: &Wanted) -> Option<(Tag, Vec<u8>)> {
        let at = self.found.iter().position(|(from, tag, _)| wanted.holds(*from, *tag))?;
        let (_, tag, message) = self.found.swap_remove(at);
        Some((tag, message))
    }

    /// Whether a wait until `by` is over: the time has come, and what has arrived by then is handed in.
    pub(in crate::exchange) fn is_over(&mut self, by: u64) -> bool {
        if self.now < by || self.looked == Some(self.heard) {
            return self.now >= by;
        }
        self.looked = Some(self.heard);
        self.deadline = self.deadline.min(self.now);
        false
    }

    /// Whether a message cannot come any more.
    pub(in crate::exchange) fn is_lost(&self, from: Rank, tag: Tag) -> bool {
        let is_gone = self.lost.contains(&from) || self.never.iter().any(|never| never.holds(from, tag));
        self.broken.is_some() || is_gone
    }

    /// The senders of messages that have not come, with the tag of the one that is needed.
    pub(in crate::exchange) fn missing(&self) -> Vec<Rank> {
        let tag = self.needed.map(|(_, tag)| tag);
        let missing = self.promised.iter().zip(&self.arrived).filter(|(_, message)| message.is_none());
        let missing = missing.map(|(name, _)| *name).filter(|(_, other)| tag.is_none_or(|tag| tag == *other));
        let mut ranks: Vec<Rank> = missing.map(|(from, _)| from).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
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

    /// Bytes of messages that arrived and were not taken.
    pub(crate) fn filed_bytes(&self) -> usize {
        let found = self.found.iter().map(|(_, _, message)| message.len()).sum::<usize>();
        self.inbox.bytes() + found + self.arrived.iter().flatten().map(Vec::len).sum::<usize>()
    }
}
