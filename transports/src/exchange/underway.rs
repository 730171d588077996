//! Messages of a step that are on their way to this rank.

use std::collections::VecDeque;
use std::time::Duration;

use super::void::{Reader, Watched};
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// How long one message is waited for before the first look at the others, where frames travel. Most steps
/// never look; each wait is twice as long as the one before.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// Messages that were promised and not asked for yet, in the order in which they are asked for. Every peer
/// sends its own in that order too, so nobody waits for one that stands behind another.
///
/// An inbox need not have room for more than one message of a peer. Who finds no room takes what it was
/// promised so far before it waits: as all do so, there is room for the first message that nobody could send,
/// and so for each.
///
/// Who waits long for one message looks at the others with the same tag: a void frame among them ends the
/// step before the slow peer has sent.
#[derive(Debug, Default)]
pub(super) struct Underway {
    promised: VecDeque<(Rank, Tag)>,
    /// Those of them that were taken before they were asked for, by place.
    early: VecDeque<Option<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
    /// Whether ranks that fail send notes, and do not only put void frames in place of what they promised.
    pub(super) has_notes: bool,
    /// The first note, or void frame that was found while waiting for another message, and whose it is:
    /// nothing more will come.
    pub(super) note: Option<(Rank, Vec<u8>)>,
}

impl Underway {
    /// Forgets what a step that failed has left.
    pub(super) fn clear(&mut self) {
        self.note = None;
        self.promised.clear();
        self.spare.extend(self.early.drain(..).flatten());
    }

    /// A buffer of no particular content.
    pub(super) fn lend(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// Makes room for others, when nothing of what was promised is of use any more.
    pub(super) fn drop_arrived(&mut self, transport: &mut dyn Transport) {
        let mut message = self.lend();
        self.promised
            .retain(|&(from, tag)| transport.recv(from, tag, &mut message, Deadline::now()).is_err());
        self.give(message);
    }

    /// Notes that `from` sends a message with `tag`.
    pub(super) fn expect(&mut self, from: Rank, tag: Tag) {
        self.promised.push_back((from, tag));
    }

    /// Sends a message; where there is no room, takes what was promised first.
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

    /// Waits for the message that was promised first, and puts it in `into`.
    ///
    /// # Panics
    /// When none was promised.
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

    /// Takes what is there of the other promised messages with the tag of the one that is waited for; whether
    /// a void frame is among them, which is then in `note`. Only those: whoever sent one sent it to all in
    /// that place, and this rank has sent everything that others wait for before they come to it.
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
