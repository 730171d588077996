//! The sending half of a link. It cuts messages into numbered chunks, as long as the link's rate allows, and
//! keeps them until the other end has acknowledged them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::pace::{Mark, Pace};
use super::packet::{Ack, Data, Packet};
use crate::inbox::InboxLimits;
use crate::tag::Tag;

/// If there is no acknowledgement for this long, everything unacknowledged is sent again. A connection keeps
/// the order and loses nothing, and a new connection says where to continue, so this should not be needed.
const RESEND_AFTER: Duration = Duration::from_secs(4);
const RESEND_AT_MOST_AFTER: Duration = Duration::from_secs(60);
/// An acknowledgement is late if it takes this many times as long as earlier ones.
const LATE: u32 = 3;

#[derive(Debug)]
enum Content {
    Message {
        tag: Tag,
        payload: Vec<u8>,
        /// The time after which the message is no longer sent, if it may be lost. It is then one chunk.
        until: Option<Instant>,
    },
    Bye,
}

#[derive(Debug)]
struct Queued {
    content: Content,
    /// Bytes that are in chunks.
    cut: usize,
}

/// A chunk that has a number.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The number of its message.
    message: u64,
    offset: usize,
    bytes: usize,
    /// Whether it is the last one of its message.
    is_last: bool,
    mark: Mark,
}

/// What may be on the way is bounded by the window and by the pace of the link, whatever the other end
/// allows.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Payload bytes of the longest chunk.
    chunk_bytes: usize,
    window: u64,
    limits: InboxLimits,
    /// Oldest first. The first one is not completely acknowledged.
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// The number of the first message of the queue.
    first: u64,
    /// Messages at the front of the queue that are wholly in chunks.
    whole: usize,
    /// Chunks from `acked` on, which were sent at least once over this connection.
    chunks: VecDeque<Chunk>,
    /// Number of the next chunk to send.
    cursor: u64,
    /// All chunks below this number have arrived.
    acked: u64,
    /// Chunks below this number may be sent.
    limit: u64,
    /// Chunks below this number were sent at least once over some connection.
    sent_before: u64,
    /// Bytes of the chunks from `acked` to `cursor`.
    on_the_way: usize,
    pub(super) pace: Pace,
    patience: Duration,
    /// The last time that something was acknowledged, or was sent after a pause.
    progress: Instant,
    pub(super) resent: u64,
}

/// An acknowledgement of a chunk that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeverSent;

impl Outgoing {
    pub(super) fn new(chunk_bytes: usize, window: u64, limits: InboxLimits, now: Instant) -> Self {
        Self {
            chunk_bytes,
            window,
            limits,
            queue: VecDeque::new(),
            queued_bytes: 0,
            first: 0,
            whole: 0,
            chunks: VecDeque::new(),
            cursor: 0,
            acked: 0,
            limit: 0,
            sent_before: 0,
            on_the_way: 0,
            pace: Pace::new(chunk_bytes, now),
            patience: RESEND_AFTER,
            progress: now,
            resent: 0,
        }
    }

    /// Whether a message may be queued: one if the queue is empty, further ones up to the limits.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.queue.is_empty()
            || self.queue.len() < self.limits.messages
                && self.queued_bytes.saturating_add(bytes) <= self.limits.bytes
    }

    /// Queues a message. If it has an `until` and fits in the longest chunk, it may be lost. A longer message
    /// is sent like any other.
    pub(super) fn push(&mut self, tag: Tag, payload: Vec<u8>, until: Option<Instant>) {
        self.queued_bytes += payload.len();
        let until = until.filter(|_| payload.len() <= self.chunk_bytes);
        self.enqueue(Content::Message { tag, payload, until });
    }

    /// Queues the last packet of the session.
    pub(super) fn push_bye(&mut self) {
        self.enqueue(Content::Bye);
    }

    fn enqueue(&mut self, content: Content) {
        self.queue.push_back(Queued { content, cut: 0 });
    }

    /// Whether everything queued has arrived.
    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of messages that have not arrived as a whole.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether the message with that tag has arrived, or is not queued.
    pub(super) fn has_arrived(&self, wanted: Tag) -> bool {
        !self
            .queue
            .iter()
            .any(|queued| matches!(queued.content, Content::Message { tag, .. } if tag == wanted))
    }

    /// The tag of the oldest message that has not arrived as a whole.
    pub(super) fn oldest(&self) -> Option<Tag> {
        self.queue.iter().find_map(|queued| match queued.content {
            Content::Message { tag, .. } => Some(tag),
            Content::Bye => None,
        })
    }

    /// Number of the chunk that follows those that were sent over this connection.
    fn high(&self) -> u64 {
        self.acked + self.chunks.len() as u64
    }

    /// Handles an acknowledgement. Returns whether it made room.
    pub(super) fn on_ack(&mut self, ack: Ack, now: Instant) -> Result<bool, NeverSent> {
        if ack.received > self.high() {
            // Of what went over an earlier connection, and is cut anew, an acknowledgement may come late.
            return if ack.received <= self.sent_before { Ok(false) } else { Err(NeverSent) };
        }
        self.limit = self.limit.max(ack.limit);
        let arrived = ack.received.saturating_sub(self.acked);
        for _ in 0..arrived {
            self.arrived(now);
        }
        if arrived > 0 {
            self.progress = now;
        }
        if ack.gap && ack.received == self.acked {
            self.rewind();
        }
        Ok(arrived > 0)
    }

    /// The oldest chunk has arrived.
    fn arrived(&mut self, now: Instant) {
        let Some(chunk) = self.chunks.pop_front() else { return };
        if self.acked < self.cursor {
            self.on_the_way -= chunk.bytes;
        }
        self.acked += 1;
        self.cursor = self.cursor.max(self.acked);
        self.pace.on_delivered(&chunk.mark, chunk.bytes, now);
        let patience = (self.pace.lateness(now) * LATE).max(self.patience / 8 * 7);
        self.patience = patience.clamp(RESEND_AFTER, RESEND_AT_MOST_AFTER);
        if chunk.is_last
            && let Some(Queued { content, .. }) = self.queue.pop_front()
        {
            self.first += 1;
            self.whole -= 1;
            if let Content::Message { payload, .. } = content {
                self.queued_bytes -= payload.len();
            }
        }
    }

    /// Sends everything again that has not arrived.
    fn rewind(&mut self) {
        (self.cursor, self.on_the_way) = (self.acked, 0);
    }

    /// Continues over a new connection: everything from `ack` on is cut and sent again, because what went
    /// over the old one may have been too long for this one.
    pub(super) fn on_greeting(&mut self, ack: Ack, now: Instant) -> Result<bool, NeverSent> {
        let room = self.on_ack(ack, now)?;
        self.rewind();
        if let Some(chunk) = self.chunks.front() {
            let at = (chunk.message - self.first) as usize;
            self.queue[at].cut = chunk.offset;
            self.queue.range_mut(at + 1..).for_each(|queued| queued.cut = 0);
            self.whole = at;
        }
        self.chunks.clear();
        self.progress = now;
        Ok(room)
    }

    /// The next packet to send, if one may be sent now. Call `sent` after sending it.
    pub(super) fn packet(&mut self, session: u64, now: Instant) -> Option<Vec<u8>> {
        if self.cursor > self.acked && now.saturating_duration_since(self.progress) >= self.patience {
            self.rewind();
            self.patience = (self.patience * 2).min(RESEND_AT_MOST_AFTER);
            self.progress = now;
        }
        if self.cursor >= self.limit.min(self.acked + self.window)
            || !self.pace.has_room(self.on_the_way, now)
        {
            return None;
        }
        match self.next_chunk(now) {
            Some(chunk) => self.packet_of(&chunk, session, now),
            None => {
                self.pace.starve(self.on_the_way);
                None
            }
        }
    }

    /// The chunk that `cursor` names: one that was sent before, or a new one.
    fn next_chunk(&mut self, now: Instant) -> Option<Chunk> {
        if let Some(chunk) = self.chunks.get((self.cursor - self.acked) as usize) {
            return Some(*chunk);
        }
        let queued = self.queue.get(self.whole)?;
        let (message, offset) = (self.first + self.whole as u64, queued.cut);
        let bytes = match &queued.content {
            Content::Bye => 0,
            Content::Message { payload, until: Some(_), .. } => payload.len(),
            Content::Message { payload, .. } => (payload.len() - offset).min(self.pace.chunk(now)),
        };
        let is_last = match &queued.content {
            Content::Bye => true,
            Content::Message { payload, .. } => offset + bytes == payload.len(),
        };
        let mark = self.pace.mark(self.on_the_way, now);
        Some(Chunk { message, offset, bytes, is_last, mark })
    }

    fn packet_of(&self, chunk: &Chunk, session: u64, now: Instant) -> Option<Vec<u8>> {
        let (seq, queued) = (self.cursor, self.queue.get((chunk.message - self.first) as usize)?);
        let Content::Message { tag, payload, until } = &queued.content else {
            return Some(Packet::bye(session, seq));
        };
        if until.is_some_and(|until| until <= now) {
            return Some(Packet::skip(session, seq));
        }
        let (total, offset) = (payload.len() as u64, chunk.offset as u64);
        let bytes = &payload[chunk.offset..][..chunk.bytes];
        Some(Packet::data(&Data { session, seq, tag: *tag, total, offset, bytes }))
    }

    /// Records that the packet that `packet` returned was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        let Some(mut chunk) = self.next_chunk(now) else { return };
        if self.cursor == self.acked {
            self.progress = now;
        }
        chunk.mark = self.pace.mark(self.on_the_way, now);
        let at = (self.cursor - self.acked) as usize;
        match self.chunks.get_mut(at) {
            Some(known) => *known = chunk,
            None => {
                self.queue[self.whole].cut = chunk.offset + chunk.bytes;
                self.whole += usize::from(chunk.is_last);
                self.chunks.push_back(chunk);
            }
        }
        self.resent += u64::from(self.cursor < self.sent_before);
        self.cursor += 1;
        self.sent_before = self.sent_before.max(self.cursor);
        self.on_the_way += chunk.bytes;
    }
}
