//! The receiving half of a link. It accepts chunks in order and joins them to messages. While the inbox is
//! full, it holds them back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::packet::{Ack, Data};
use crate::inbox::{Admission, Inbox};
use crate::rank::Rank;
use crate::spares::Spares;
use crate::tag::Tag;

/// Time before the same gap is reported again.
const REPEAT_GAP_AFTER: Duration = Duration::from_millis(200);

/// Messages that arrived for this rank, and buffers for further ones.
#[derive(Debug)]
pub(super) struct Arrivals {
    pub(super) inbox: Inbox,
    pub(super) spares: Spares,
}

#[derive(Debug)]
enum Piece {
    Chunk { tag: Tag, total: u64, offset: u64, bytes: Vec<u8> },
    Skip,
    Bye,
}

/// A message of which some chunks have arrived.
#[derive(Debug)]
struct Partial {
    tag: Tag,
    total: usize,
    bytes: Vec<u8>,
}

/// How a peer broke the protocol; the link cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// A message longer than the limit.
    TooLarge { bytes: u64, limit: usize },
    /// A chunk that does not continue the message before it, or has the wrong length.
    WrongChunk,
    /// A packet after the last one.
    AfterBye,
    /// An acknowledgement of something never sent.
    NeverSent,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { bytes, limit } => {
                write!(f, "announced a message of {bytes} bytes; the limit is {limit}")
            }
            Self::WrongChunk => write!(f, "sent a chunk that does not continue its message"),
            Self::AfterBye => write!(f, "sent more after its last packet"),
            Self::NeverSent => write!(f, "acknowledged what was never sent"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Incoming {
    chunk_bytes: usize,
    max_message_bytes: usize,
    window: u64,
    /// Number of the next chunk.
    expected: u64,
    /// Chunks that wait until the message before them has room; fewer than the window.
    backlog: VecDeque<Piece>,
    partial: Option<Partial>,
    /// A whole message that has no room yet.
    complete: Option<(Tag, Vec<u8>)>,
    is_over: bool,
    gap: bool,
    gap_reported: Option<(u64, Instant)>,
    pub(super) duplicates: u64,
}

impl Incoming {
    pub(super) fn new(chunk_bytes: usize, window: u64, max_message_bytes: usize) -> Self {
        Self {
            chunk_bytes,
            max_message_bytes,
            window,
            expected: 0,
            backlog: VecDeque::new(),
            partial: None,
            complete: None,
            is_over: false,
            gap: false,
            gap_reported: None,
            duplicates: 0,
        }
    }

    /// Whether the peer said that nothing follows, and everything that it sent before is in the inbox.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Of the message that is arriving, the bytes that are here, and all.
    pub(super) fn arriving(&self) -> Option<(usize, usize)> {
        self.partial.as_ref().map(|partial| (partial.bytes.len(), partial.total))
    }

    /// Whether something waits for room in the inbox.
    pub(super) fn is_held_back(&self) -> bool {
        self.complete.is_some()
    }

    /// What to acknowledge; reports a gap once.
    pub(super) fn ack(&mut self) -> Ack {
        let consumed = self.expected - self.backlog.len() as u64;
        Ack { received: self.expected, limit: consumed + self.window, gap: std::mem::take(&mut self.gap) }
    }

    /// Takes a chunk, if it is the next one.
    pub(super) fn on_data(
        &mut self,
        from: Rank,
        data: &Data<'_>,
        arrivals: &mut Arrivals,
        now: Instant,
    ) -> Result<(), Violation> {
        if !self.is_next(data.seq, now) {
            return Ok(());
        }
        let Data { tag, total, offset, bytes, .. } = *data;
        if self.complete.is_some() {
            self.backlog.push_back(Piece::Chunk { tag, total, offset, bytes: bytes.to_vec() });
            return Ok(());
        }
        self.assemble(from, (tag, total, offset), bytes, arrivals)
    }

    /// Takes a skip, which replaces a message that is no longer sent, if it is the next packet.
    pub(super) fn on_skip(&mut self, seq: u64, now: Instant) -> Result<(), Violation> {
        if !self.is_next(seq, now) {
            return Ok(());
        }
        if self.complete.is_some() {
            self.backlog.push_back(Piece::Skip);
            return Ok(());
        }
        self.skip()
    }

    /// A skipped message has one chunk, so it lies between two others.
    fn skip(&self) -> Result<(), Violation> {
        match (self.is_over, &self.partial) {
            (true, _) => Err(Violation::AfterBye),
            (false, Some(_)) => Err(Violation::WrongChunk),
            (false, None) => Ok(()),
        }
    }

    /// Takes the last packet, if it is the next one.
    pub(super) fn on_bye(&mut self, seq: u64, now: Instant) -> Result<(), Violation> {
        if self.is_next(seq, now) {
            match self.complete {
                Some(_) => self.backlog.push_back(Piece::Bye),
                None => self.is_over = true,
            }
        }
        Ok(())
    }

    /// Whether a packet is the next one; it is then counted as received. Other packets are repetitions, or
    /// come too early because one was lost, or were not allowed yet.
    fn is_next(&mut self, seq: u64, now: Instant) -> bool {
        if seq < self.expected {
            self.duplicates += 1;
            return false;
        }
        if seq > self.expected {
            let recent = |(at, when): (u64, Instant)| {
                at == self.expected && now.saturating_duration_since(when) < REPEAT_GAP_AFTER
            };
            if !self.gap_reported.is_some_and(recent) {
                (self.gap, self.gap_reported) = (true, Some((self.expected, now)));
            }
            return false;
        }
        let allowed = (self.backlog.len() as u64) < self.window;
        self.expected += u64::from(allowed);
        allowed
    }

    /// Moves waiting messages into the inbox, as far as there is room.
    pub(super) fn settle(&mut self, from: Rank, arrivals: &mut Arrivals) -> Result<(), Violation> {
        loop {
            if let Some((tag, bytes)) = self.complete.take()
                && !self.hand_over(from, tag, bytes, arrivals)
            {
                return Ok(());
            }
            match self.backlog.pop_front() {
                None => return Ok(()),
                Some(Piece::Skip) => self.skip()?,
                Some(Piece::Bye) => self.is_over = true,
                Some(Piece::Chunk { tag, total, offset, bytes }) => {
                    self.assemble(from, (tag, total, offset), &bytes, arrivals)?;
                }
            }
        }
    }

    fn assemble(
        &mut self,
        from: Rank,
        (tag, total, offset): (Tag, u64, u64),
        chunk: &[u8],
        arrivals: &mut Arrivals,
    ) -> Result<(), Violation> {
        if self.is_over {
            return Err(Violation::AfterBye);
        }
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => self.begin(tag, total, chunk.len(), arrivals)?,
        };
        let (here, rest) = (partial.bytes.len(), partial.total - partial.bytes.len());
        // A slow link has short chunks. An empty one belongs to an empty message.
        let fits = chunk.len() <= rest.min(self.chunk_bytes) && chunk.is_empty() == (partial.total == 0);
        if partial.tag != tag || partial.total as u64 != total || here as u64 != offset || !fits {
            return Err(Violation::WrongChunk);
        }
        // The buffer doubles, so at most twice the bytes that have arrived are reserved, and never more than
        // the whole message.
        let want = (2 * (here + chunk.len())).min(partial.total);
        partial.bytes.reserve_exact(want - here);
        partial.bytes.extend_from_slice(chunk);
        if partial.bytes.len() < partial.total {
            self.partial = Some(partial);
        } else {
            self.hand_over(from, tag, partial.bytes, arrivals);
        }
        Ok(())
    }

    fn begin(
        &self,
        tag: Tag,
        total: u64,
        arrived: usize,
        arrivals: &mut Arrivals,
    ) -> Result<Partial, Violation> {
        let limit = self.max_message_bytes;
        let too_large = Violation::TooLarge { bytes: total, limit };
        let total = usize::try_from(total).ok().filter(|&total| total <= limit).ok_or(too_large)?;
        let room = arrived.min(total);
        Ok(Partial { tag, total, bytes: arrivals.spares.take(room, room) })
    }

    /// Puts a message into the inbox; keeps it and returns false when there is no room.
    fn hand_over(&mut self, from: Rank, tag: Tag, bytes: Vec<u8>, arrivals: &mut Arrivals) -> bool {
        match arrivals.inbox.insert(from, tag, bytes) {
            Ok(()) => {}
            Err((Admission::Full, bytes)) => self.complete = Some((tag, bytes)),
            Err((_, bytes)) => arrivals.spares.put(bytes),
        }
        self.complete.is_none()
    }
}
