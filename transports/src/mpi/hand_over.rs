//! What callers and the communication thread pass to each other: messages to send, room for more, a lent
//! slice, departures.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::envelope::{ENVELOPE_BYTES, Envelope};
use super::library::Loan;
use crate::error::TransportError;
use crate::inbox::InboxLimits;
use crate::rank::Rank;
use crate::spares::Spares;
use crate::tag::{Deadline, Tag};

/// How long a caller lets the communication thread have its core.
const MOMENT: Duration = Duration::from_millis(1);

/// Something to send.
#[derive(Debug)]
pub(super) enum Parcel {
    /// A payload followed by its envelope.
    Message(Vec<u8>),
    /// This rank sends nothing more.
    Farewell,
}

#[derive(Debug)]
pub(super) struct HandOver {
    slot: Mutex<Slot>,
    /// Signals that the communication thread has work.
    work: Condvar,
    /// Signals that the communication thread has finished something.
    done: Condvar,
    limits: InboxLimits,
}

#[derive(Debug)]
struct Slot {
    outgoing: Vec<(usize, Parcel)>,
    /// Whether the communication thread is handing messages to the library.
    is_handing: bool,
    /// By receiver: messages that wait here or are in flight.
    unsent: Vec<Unsent>,
    spares: Spares,
    lent: Option<Loan>,
    is_lent: bool,
    gone: Vec<bool>,
    leaving: bool,
    ended: bool,
    /// Whether the communication thread should poll now.
    nudged: bool,
    /// Number of callers that can continue only after the communication thread has done something.
    waiting: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unsent {
    parcels: usize,
    bytes: usize,
}

impl Slot {
    /// Whether there are messages that the library does not have yet.
    fn is_posted(&self) -> bool {
        self.is_handing || !self.outgoing.is_empty()
    }
}

impl HandOver {
    pub(super) fn new(world: usize, limits: InboxLimits) -> Self {
        let slot = Slot {
            outgoing: Vec::new(),
            is_handing: false,
            unsent: vec![Unsent::default(); world],
            spares: Spares::new(limits.bytes),
            lent: None,
            is_lent: false,
            gone: vec![false; world],
            leaving: false,
            ended: false,
            nudged: false,
            waiting: 0,
        };
        Self { slot: Mutex::new(slot), work: Condvar::new(), done: Condvar::new(), limits }
    }

    // --- the caller's side ------------------------------------------

    /// Waits for room and copies a message for the communication thread. The copy is made without holding the
    /// lock.
    pub(super) fn post(
        &self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let position = to.0 as usize;
        let bytes = payload.len() + ENVELOPE_BYTES;
        let mut buffer = {
            let mut slot = self.wait_for_room(to, tag, bytes, deadline)?;
            let unsent = &mut slot.unsent[position];
            unsent.parcels += 1;
            unsent.bytes += bytes;
            slot.spares.take(bytes, bytes)
        };
        buffer.extend_from_slice(payload);
        buffer.extend_from_slice(&Envelope { tag, payload_bytes: payload.len() as u64 }.to_bytes());
        self.lock().outgoing.push((position, Parcel::Message(buffer)));
        self.work.notify_one();
        Ok(())
    }

    /// Waits until the library has all messages that were posted, at most for a moment. A caller that has
    /// what it waited for goes on to compute. If it shares its core with the communication thread, its last
    /// message would lie here for as long as the system lets it compute at a stretch, and others wait for
    /// that message.
    pub(super) fn let_go(&self) {
        let (deadline, mut slot) = (Deadline::after(MOMENT), self.lock());
        while slot.is_posted() && !deadline.has_passed() {
            slot = self.wait(slot, deadline);
        }
    }

    fn wait_for_room(
        &self,
        to: Rank,
        tag: Tag,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<MutexGuard<'_, Slot>, TransportError> {
        let mut slot = self.lock();
        loop {
            let unsent = slot.unsent[to.0 as usize];
            if slot.gone[to.0 as usize] {
                return Err(TransportError::Disconnected { rank: to });
            }
            let fits = unsent.parcels < self.limits.messages
                && unsent.bytes.saturating_add(bytes) <= self.limits.bytes;
            if unsent.parcels == 0 || fits {
                return Ok(slot);
            }
            if deadline.has_passed() {
                return Err(TransportError::NoRoom { to, tag });
            }
            slot = self.wait(slot, deadline);
        }
    }

    /// Sends a farewell to all ranks, after the messages that wait, and waits until everything was received.
    /// The error names a rank that has not received it.
    pub(super) fn leave(&self, me: usize, deadline: Deadline) -> Result<(), TransportError> {
        let mut slot = self.lock();
        for to in (0..slot.unsent.len()).filter(|to| *to != me) {
            slot.unsent[to].parcels += 1;
            slot.outgoing.push((to, Parcel::Farewell));
        }
        slot.leaving = true;
        self.work.notify_one();
        while let Some(slow) = slot.unsent.iter().position(|unsent| unsent.parcels > 0) {
            if deadline.has_passed() {
                return Err(TransportError::NoRoom { to: Rank(slow as u32), tag: Tag::default() });
            }
            slot = self.wait(slot, deadline);
        }
        Ok(())
    }

    /// Lends a slice until the communication thread returns it. Returns whether that happened in time; if
    /// not, the slice is still lent.
    #[must_use]
    pub(super) fn lend(&self, loan: Loan, deadline: Deadline) -> bool {
        let mut slot = self.lock();
        (slot.lent, slot.is_lent) = (Some(loan), true);
        self.work.notify_one();
        while slot.is_lent && !deadline.has_passed() {
            slot = self.wait(slot, deadline);
        }
        !slot.is_lent
    }

    /// Whether the communication thread has ended in time.
    #[must_use]
    pub(super) fn wait_for_end(&self, deadline: Deadline) -> bool {
        let mut slot = self.lock();
        while !slot.ended && !deadline.has_passed() {
            slot = self.wait(slot, deadline);
        }
        slot.ended
    }

    /// Makes the communication thread poll now.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.work.notify_one();
    }

    /// Makes the communication thread poll often while the caller waits for a message.
    pub(super) fn while_waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.ask(&mut self.lock());
        let result = wait();
        self.lock().waiting -= 1;
        result
    }

    fn ask(&self, slot: &mut Slot) {
        slot.waiting += 1;
        slot.nudged = true;
        self.work.notify_one();
    }

    /// Waits until the communication thread has finished something.
    fn wait<'a>(&self, mut slot: MutexGuard<'a, Slot>, deadline: Deadline) -> MutexGuard<'a, Slot> {
        self.ask(&mut slot);
        let mut slot = match deadline.remaining() {
            None => self.done.wait(slot).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.done.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        slot.waiting -= 1;
        slot
    }

    // --- the communication thread's side ------------------------------------------

    /// Moves the messages to be sent into `parcels`, in the order of `send`. [`handed`](Self::handed)
    /// follows.
    pub(super) fn collect(&self, parcels: &mut Vec<(usize, Parcel)>) {
        let mut slot = self.lock();
        parcels.append(&mut slot.outgoing);
        slot.is_handing = !parcels.is_empty();
    }

    /// The library has what was collected.
    pub(super) fn handed(&self) {
        self.lock().is_handing = false;
        self.done.notify_all();
    }

    pub(super) fn lent(&self) -> Option<Loan> {
        self.lock().lent.take()
    }

    pub(super) fn give_back(&self) {
        self.lock().is_lent = false;
        self.done.notify_all();
    }

    /// A message was sent; its buffer may be reused.
    pub(super) fn sent(&self, to: usize, buffer: Vec<u8>) {
        let mut slot = self.lock();
        slot.unsent[to].parcels -= 1;
        slot.unsent[to].bytes -= buffer.len();
        slot.spares.put(buffer);
        self.done.notify_all();
    }

    /// A peer has said farewell.
    pub(super) fn left(&self, rank: usize) {
        self.lock().gone[rank] = true;
        self.done.notify_all();
    }

    /// Whether this rank has left and receives nothing more.
    pub(super) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Whether all ranks have received this rank's farewell, and everything before it.
    pub(super) fn has_left(&self) -> bool {
        let slot = self.lock();
        slot.leaving && slot.unsent.iter().all(|unsent| unsent.parcels == 0)
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.done.notify_all();
    }

    /// Whether a caller waits for the communication thread.
    pub(super) fn is_awaited(&self) -> bool {
        self.lock().waiting > 0
    }

    /// Sleeps until there is work or a nudge, but not longer than `most`.
    pub(super) fn doze(&self, most: Duration) {
        let mut slot = self.lock();
        if slot.outgoing.is_empty() && slot.lent.is_none() && !slot.nudged {
            slot = self.work.wait_timeout(slot, most).unwrap_or_else(PoisonError::into_inner).0;
        }
        slot.nudged = false;
    }

    /// No code panics in the middle of a change while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    fn doze(hand_over: &HandOver) -> Duration {
        let started = Instant::now();
        hand_over.doze(LONG);
        started.elapsed()
    }

    #[test]
    fn who_asks_before_the_thread_sleeps_is_heard_once() {
        let hand_over = HandOver::new(2, InboxLimits { messages: 1, bytes: 1 });
        hand_over.nudge();
        assert!(doze(&hand_over) < LONG);
        hand_over.doze(Duration::ZERO);
        assert!(!hand_over.lock().nudged);
        hand_over.while_waiting(|| {
            assert!(hand_over.is_awaited());
            assert!(doze(&hand_over) < LONG);
        });
        assert!(!hand_over.is_awaited());
    }

    #[test]
    fn who_has_posted_lets_the_thread_hand_it_on() {
        let hand_over = HandOver::new(2, InboxLimits { messages: 1, bytes: 1 });
        hand_over.let_go();
        hand_over.post(Rank(1), Tag::default(), &[1], Deadline::now()).unwrap();
        let is_handed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Its moments end if the thread is late, so it asks for another one.
            let caller = scope.spawn(|| {
                let end = Deadline::after(LONG);
                while hand_over.lock().is_posted() && !end.has_passed() {
                    hand_over.let_go();
                }
                assert!(is_handed.load(Relaxed));
            });
            while !hand_over.is_awaited() {
                assert!(!caller.is_finished());
                std::thread::yield_now();
            }
            let mut parcels = Vec::new();
            hand_over.collect(&mut parcels);
            assert_eq!(parcels.len(), 1);
            assert!(hand_over.lock().is_posted());
            is_handed.store(true, Relaxed);
            hand_over.handed();
            caller.join().unwrap();
        });
        // A thread that never comes is not waited for.
        hand_over.post(Rank(0), Tag::default(), &[2], Deadline::now()).unwrap();
        hand_over.let_go();
        assert!(hand_over.lock().is_posted());
    }

    #[test]
    fn who_waits_for_room_wakes_the_thread_and_is_seen_to_wait() {
        let hand_over = HandOver::new(2, InboxLimits { messages: 1, bytes: 1 });
        hand_over.post(Rank(1), Tag::default(), &[1], Deadline::now()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| hand_over.post(Rank(1), Tag::default(), &[2], Deadline::after(LONG)));
            let mut parcels = Vec::new();
            hand_over.collect(&mut parcels);
            while !hand_over.is_awaited() {
                assert!(doze(&hand_over) < LONG);
            }
            let Some((to, Parcel::Message(bytes))) = parcels.pop() else { panic!("no parcel") };
            hand_over.sent(to, bytes);
            second.join().unwrap().unwrap();
        });
        assert!(!hand_over.is_awaited());
    }
}
