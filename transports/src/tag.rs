//! The identity of a message, and the deadline of a wait for it.

use std::fmt;
use std::time::{Duration, Instant};

use crate::rank::Rank;

/// Names one message between two ranks. Ordered by epoch, then step, unit and chunk.
///
/// A sender uses each tag once for each receiver. A message with a repeated tag counts as a duplicate and is
/// dropped. Chunks from [`Tag::FIRST_COLLECTIVE_CHUNK`] upward belong to the collectives, which derive one
/// tag for each of their messages from the tag that they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The membership epoch in which the message was sent.
    pub epoch: u32,
    /// The training step.
    pub step: u64,
    /// The unit of the gradient.
    pub unit: u32,
    /// A part or round of that unit's exchange.
    pub chunk: u32,
}

impl Tag {
    /// Chunks below this are the caller's. A collective accepts only chunks below [`Tag::COLLECTIVE_CHUNKS`].
    pub const FIRST_COLLECTIVE_CHUNK: u32 = 1 << 31;
    /// How many collectives of one kind a unit may run in one step: 11 bits of the derived chunk.
    pub const COLLECTIVE_CHUNKS: u32 = 1 << 11;
    /// The epoch of messages with which a rank becomes a member of a run. No membership has it.
    pub const JOINING: u32 = u32::MAX;
    /// Messages from here on stand beside the steps: records and scores.
    const FIRST_BESIDE_STEPS: u64 = 1 << 63;
    /// Length of a tag as written on a wire: 4 + 8 + 4 + 4 bytes.
    pub const BYTES: usize = 20;

    /// The first tag of a step: unit 0, chunk 0. No tag of the same step is smaller.
    pub const fn new(epoch: u32, step: u64) -> Self {
        Self { epoch, step, unit: 0, chunk: 0 }
    }

    /// The same tag for another unit.
    pub const fn unit(self, unit: u32) -> Self {
        Self { unit, ..self }
    }

    /// The same tag for another chunk.
    pub const fn chunk(self, chunk: u32) -> Self {
        Self { chunk, ..self }
    }
}

/// What a person needs to know of a message. `Debug` has all of it.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { epoch: Self::JOINING, .. } => f.write_str("on joining the run"),
            Self { step: Self::FIRST_BESIDE_STEPS.., .. } => f.write_str("between steps"),
            Self { step, .. } => write!(f, "step {step}"),
        }
    }
}

/// What a rank waits for: a message of a sender, or any of several whose tags differ in the chunk alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The sender.
    pub from: Rank,
    /// The tag with the first chunk.
    pub tag: Tag,
    /// The number of chunks, at least 1.
    pub chunks: u32,
    /// Whether to give it up if the connection to its sender broke and was not made anew in time, even if the
    /// sender may come back. A transport that does not notice this waits.
    pub unless_cut_off: bool,
}

impl Wanted {
    /// The message of `from` with `tag`.
    pub const fn one(from: Rank, tag: Tag) -> Self {
        Self::chunks(from, tag, 1)
    }

    /// Any of so many messages, beginning with `tag`.
    pub const fn chunks(from: Rank, tag: Tag, chunks: u32) -> Self {
        Self { from, tag, chunks, unless_cut_off: false }
    }

    /// The tag with the last chunk.
    pub(crate) fn last(&self) -> Tag {
        self.tag.chunk(self.tag.chunk.saturating_add(self.chunks - 1))
    }

    /// Whether it names that message.
    pub fn holds(&self, from: Rank, tag: Tag) -> bool {
        let is_chunk = |chunk: u32| chunk.checked_sub(self.tag.chunk).is_some_and(|at| at < self.chunks);
        from == self.from && tag.chunk(self.tag.chunk) == self.tag && is_chunk(tag.chunk)
    }
}

/// The moment at which a wait becomes an error. It is absolute, so one deadline can cover many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline: waits as long as the peer lives.
    pub const NEVER: Self = Self(None);

    /// A deadline that has already passed: a call takes a message that has arrived, and does not wait.
    pub fn now() -> Self {
        Self(Some(Instant::now()))
    }

    /// At `instant`.
    pub const fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// After `wait` from now; [`Deadline::NEVER`] if the clock cannot represent it.
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    /// The moment itself, if there is one.
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// The time until the deadline, zero once it has passed; `None` for [`Deadline::NEVER`].
    pub fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// The earlier of the two.
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }

    /// Whether the moment has come.
    pub fn has_passed(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_ordered_by_epoch_then_step_then_unit_then_chunk() {
        let tags = [
            Tag { epoch: 0, step: 9, unit: 9, chunk: 9 },
            Tag { epoch: 1, step: 0, unit: 9, chunk: 9 },
            Tag { epoch: 1, step: 1, unit: 0, chunk: 9 },
            Tag { epoch: 1, step: 1, unit: 1, chunk: 0 },
            Tag { epoch: 1, step: 1, unit: 1, chunk: 1 },
        ];
        assert!(tags.is_sorted());
    }

    #[test]
    fn a_tag_is_shown_as_the_part_of_the_run_that_it_belongs_to() {
        let shown = |epoch, step, unit, chunk| Tag { epoch, step, unit, chunk }.to_string();
        assert_eq!(shown(0, 0, 0, 0), "step 0");
        assert_eq!(shown(7, 41, u32::MAX, Tag::FIRST_COLLECTIVE_CHUNK | 5), "step 41");
        assert_eq!(shown(7, 1 << 62, 3, 1), "step 4611686018427387904");
        assert_eq!(shown(7, u64::MAX, 12, 0), "between steps");
        assert_eq!(shown(7, u64::MAX - 2, 12, 0), "between steps");
        for session in [0, 1, u64::MAX] {
            assert_eq!(shown(Tag::JOINING, session, 4, 1), "on joining the run");
        }
    }

    #[test]
    fn several_chunks_are_wanted_of_one_sender_and_one_unit() {
        let tag = Tag::new(1, 2).unit(3).chunk(4);
        let wanted = Wanted::chunks(Rank(5), tag, 2);
        let named: Vec<_> = (0..9).filter(|&chunk| wanted.holds(Rank(5), tag.chunk(chunk))).collect();
        assert_eq!(named, [4, 5]);
        for other in [Tag::new(0, 2).unit(3).chunk(4), Tag::new(1, 3).unit(3).chunk(4), tag.unit(4)] {
            assert!(!wanted.holds(Rank(5), other));
        }
        assert!(!wanted.holds(Rank(6), tag));
        let last = Wanted::chunks(Rank(5), tag.chunk(u32::MAX), u32::MAX);
        assert!(last.holds(Rank(5), last.tag) && !last.holds(Rank(5), tag));
    }

    #[test]
    fn a_deadline_beyond_the_clock_never_passes() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
        assert!(!Deadline::NEVER.has_passed());
        assert!(Deadline::now().has_passed());
        assert!(Deadline::after(Duration::from_secs(60)).remaining() > Some(Duration::from_secs(50)));
    }

    #[test]
    fn the_earlier_deadline_is_the_one_that_comes_first() {
        let (soon, late) = (Deadline::now(), Deadline::after(Duration::from_secs(60)));
        assert_eq!((soon.earlier(late), late.earlier(soon)), (soon, soon));
        assert_eq!((late.earlier(Deadline::NEVER), Deadline::NEVER.earlier(late)), (late, late));
        assert_eq!(Deadline::NEVER.earlier(Deadline::NEVER), Deadline::NEVER);
    }
}
