//! What the caller and the thread that owns the sockets share.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mio::Waker;

use super::error::TcpError;
use super::frame::{MESSAGE_HEADER, message_header};
use super::wire::Frame;
use crate::error::TransportError;
use crate::inbox::InboxLimits;
use crate::mailbox::Mailbox;
use crate::rank::Rank;
use crate::spares::Spares;
use crate::tag::{Deadline, Tag};

/// How many of those who were turned away are remembered.
const REMEMBERED: usize = 8;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mailbox: Mailbox,
    /// Set while the thread leaves a message of some peer unread, because the mailbox has no room for it.
    pub(super) is_held_back: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

#[derive(Debug)]
pub(super) struct State {
    /// By rank; this rank too.
    pub(super) peers: Vec<Peer>,
    pub(super) spares: Spares,
    /// Whether the thread was woken and has not looked yet.
    is_woken: bool,
    /// The deadline of a caller that leaves.
    pub(super) closing: Option<Deadline>,
    /// When bytes of messages last moved between any two ranks, as far as this end knows.
    pub(super) moved: Instant,
    pub(super) is_stopped: bool,
    /// Whether all peers were there at one time. From then on, none may come again.
    pub(super) has_begun: bool,
    /// Why no mesh comes about.
    pub(super) failure: Option<TcpError>,
    pub(super) turned_away: VecDeque<String>,
    /// Names that were looked up for a peer.
    pub(super) resolved: Vec<(usize, io::Result<Vec<SocketAddr>>)>,
}

/// Whether a peer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Expected,
    Here,
    /// For ever.
    Gone,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) standing: Standing,
    pub(super) outbox: Outbox,
    /// What is known of why it is not there.
    pub(super) known: String,
    /// The last message for it.
    pub(super) last: Tag,
    /// Whether it has confirmed everything, or never can.
    pub(super) is_settled: bool,
}

/// Messages for one receiver that are not written to its socket.
#[derive(Debug)]
pub(super) struct Outbox {
    limits: InboxLimits,
    frames: VecDeque<Vec<u8>>,
    /// Those that the thread is writing too.
    messages: usize,
    payload_bytes: usize,
}

impl Outbox {
    fn new(limits: InboxLimits) -> Self {
        Self { limits, frames: VecDeque::new(), messages: 0, payload_bytes: 0 }
    }

    fn has_room(&self, bytes: usize) -> bool {
        let InboxLimits { messages, bytes: most } = self.limits;
        self.messages == 0 || self.messages < messages && self.payload_bytes.saturating_add(bytes) <= most
    }

    fn push(&mut self, frame: Vec<u8>) {
        self.messages += 1;
        self.payload_bytes += frame.len() - MESSAGE_HEADER;
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// That frame is written.
    pub(super) fn written(&mut self, frame: &Frame) {
        // A queue that was cleared meanwhile counts from nothing.
        self.messages = self.messages.saturating_sub(1);
        self.payload_bytes = self.payload_bytes.saturating_sub(frame.bytes.len() - MESSAGE_HEADER);
    }

    /// Whether nothing is left to be written.
    pub(super) fn is_written(&self) -> bool {
        self.messages == 0
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }
}

impl Shared {
    pub(super) fn new(world: usize, inbox: InboxLimits, outbox: InboxLimits, waker: Waker) -> Self {
        let peer = || Peer {
            standing: Standing::Expected,
            outbox: Outbox::new(outbox),
            known: "it was not heard of".to_owned(),
            last: Tag::default(),
            is_settled: false,
        };
        let state = State {
            peers: (0..world).map(|_| peer()).collect(),
            spares: Spares::new(outbox.bytes),
            is_woken: false,
            closing: None,
            moved: Instant::now(),
            is_stopped: false,
            has_begun: false,
            failure: None,
            turned_away: VecDeque::new(),
            resolved: Vec::new(),
        };
        Self {
            mailbox: Mailbox::new(world, inbox),
            is_held_back: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
        }
    }

    /// No code panics in the middle of a change, so a poisoned lock is still usable.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// No mesh comes about, unless it has before.
    pub(super) fn fail(&self, error: TcpError) {
        let mut state = self.lock();
        if !state.has_begun {
            state.failure.get_or_insert(error);
            self.notify();
        }
    }

    pub(super) fn wait<'a>(&'a self, state: MutexGuard<'a, State>, by: Deadline) -> MutexGuard<'a, State> {
        match by.remaining() {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Wakes the thread, unless it was woken and has not looked yet.
    pub(super) fn wake(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_woken, true) {
            // A waker fails only with the poller, whose thread then ends by itself.
            let _ = self.waker.wake();
        }
    }

    /// There may be room in the mailbox for what the thread held back.
    pub(super) fn room_was_made(&self) {
        if self.is_held_back.swap(false, Ordering::SeqCst) {
            self.wake(&mut self.lock());
        }
    }

    /// Waits for room and queues a message.
    pub(super) fn queue(
        &self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        use TransportError::{Closed, Disconnected, NoRoom};
        let at = to.0 as usize;
        let mut state = self.lock();
        loop {
            if state.peers[at].standing == Standing::Gone {
                return Err(Disconnected { rank: to });
            }
            if state.is_stopped {
                return Err(Closed);
            }
            if state.peers[at].outbox.has_room(payload.len()) {
                break;
            }
            if deadline.has_passed() {
                return Err(NoRoom { to, tag });
            }
            state = self.wait(state, deadline);
        }
        let room = MESSAGE_HEADER + payload.len();
        let mut frame = state.spares.take(room, room);
        // Only this caller fills the queue, so there is still room after the copy, which holds up nobody.
        drop(state);
        frame.extend_from_slice(&message_header(tag, payload.len()));
        frame.extend_from_slice(payload);
        let mut state = self.lock();
        if state.peers[at].standing == Standing::Gone {
            return Err(Disconnected { rank: to });
        }
        state.peers[at].last = tag;
        state.peers[at].outbox.push(frame);
        self.wake(&mut state);
        Ok(())
    }
}

impl State {
    /// The thread looks now.
    pub(super) fn look(&mut self) {
        self.is_woken = false;
    }

    /// What is known of a peer that is not there.
    pub(super) fn know(&mut self, rank: usize, known: &str) {
        known.clone_into(&mut self.peers[rank].known);
    }

    pub(super) fn turn_away(&mut self, who: SocketAddr, why: &str) {
        if self.turned_away.len() == REMEMBERED {
            self.turned_away.pop_front();
        }
        self.turned_away.push_back(format!("{who}: {why}"));
    }

    /// The peers that are still waited for, and what is known of them.
    pub(super) fn missing(&self) -> Vec<(Rank, String)> {
        let expected = |(_, peer): &(usize, &Peer)| peer.standing == Standing::Expected;
        let known = |(rank, peer): (usize, &Peer)| (Rank(rank as u32), peer.known.clone());
        self.peers.iter().enumerate().filter(expected).map(known).collect()
    }
}
