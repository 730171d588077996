//! One rank's mailbox: an inbox, spare buffers and the set of ranks that are gone, behind one lock.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::TransportError;
use crate::inbox::{Admission, Inbox, InboxLimits};
use crate::rank::Rank;
use crate::spares::Spares;
use crate::tag::{Deadline, Tag, Wanted};

#[derive(Debug)]
pub(crate) struct Mailbox {
    slot: Mutex<Slot>,
    /// Signals that a message arrived or a sender left.
    arrived: Condvar,
    /// Signals that a message was taken or the owner left.
    room: Condvar,
}

#[derive(Debug)]
struct Slot {
    inbox: Inbox,
    spares: Spares,
    owner_gone: bool,
    /// Whether the owner is not to wait, this time.
    is_woken: bool,
    /// By position of the sender.
    senders_gone: Vec<bool>,
    /// The messages for any of which the owner waits.
    awaited: Vec<Wanted>,
    /// Whose next message has found no room since room was last made.
    held_back: Vec<Rank>,
}

/// An owner seldom waits for more messages at a time. The first wait may come late, and should not be the
/// first that allocates.
const AWAITED: usize = 64;

impl Mailbox {
    pub(crate) fn new(world: usize, limits: InboxLimits) -> Self {
        let slot = Slot {
            inbox: Inbox::new(limits),
            spares: Spares::new(limits.bytes),
            owner_gone: false,
            is_woken: false,
            senders_gone: vec![false; world],
            awaited: Vec::with_capacity(AWAITED),
            held_back: Vec::with_capacity(world),
        };
        Self { slot: Mutex::new(slot), arrived: Condvar::new(), room: Condvar::new() }
    }

    /// Copies a message in, when there is room. The copy is made without holding the lock.
    pub(crate) fn deliver(
        &self,
        (to, from): (Rank, Rank),
        tag: Tag,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let lengths = (payload.len(), payload.len());
        let Some(mut buffer) = self.reserve((to, from), tag, lengths, deadline)? else { return Ok(()) };
        buffer.extend_from_slice(payload);
        self.fill(from, tag, buffer);
        Ok(())
    }

    /// Puts in the message for which room was reserved. Only its sender fills its room, so the message still
    /// fits, unless the owner retired it meanwhile.
    pub(crate) fn fill(&self, from: Rank, tag: Tag, buffer: Vec<u8>) {
        let mut slot = self.lock();
        match slot.inbox.insert(from, tag, buffer) {
            Ok(()) => self.tell(&slot, from, tag),
            Err((_, refused)) => slot.spares.put(refused),
        }
    }

    /// Waits for room for `len` bytes and takes a buffer, which has room for `fresh` bytes if it is a new
    /// one; `None` when the message is to be dropped.
    pub(crate) fn reserve(
        &self,
        ends: (Rank, Rank),
        tag: Tag,
        lengths: (usize, usize),
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let mut slot = self.lock();
        loop {
            match slot.reserve(ends, tag, lengths) {
                Err(TransportError::NoRoom { .. }) if !deadline.has_passed() => {
                    slot = wait(&self.room, slot, deadline);
                }
                reserved => return reserved,
            }
        }
    }

    /// The same for the next message of a sender whose messages come in order, without waiting. If there is
    /// no room, an owner that waits for this sender's messages alone, and for ever, is told: none can come.
    #[cfg(feature = "tcp")]
    pub(crate) fn reserve_next(
        &self,
        (to, from): (Rank, Rank),
        tag: Tag,
        lengths: (usize, usize),
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let mut slot = self.lock();
        let reserved = slot.reserve((to, from), tag, lengths);
        if matches!(reserved, Err(TransportError::NoRoom { .. })) && !slot.held_back.contains(&from) {
            slot.held_back.push(from);
            self.arrived.notify_one();
        }
        reserved
    }

    /// Waits for any of the messages, which come from senders at the positions that `position` tells.
    pub(crate) fn take(
        &self,
        wanted: &[Wanted],
        position: impl Fn(Rank) -> Result<usize, TransportError>,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        wanted.iter().try_for_each(|wanted| position(wanted.from).map(|_| ()))?;
        let mut slot = self.lock();
        loop {
            if let Some((found, bytes)) = slot.inbox.take_any(wanted) {
                slot.hand_over(bytes, into);
                slot.held_back.clear();
                self.room.notify_all();
                return Ok(found);
            }
            for &Wanted { from, tag, .. } in wanted {
                if slot.inbox.is_retired(tag) {
                    return Err(TransportError::Retired { tag });
                }
                if slot.senders_gone[position(from)?] {
                    return Err(TransportError::Disconnected { rank: from });
                }
            }
            let Wanted { from, tag, .. } = wanted[0];
            if mem::take(&mut slot.is_woken) || deadline.has_passed() {
                return Err(TransportError::Timeout { from, tag });
            }
            let is_endless = deadline.remaining().is_none();
            if is_endless && wanted.iter().all(|wanted| slot.held_back.contains(&wanted.from)) {
                return Err(TransportError::Flooded { from, tag });
            }
            slot.awaited.extend_from_slice(wanted);
            slot = wait(&self.arrived, slot, deadline);
            slot.awaited.clear();
        }
    }

    /// An empty buffer with room for `len` bytes.
    #[cfg(feature = "mpi")]
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        self.lock().spares.take(len, len)
    }

    /// Accepts a message without waiting, and returns it if there is no room now. Drops duplicates and
    /// messages that are too old.
    #[cfg(feature = "mpi")]
    pub(crate) fn offer(&self, from: Rank, tag: Tag, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        let slot = &mut *self.lock();
        match slot.inbox.insert(from, tag, bytes) {
            Ok(()) => self.tell(slot, from, tag),
            Err((Admission::Full, bytes)) => return Err(bytes),
            Err((_, bytes)) => slot.spares.put(bytes),
        }
        Ok(())
    }

    /// Wakes the owner if it waits for this message, among others.
    fn tell(&self, slot: &Slot, from: Rank, tag: Tag) {
        if slot.awaited.iter().any(|wanted| wanted.holds(from, tag)) {
            self.arrived.notify_one();
        }
    }

    pub(crate) fn retire(&self, before: Tag) {
        let slot = &mut *self.lock();
        slot.inbox.retire(before, |buffer| slot.spares.put(buffer));
        slot.held_back.clear();
        self.room.notify_all();
    }

    /// Ends the owner's wait, or else its next one, as if its time were over.
    #[cfg(feature = "tcp")]
    pub(crate) fn wake(&self) {
        self.lock().is_woken = true;
        self.arrived.notify_one();
    }

    pub(crate) fn owner_left(&self) {
        self.lock().owner_gone = true;
        self.room.notify_all();
    }

    pub(crate) fn sender_left(&self, position: usize) {
        self.lock().senders_gone[position] = true;
        self.arrived.notify_one();
    }

    /// No code panics in the middle of a change, so a poisoned lock is still usable.
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// A buffer, if there is room now; `None` when the message is to be dropped.
    fn reserve(
        &mut self,
        (to, from): (Rank, Rank),
        tag: Tag,
        (len, fresh): (usize, usize),
    ) -> Result<Option<Vec<u8>>, TransportError> {
        if self.owner_gone {
            return Err(TransportError::Disconnected { rank: to });
        }
        match self.inbox.admission(from, tag, len) {
            Admission::Accepted => Ok(Some(self.spares.take(len, fresh))),
            Admission::Duplicate | Admission::Stale => Ok(None),
            Admission::Full => Err(TransportError::NoRoom { to, tag }),
        }
    }

    /// Gives the caller the message's buffer and keeps the caller's old one; an empty message has no buffer.
    fn hand_over(&mut self, mut bytes: Vec<u8>, into: &mut Vec<u8>) {
        if bytes.is_empty() {
            into.clear();
        } else {
            mem::swap(&mut bytes, into);
        }
        self.spares.put(bytes);
    }
}

fn wait<'a>(signal: &Condvar, slot: MutexGuard<'a, Slot>, deadline: Deadline) -> MutexGuard<'a, Slot> {
    match deadline.remaining() {
        None => signal.wait(slot).unwrap_or_else(PoisonError::into_inner),
        Some(left) => signal.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0,
    }
}
