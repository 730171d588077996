//! Messages that leave: they are queued, and a driver sends them.

use super::Port;
use crate::error::TransportError;
use crate::exchange::version::TAIL;
use crate::rank::Rank;
use crate::tag::Tag;

/// Where the bytes of a queued message are.
#[derive(Debug)]
pub(crate) enum Body {
    /// In a buffer of the port, which ends it with the [version](super::version).
    Own(Vec<u8>),
    /// With the route, which keeps them until the message is sent, and ends them with the version: its frame
    /// of a part, for one of the members.
    Frame { part: usize, place: usize },
}

/// How long a message is tried if its receiver has no room.
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
    pub(in crate::exchange) id: u64,
    pub(in crate::exchange) to: Rank,
    pub(in crate::exchange) tag: Tag,
    pub(in crate::exchange) body: Body,
    pub(in crate::exchange) care: Care,
}

impl Port {
    /// A buffer for a message of at most so many bytes, with whatever it held before.
    pub(crate) fn lend_for(&mut self, bytes: usize) -> Vec<u8> {
        // The version follows.
        let bytes = bytes + 1;
        let at = self.sent.iter().position(|buffer| buffer.capacity() >= bytes);
        let fitting = at.map(|at| self.sent.swap_remove(at));
        let mut buffer = fitting.or_else(|| self.sent.pop()).unwrap_or_default();
        buffer.reserve_exact(bytes.saturating_sub(buffer.len()));
        buffer
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
        copy.clear();
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

    /// Whether nothing is queued that can still leave.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty() || self.broken.is_some()
    }

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

    pub(super) fn recycle(&mut self, parcel: Parcel) {
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
}
