//! Messages of a step that are on their way to this rank.

use std::collections::VecDeque;

use super::void::Watched;
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// Messages that were promised and not asked for yet, in the order in which they are asked for. Every peer
/// sends its own in that order too, so nobody waits for one that stands behind another.
///
/// An inbox need not have room for more than one message of a peer. Who finds no room takes what it was
/// promised so far before it waits: as all do so, there is room for the first message that nobody could send,
/// and so for each.
#[derive(Debug, Default)]
pub(super) struct Underway {
    promised: VecDeque<(Rank, Tag)>,
    /// The first of them, taken before they were asked for.
    early: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Whether ranks that fail send notes, and do not only put void frames in place of what they promised.
    pub(super) has_notes: bool,
    /// The first note, and whose it is: nothing more will come.
    pub(super) note: Option<(Rank, Vec<u8>)>,
}

impl Underway {
    /// Forgets what a step that failed has left.
    pub(super) fn clear(&mut self) {
        self.note = None;
        self.promised.clear();
        self.spare.extend(self.early.drain(..));
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
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        match transport.send(to, tag, payload, Deadline::now()) {
            Err(TransportError::NoRoom { .. }) => {
                self.take_early(transport, tag, deadline)?;
                transport.send(to, tag, payload, deadline)
            }
            sent => sent,
        }
    }

    fn take_early(
        &mut self,
        transport: &mut dyn Transport,
        step: Tag,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        for at in self.early.len()..self.promised.len() {
            let (from, tag) = self.promised[at];
            let mut message = self.spare.pop().unwrap_or_default();
            self.wait(transport, step, (from, tag), &mut message, deadline)?;
            self.early.push_back(message);
        }
        Ok(())
    }

    /// Waits for the message that was promised first, and puts it in `into`.
    ///
    /// # Panics
    /// When none was promised.
    pub(super) fn take(
        &mut self,
        transport: &mut dyn Transport,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let (from, tag) = self.promised.pop_front().expect("who takes a message was promised one");
        match self.early.pop_front() {
            Some(message) => self.spare.push(std::mem::replace(into, message)),
            None => self.wait(transport, tag, (from, tag), into, deadline)?,
        }
        Ok(())
    }

    fn wait(
        &mut self,
        transport: &mut dyn Transport,
        step: Tag,
        (from, tag): (Rank, Tag),
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        if !self.has_notes {
            return transport.recv(from, tag, into, deadline);
        }
        Watched { transport, step, note: &mut self.note }.wait(from, tag, into, deadline)
    }
}
