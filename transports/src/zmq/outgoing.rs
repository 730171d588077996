//! The sending half of a link. It cuts messages into numbered chunks and keeps them until the other end has
//! acknowledged them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
        /// The time after which the message is no longer sent, if it has one chunk.
        until: Option<Instant>,
    },
    Bye,
}

#[derive(Debug)]
struct Queued {
    first_seq: u64,
    /// At least 1.
    chunks: u64,
    content: Content,
}

/// Chunks in flight are bounded by a window, whatever the other end allows.
#[derive(Debug)]
pub(super) struct Outgoing {
    chunk_bytes: usize,
    window: u64,
    limits: InboxLimits,
    /// Oldest first. The first one is not completely acknowledged.
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// Number of the next chunk that is queued.
    next: u64,
    /// Number of the next chunk to send.
    cursor: u64,
    /// All chunks below this number were sent at least once.
    high: u64,
    /// All chunks below this number have arrived.
    acked: u64,
    /// Chunks below this number may be sent.
    limit: u64,
    /// The chunk with a timed acknowledgement, and the time when it was sent.
    timed: Option<(u64, Instant)>,
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
            next: 0,
            cursor: 0,
            high: 0,
            acked: 0,
            limit: 0,
            timed: None,
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

    /// Queues a message. If it has an `until` and fits in one chunk, it may be lost. A longer message is sent
    /// like any other.
    pub(super) fn push(&mut self, tag: Tag, payload: Vec<u8>, until: Option<Instant>) {
        self.queued_bytes += payload.len();
        let chunks = payload.len().div_ceil(self.chunk_bytes).max(1) as u64;
        let until = until.filter(|_| chunks == 1);
        self.enqueue(chunks, Content::Message { tag, payload, until });
    }

    /// Queues the last packet of the session.
    pub(super) fn push_bye(&mut self) {
        self.enqueue(1, Content::Bye);
    }

    fn enqueue(&mut self, chunks: u64, content: Content) {
        self.queue.push_back(Queued { first_seq: self.next, chunks, content });
        self.next += chunks;
    }

    /// Whether everything queued has arrived.
    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// The tag of the oldest message that has not arrived as a whole.
    pub(super) fn oldest(&self) -> Option<Tag> {
        self.queue.iter().find_map(|queued| match queued.content {
            Content::Message { tag, .. } => Some(tag),
            Content::Bye => None,
        })
    }

    /// Handles an acknowledgement. Returns whether it made room.
    pub(super) fn on_ack(&mut self, ack: Ack, now: Instant) -> Result<bool, NeverSent> {
        if ack.received > self.high {
            return Err(NeverSent);
        }
        self.limit = self.limit.max(ack.limit);
        let advances = ack.received > self.acked;
        if advances {
            self.acked = ack.received;
            self.cursor = self.cursor.max(self.acked);
            self.measure(now);
            self.progress = now;
            self.drop_acked();
        }
        if ack.gap && ack.received == self.acked {
            self.cursor = self.acked;
        }
        Ok(advances)
    }

    /// Continues over a new connection: everything from `ack` on is sent again.
    pub(super) fn on_greeting(&mut self, ack: Ack, now: Instant) -> Result<bool, NeverSent> {
        let room = self.on_ack(ack, now)?;
        self.cursor = self.acked;
        self.timed = None;
        self.progress = now;
        Ok(room)
    }

    fn measure(&mut self, now: Instant) {
        let Some((_, sent)) = self.timed.take_if(|(seq, _)| *seq < self.acked) else { return };
        let took = now.saturating_duration_since(sent);
        // The average rises at once and falls slowly, so that after one quick answer the next ones do not
        // count as late.
        let smoothed = (took * LATE).max(self.patience / 8 * 7);
        self.patience = smoothed.clamp(RESEND_AFTER, RESEND_AT_MOST_AFTER);
    }

    fn drop_acked(&mut self) {
        while let Some(queued) = self.queue.front()
            && queued.first_seq + queued.chunks <= self.acked
        {
            if let Some(Queued { content: Content::Message { payload, .. }, .. }) = self.queue.pop_front() {
                self.queued_bytes -= payload.len();
            }
        }
    }

    /// The next packet to send, if one may be sent now. Call `sent` after sending it.
    pub(super) fn packet(&mut self, session: u64, now: Instant) -> Option<Vec<u8>> {
        if self.cursor > self.acked && now.saturating_duration_since(self.progress) >= self.patience {
            self.cursor = self.acked;
            self.timed = None;
            self.patience = (self.patience * 2).min(RESEND_AT_MOST_AFTER);
            self.progress = now;
        }
        let end = self.next.min(self.limit).min(self.acked + self.window);
        (self.cursor < end).then(|| self.packet_at(self.cursor, session, now)).flatten()
    }

    fn packet_at(&self, seq: u64, session: u64, now: Instant) -> Option<Vec<u8>> {
        let at = self.queue.partition_point(|queued| queued.first_seq + queued.chunks <= seq);
        let queued = self.queue.get(at)?;
        let Content::Message { tag, payload, until } = &queued.content else {
            return Some(Packet::bye(session, seq));
        };
        if until.is_some_and(|until| until <= now) {
            return Some(Packet::skip(session, seq));
        }
        let offset = (seq - queued.first_seq) as usize * self.chunk_bytes;
        let end = payload.len().min(offset + self.chunk_bytes);
        let (total, bytes) = (payload.len() as u64, &payload[offset..end]);
        Some(Packet::data(&Data { session, seq, tag: *tag, total, offset: offset as u64, bytes }))
    }

    /// Records that the packet that `packet` returned was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.cursor == self.acked {
            self.progress = now;
        }
        if self.cursor < self.high {
            self.resent += 1;
        } else {
            self.timed.get_or_insert((self.cursor, now));
        }
        self.cursor += 1;
        self.high = self.high.max(self.cursor);
    }
}
