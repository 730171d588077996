//! Messages of a step that are on their way to this rank.

use std::collections::VecDeque;
use std::time::Duration;

use super::void::{Reader, Watched};
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// How long a rank waits for one message before it looks at the others, on routes that carry frames. Most
/// steps never look. Each wait is twice as long as the previous one.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// Messages that peers will send and that this rank has not taken yet, in the order in which it takes them.
/// Every peer sends its own in that order too, so no message waits for a later one.
///
/// The inbox of a receiver may have room for a single message of each peer. If it has none, the sender first
/// takes all messages that it expects so far, and then waits for room. All ranks do so, which makes room for
/// the first message that was stuck, then for the next, and so on for all of them.
///
/// A rank that waits long for one message looks at the others with the same tag. A void frame among them ends
/// the step before the slow peer has sent.
#[derive(Debug, Default)]
pub(super) struct Underway {
    promised: VecDeque<(Rank, Tag)>,
    /// Messages that arrived and were taken early, by their position in `promised`.
    early: VecDeque<Option<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
    /// Whether ranks that fail send notes, and not only void frames in place of their frames.
    pub(super) has_notes: bool,
    /// The first note, or the void frame that was found while waiting for another message, with its sender.
    /// That rank sends nothing more.
    pub(super) note: Option<(Rank, Vec<u8>)>,
}

impl Underway {
    /// Drops the messages of a step that failed.
    pub(super) fn clear(&mut self) {
        self.note = None;
        self.promised.clear();
        self.spare.extend(self.early.drain(..).flatten());
    }

    /// A buffer to reuse, with any content.
    pub(super) fn lend(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// Drops the messages that have arrived, when none of them is needed any more. This makes room for
    /// others.
    pub(super) fn drop_arrived(&mut self, transport: &mut dyn Transport) {
        let mut message = self.lend();
        self.promised
            .retain(|&(from, tag)| transport.recv(from, tag, &mut message, Deadline::now()).is_err());
        self.give(message);
    }

    /// Records that `from` will send a message with `tag`.
    pub(super) fn expect(&mut self, from: Rank, tag: Tag) {
        self.promised.push_back((from, tag));
    }

    /// Sends a message. If the receiver has no room, takes all expected messages first, then waits for room.
    pub(super) fn send(
        &mut self,
        transport: &mut dyn Transport,
        (to, tag): (Rank, Tag),
        payload: &[u8],
        reader: &Reader<'_>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        match transport.send(to, tag, payload, Deadline::now()) {
            Err(TransportError::NoRoom { .. }) => {
                self.take_early(transport, tag, reader, deadline)?;
                transport.send(to, tag, payload, deadline)
            }
            sent => sent,
        }
    }

    /// Waits for every message that is expected so far and keeps it.
    fn take_early(
        &mut self,
        transport: &mut dyn Transport,
        step: Tag,
        reader: &Reader<'_>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        for at in 0..self.promised.len() {
            if self.early.get(at).is_some_and(Option::is_some) {
                continue;
            }
            let mut message = self.spare.pop().unwrap_or_default();
            self.wait(transport, (step, self.promised[at]), &mut message, reader, deadline)?;
            self.put_early(at, message);
        }
        Ok(())
    }

    fn put_early(&mut self, at: usize, message: Vec<u8>) {
        let len = self.early.len().max(at + 1);
        self.early.resize_with(len, || None);
        self.early[at] = Some(message);
    }

    /// Waits for the message that is expected first, and puts it in `into`.
    ///
    /// # Panics
    /// When no message is expected.
    pub(super) fn take(
        &mut self,
        transport: &mut dyn Transport,
        into: &mut Vec<u8>,
        reader: &Reader<'_>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let (from, tag) = self.promised.pop_front().expect("who takes a message was promised one");
        match self.early.pop_front().flatten() {
            Some(message) => self.spare.push(std::mem::replace(into, message)),
            None => self.wait(transport, (tag, (from, tag)), into, reader, deadline)?,
        }
        Ok(())
    }

    /// Waits for one message, and watches for notes or void frames meanwhile.
    fn wait(
        &mut self,
        transport: &mut dyn Transport,
        (step, (from, tag)): (Tag, (Rank, Tag)),
        into: &mut Vec<u8>,
        reader: &Reader<'_>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        if self.has_notes {
            return Watched { transport, step, note: &mut self.note }.wait(from, tag, into, deadline);
        }
        let mut patience = FIRST_LOOK;
        loop {
            let until = deadline.earlier(Deadline::after(patience));
            patience = patience.saturating_mul(2);
            match transport.recv(from, tag, into, until) {
                Err(timeout @ TransportError::Timeout { .. }) => {
                    if self.look(transport, (from, tag), reader) || deadline.has_passed() {
                        return Err(timeout);
                    }
                }
                received => return received,
            }
        }
    }

    /// Takes those of the other expected messages that have arrived and have the tag of the message that this
    /// rank waits for. Returns whether a void frame is among them, which is then in `note`. Messages with
    /// this tag are enough: a rank sends its void frame to all others with the same tag, and this rank has
    /// already sent all that they wait for before they reach that tag.
    fn look(&mut self, transport: &mut dyn Transport, waited: (Rank, Tag), reader: &Reader<'_>) -> bool {
        for at in 0..self.promised.len() {
            let (from, tag) = self.promised[at];
            if (from, tag) == waited || tag != waited.1 || self.early.get(at).is_some_and(Option::is_some) {
                continue;
            }
            let mut message = self.spare.pop().unwrap_or_default();
            if transport.recv(from, tag, &mut message, Deadline::now()).is_err() {
                self.spare.push(message);
                continue;
            }
            if reader.void_of(from, &message).is_some() {
                self.note = Some((from, message));
                return true;
            }
            self.put_early(at, message);
        }
        false
    }
}
