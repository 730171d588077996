//! One session with one peer: the sending and the receiving half. It has no sockets, so tests can try every
//! order of events.

use std::time::{Duration, Instant};

use super::incoming::{Arrivals, Incoming, Violation};
use super::options::ZmqLimits;
use super::outgoing::{NeverSent, Outgoing};
use super::packet::{Ack, Data, Packet};
use crate::rank::Rank;

/// Delivers messages in order, each once, over a connection that may lose packets when it breaks.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) session: u64,
    /// Whether the other end has taken part in the session.
    pub(super) is_open: bool,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    ack_due: bool,
    acked_at: Instant,
}

impl From<NeverSent> for Violation {
    fn from(_: NeverSent) -> Self {
        Self::NeverSent
    }
}

impl Link {
    pub(super) fn new(session: u64, limits: &ZmqLimits, now: Instant) -> Self {
        let window = limits.window as u64;
        Self {
            session,
            is_open: false,
            outgoing: Outgoing::new(limits.chunk_bytes, window, limits.outbox, now),
            incoming: Incoming::new(limits.chunk_bytes, window, limits.max_message_bytes),
            ack_due: false,
            acked_at: now,
        }
    }

    /// The session continues over a new connection, or was greeted again over the one it has.
    pub(super) fn on_greeting(&mut self, ack: Ack, is_new: bool, now: Instant) -> Result<bool, Violation> {
        (self.is_open, self.ack_due) = (true, true);
        Ok(if is_new { self.outgoing.on_greeting(ack, now)? } else { self.outgoing.on_ack(ack, now)? })
    }

    pub(super) fn on_data(
        &mut self,
        from: Rank,
        data: &Data<'_>,
        arrivals: &mut Arrivals,
        now: Instant,
    ) -> Result<(), Violation> {
        self.ack_due = true;
        self.incoming.on_data(from, data, arrivals, now)
    }

    pub(super) fn on_skip(&mut self, seq: u64, now: Instant) -> Result<(), Violation> {
        self.ack_due = true;
        self.incoming.on_skip(seq, now)
    }

    pub(super) fn on_bye(&mut self, seq: u64, now: Instant) -> Result<(), Violation> {
        self.ack_due = true;
        self.incoming.on_bye(seq, now)
    }

    /// Moves messages that waited for room into the inbox.
    pub(super) fn settle(&mut self, from: Rank, arrivals: &mut Arrivals) -> Result<(), Violation> {
        self.ack_due |= self.incoming.is_held_back();
        self.incoming.settle(from, arrivals)
    }

    /// The acknowledgement to send: if there is something new, or if none was sent for `heartbeat`.
    pub(super) fn ack(&mut self, heartbeat: Duration, now: Instant) -> Option<Vec<u8>> {
        let is_due = self.ack_due || now.saturating_duration_since(self.acked_at) >= heartbeat;
        is_due.then(|| Packet::ack(self.session, self.incoming.ack()))
    }

    /// Records that the acknowledgement was sent.
    pub(super) fn acked(&mut self, now: Instant) {
        (self.ack_due, self.acked_at) = (false, now);
    }
}

#[cfg(test)]
mod tests;
