//! Messages that arrived before they were requested: bounded for each sender, returned in rank order.

use std::collections::VecDeque;

use crate::rank::Rank;
use crate::tag::{Tag, Wanted};

/// How many recently taken messages are remembered, to tell late duplicates from new messages.
const REMEMBERED: usize = 512;
/// Capacity at the start, so that an ordinary run never grows the list.
const EXPECTED: usize = 64;

/// How much an inbox stores for one sender. If it stores nothing from a sender, it accepts one message of any
/// length from it. So the bound on its memory is, for each sender, the larger of `bytes` and the longest
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Messages, at least 1.
    pub messages: usize,
    /// Payload bytes.
    pub bytes: usize,
}

/// Whether a message may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There was room.
    Accepted,
    /// Its sender must wait until some of its messages are taken.
    Full,
    /// The same sender sent this tag already; drop it.
    Duplicate,
    /// It is older than messages that are still accepted; drop it.
    Stale,
}

#[derive(Debug)]
struct Waiting {
    key: (Tag, Rank),
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    sender: Rank,
    messages: usize,
    bytes: usize,
}

/// Messages by tag and sender.
///
/// # Examples
/// ```
/// use gradwire_transports::inbox::{Admission, Inbox, InboxLimits};
/// use gradwire_transports::{Rank, Tag};
///
/// let mut inbox = Inbox::new(InboxLimits { messages: 8, bytes: 1024 });
/// let tag = Tag::new(0, 1);
/// inbox.insert(Rank(2), tag, vec![2]).unwrap();
/// inbox.insert(Rank(1), tag, vec![1]).unwrap();
/// assert_eq!(inbox.insert(Rank(1), tag, vec![7]), Err((Admission::Duplicate, vec![7])));
/// assert_eq!(inbox.take_first(tag), Some((Rank(1), vec![1])));
/// ```
#[derive(Debug)]
pub struct Inbox {
    limits: InboxLimits,
    /// Sorted by key.
    waiting: Vec<Waiting>,
    /// Sorted by sender.
    usage: Vec<Usage>,
    /// The last keys taken, oldest first.
    taken: VecDeque<(Tag, Rank)>,
    oldest: Tag,
}

impl Inbox {
    /// Empty.
    pub fn new(limits: InboxLimits) -> Self {
        Self {
            limits,
            waiting: Vec::with_capacity(EXPECTED),
            usage: Vec::new(),
            taken: VecDeque::with_capacity(REMEMBERED),
            oldest: Tag::default(),
        }
    }

    /// Messages kept.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Payload bytes kept.
    pub fn bytes(&self) -> usize {
        self.usage.iter().map(|usage| usage.bytes).sum()
    }

    /// Whether a message may enter now.
    pub fn admission(&self, from: Rank, tag: Tag, bytes: usize) -> Admission {
        let key = (tag, from);
        if self.is_retired(tag) {
            Admission::Stale
        } else if self.find(key).is_ok() || self.taken.contains(&key) {
            Admission::Duplicate
        } else if self.has_room(from, bytes) {
            Admission::Accepted
        } else {
            Admission::Full
        }
    }

    /// Keeps a message.
    ///
    /// # Errors
    /// Why it may not enter, with its bytes.
    pub fn insert(&mut self, from: Rank, tag: Tag, bytes: Vec<u8>) -> Result<(), (Admission, Vec<u8>)> {
        match self.admission(from, tag, bytes.len()) {
            Admission::Accepted => {
                self.keep((tag, from), bytes);
                Ok(())
            }
            refused => Err((refused, bytes)),
        }
    }

    /// Hands out the message of `from` with `tag`.
    pub fn take(&mut self, from: Rank, tag: Tag) -> Option<Vec<u8>> {
        let at = self.find((tag, from)).ok()?;
        Some(self.remove(at))
    }

    /// Hands out the first of these messages that is here; of several chunks, the lowest.
    pub fn take_any(&mut self, wanted: &[Wanted]) -> Option<((Rank, Tag), Vec<u8>)> {
        let at = wanted.iter().find_map(|wanted| self.find_any(wanted))?;
        let (tag, from) = self.waiting[at].key;
        Some(((from, tag), self.remove(at)))
    }

    fn find_any(&self, wanted: &Wanted) -> Option<usize> {
        let first = self.find((wanted.tag, wanted.from));
        if wanted.chunks == 1 {
            return first.ok();
        }
        let start = first.unwrap_or_else(|at| at);
        let last = wanted.last();
        let near = self.waiting[start..].iter().take_while(|waiting| waiting.key.0 <= last);
        near.enumerate().find(|(_, waiting)| waiting.key.1 == wanted.from).map(|(at, _)| start + at)
    }

    /// Hands out the message with `tag` of the lowest rank; called again, they come in rank order.
    pub fn take_first(&mut self, tag: Tag) -> Option<(Rank, Vec<u8>)> {
        let at = self.waiting.partition_point(|waiting| waiting.key.0 < tag);
        let (found, from) = self.waiting.get(at)?.key;
        (found == tag).then(|| (from, self.remove(at)))
    }

    /// Whether messages with `tag` are no longer accepted.
    pub fn is_retired(&self, tag: Tag) -> bool {
        tag < self.oldest
    }

    /// Drops messages older than `before`, now and when they arrive later. Dropped buffers go to `recycle`.
    pub fn retire(&mut self, before: Tag, mut recycle: impl FnMut(Vec<u8>)) {
        self.oldest = self.oldest.max(before);
        let stale = self.waiting.partition_point(|waiting| waiting.key.0 < before);
        for at in 0..stale {
            self.release(self.waiting[at].key.1, self.waiting[at].bytes.len());
        }
        self.waiting.drain(..stale).for_each(|waiting| recycle(waiting.bytes));
        self.taken.retain(|key| key.0 >= before);
    }

    fn find(&self, key: (Tag, Rank)) -> Result<usize, usize> {
        self.waiting.binary_search_by(|waiting| waiting.key.cmp(&key))
    }

    fn has_room(&self, from: Rank, bytes: usize) -> bool {
        let Ok(at) = self.usage.binary_search_by_key(&from, |usage| usage.sender) else { return true };
        let usage = self.usage[at];
        usage.messages == 0
            || usage.messages < self.limits.messages && usage.bytes.saturating_add(bytes) <= self.limits.bytes
    }

    fn keep(&mut self, key: (Tag, Rank), bytes: Vec<u8>) {
        let usage = self.usage_of(key.1);
        usage.messages += 1;
        usage.bytes += bytes.len();
        let at = self.find(key).unwrap_or_else(|at| at);
        self.waiting.insert(at, Waiting { key, bytes });
    }

    fn remove(&mut self, at: usize) -> Vec<u8> {
        let Waiting { key, bytes } = self.waiting.remove(at);
        self.release(key.1, bytes.len());
        if self.taken.len() == REMEMBERED {
            self.taken.pop_front();
        }
        self.taken.push_back(key);
        bytes
    }

    fn release(&mut self, sender: Rank, bytes: usize) {
        let usage = self.usage_of(sender);
        usage.messages -= 1;
        usage.bytes -= bytes;
    }

    fn usage_of(&mut self, sender: Rank) -> &mut Usage {
        let at = self.usage.binary_search_by_key(&sender, |usage| usage.sender).unwrap_or_else(|at| {
            self.usage.insert(at, Usage { sender, messages: 0, bytes: 0 });
            at
        });
        &mut self.usage[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: InboxLimits = InboxLimits { messages: 2, bytes: 10 };

    fn step(step: u64) -> Tag {
        Tag::new(0, step)
    }

    #[test]
    fn messages_of_a_tag_come_out_in_rank_order() {
        let mut inbox = Inbox::new(LIMITS);
        for from in [5, 1, 9, 3] {
            inbox.insert(Rank(from), step(1), vec![from as u8]).unwrap();
        }
        inbox.insert(Rank(0), step(2), vec![]).unwrap();
        let order: Vec<_> =
            std::iter::from_fn(|| inbox.take_first(step(1))).map(|(rank, _)| rank.0).collect();
        assert_eq!((order, inbox.len()), (vec![1, 3, 5, 9], 1));
    }

    #[test]
    fn a_duplicate_is_refused_before_and_after_the_first_was_taken() {
        let mut inbox = Inbox::new(LIMITS);
        inbox.insert(Rank(1), step(1), vec![1]).unwrap();
        assert_eq!(inbox.admission(Rank(1), step(1), 1), Admission::Duplicate);
        assert_eq!(inbox.take(Rank(1), step(1)), Some(vec![1]));
        assert_eq!(inbox.admission(Rank(1), step(1), 1), Admission::Duplicate);
        assert_eq!(inbox.admission(Rank(2), step(1), 1), Admission::Accepted);
    }

    #[test]
    fn each_sender_has_its_own_bounds() {
        let mut inbox = Inbox::new(LIMITS);
        inbox.insert(Rank(1), step(1), vec![0; 6]).unwrap();
        assert_eq!(inbox.admission(Rank(1), step(2), 5), Admission::Full);
        inbox.insert(Rank(1), step(2), vec![0; 4]).unwrap();
        assert_eq!(inbox.admission(Rank(1), step(3), 0), Admission::Full);
        assert_eq!(inbox.admission(Rank(2), step(1), 10), Admission::Accepted);
        assert_eq!((inbox.len(), inbox.bytes()), (2, 10));
    }

    #[test]
    fn a_sender_of_which_nothing_is_kept_may_send_one_long_message() {
        let mut inbox = Inbox::new(LIMITS);
        inbox.insert(Rank(1), step(1), vec![0; 1000]).unwrap();
        assert_eq!(inbox.admission(Rank(1), step(2), 0), Admission::Full);
        inbox.take(Rank(1), step(1)).unwrap();
        assert_eq!((inbox.admission(Rank(1), step(2), 1000), inbox.bytes()), (Admission::Accepted, 0));
    }

    #[test]
    fn retiring_drops_the_old_and_frees_their_room() {
        let mut inbox = Inbox::new(LIMITS);
        inbox.insert(Rank(1), step(1), vec![1]).unwrap();
        inbox.insert(Rank(1), step(2), vec![2]).unwrap();
        let mut dropped = Vec::new();
        inbox.retire(step(2), |bytes| dropped.push(bytes));
        assert_eq!((dropped, inbox.len(), inbox.bytes()), (vec![vec![1]], 1, 1));
        assert_eq!(inbox.insert(Rank(1), step(1), vec![]), Err((Admission::Stale, vec![])));
        assert_eq!(inbox.admission(Rank(1), step(3), 9), Admission::Accepted);
    }

    #[test]
    fn only_the_last_messages_taken_are_remembered() {
        let mut inbox = Inbox::new(LIMITS);
        for at in 0..=REMEMBERED as u64 {
            inbox.insert(Rank(1), step(at), vec![]).unwrap();
            inbox.take(Rank(1), step(at)).unwrap();
        }
        assert_eq!(inbox.taken.len(), REMEMBERED);
        assert_eq!(inbox.admission(Rank(1), step(1), 0), Admission::Duplicate);
        assert_eq!(inbox.admission(Rank(1), step(0), 0), Admission::Accepted);
    }
}
