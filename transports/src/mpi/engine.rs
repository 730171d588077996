//! The communication thread: the only one that calls MPI.
//!
//! It moves messages while the caller computes. While the caller waits and there is traffic, it polls as MPI
//! programs do, and yields to other threads. Otherwise it sleeps between polls, and sleeps longer if there is
//! less traffic.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::abort::{abort, end_if_requested};
use super::credit::Credit;
use super::envelope::{ENVELOPE_BYTES, Envelope};
use super::exit_code::PANIC_EXIT_CODE;
use super::hand_over::{HandOver, Parcel};
use super::library::{Arrival, End, Library, Transfer};
use super::options::MpiOptions;
use crate::mailbox::Mailbox;
use crate::rank::Rank;
use crate::tag::Tag;

/// How long the thread polls without sleeping after something moved, while the caller waits. It is short,
/// because with more ranks than cores, a rank that polls takes CPU time from a rank that computes.
const LIVELY: Duration = Duration::from_micros(100);
/// How long the thread sleeps between two polls while something is in flight: short compared with a step,
/// long compared with the cost of a poll.
const NAP: Duration = Duration::from_micros(100);
/// The same while no caller waits and nothing is known to be in flight: messages are then not urgent.
const IDLE_NAP: Duration = Duration::from_micros(500);
/// The longest sleep while no caller waits. The thread sleeps for an eighth of the time for which nothing has
/// moved, so a message is late by at most that share.
const LONGEST_NAP: Duration = Duration::from_millis(1);

pub(super) struct Engine {
    library: Library,
    hand_over: Arc<HandOver>,
    mailbox: Arc<Mailbox>,
    max_message_bytes: usize,
    parcels: Vec<(usize, Parcel)>,
    sending: Vec<Sending>,
    /// By rank.
    credits: Vec<Credit>,
    /// By rank.
    peers: Vec<Peer>,
    last_move: Instant,
}

/// A message in flight.
struct Sending {
    to: usize,
    transfer: Transfer,
    end: End,
}

/// The state of receiving from one rank: one message at a time, in the order of sending.
enum Peer {
    /// No message is known to come.
    Quiet,
    /// The end of a message, or all of it, is arriving.
    Begun(Transfer),
    /// A long payload is arriving.
    InPieces(Tag, Transfer),
    /// Received, but the inbox has no room for it.
    Waiting(Tag, Vec<u8>),
    /// The rank has said farewell, or is this rank itself.
    Gone,
}

impl Engine {
    pub(super) fn new(
        library: Library,
        hand_over: Arc<HandOver>,
        mailbox: Arc<Mailbox>,
        options: &MpiOptions,
    ) -> Self {
        let (world, me) = (library.world(), library.rank());
        let peer = |rank| if rank == me { Peer::Gone } else { Peer::Quiet };
        Self {
            library,
            hand_over,
            mailbox,
            max_message_bytes: options.max_message_bytes,
            parcels: Vec::new(),
            sending: Vec::new(),
            credits: (0..world).map(|_| Credit::new(options.limits.bytes)).collect(),
            peers: (0..world).map(peer).collect(),
            last_move: Instant::now(),
        }
    }

    /// Works until this rank and all others have said farewell, then finalizes MPI.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            end_if_requested();
            // All of these run, whatever the results of the others.
            if self.send() | self.settle() | self.receive() | self.reduce() {
                self.last_move = Instant::now();
            } else {
                self.rest();
            }
        }
        let hand_over = Arc::clone(&self.hand_over);
        drop(self);
        hand_over.end();
    }

    /// Yields the core until the next poll.
    fn rest(&self) {
        let quiet = self.last_move.elapsed();
        match self.hand_over.is_awaited() {
            true if quiet < LIVELY => thread::yield_now(),
            true => self.hand_over.doze(NAP),
            false => {
                let least = if self.is_anything_under_way() { NAP } else { IDLE_NAP };
                self.hand_over.doze((quiet / 8).clamp(least, LONGEST_NAP));
            }
        }
    }

    fn is_anything_under_way(&self) -> bool {
        let comes = |peer: &Peer| matches!(peer, Peer::Begun(_) | Peer::InPieces(..));
        !self.sending.is_empty() || self.peers.iter().any(comes)
    }

    fn is_over(&self) -> bool {
        self.peers.iter().all(|peer| matches!(peer, Peer::Gone)) && self.hand_over.has_left()
    }

    /// Hands new parcels to the library.
    fn send(&mut self) -> bool {
        self.hand_over.collect(&mut self.parcels);
        let moved = !self.parcels.is_empty();
        for (to, parcel) in self.parcels.drain(..) {
            let (transfer, end) = match parcel {
                Parcel::Message(bytes) => {
                    let end = self.credits[to].end_of(bytes.len());
                    (self.library.send(to, bytes, end), end)
                }
                Parcel::Farewell => (self.library.send_farewell(to), self.credits[to].ask()),
            };
            self.sending.push(Sending { to, transfer, end });
        }
        if moved {
            self.hand_over.handed();
        }
        moved
    }

    /// Removes finished work, which makes room.
    fn settle(&mut self) -> bool {
        let mut moved = false;
        for Sending { to, transfer, end } in self.sending.extract_if(.., |sending| sending.transfer.is_done())
        {
            if end == End::Taken {
                self.credits[to].confirm();
            }
            self.hand_over.sent(to, transfer.take());
            moved = true;
        }
        moved
    }

    /// Receives messages that have arrived.
    fn receive(&mut self) -> bool {
        let is_anything_new = self.library.is_anything_there();
        let mut moved = false;
        for from in 0..self.peers.len() {
            while self.advance(from, is_anything_new) {
                moved = true;
            }
        }
        moved
    }

    /// Advances the state of one rank by one stage, if possible.
    fn advance(&mut self, from: usize, is_anything_new: bool) -> bool {
        let (next, moved) = match std::mem::replace(&mut self.peers[from], Peer::Quiet) {
            Peer::Quiet if !is_anything_new => (Peer::Quiet, false),
            Peer::Quiet => match self.library.next_of(from) {
                Some(arrival) => (self.begin(from, arrival), true),
                None => (Peer::Quiet, false),
            },
            Peer::Begun(mut transfer) => match transfer.is_done() {
                true => (self.open(from, transfer.take()), true),
                false => (Peer::Begun(transfer), false),
            },
            Peer::InPieces(tag, mut transfer) => match transfer.is_done() {
                true => (Peer::Waiting(tag, transfer.take()), true),
                false => (Peer::InPieces(tag, transfer), false),
            },
            Peer::Waiting(tag, payload) => match self.deliver(from, tag, payload) {
                Ok(()) => (Peer::Quiet, true),
                Err(payload) => (Peer::Waiting(tag, payload), false),
            },
            Peer::Gone => (Peer::Gone, false),
        };
        self.peers[from] = next;
        moved
    }

    fn begin(&mut self, from: usize, arrival: Arrival) -> Peer {
        if !arrival.is_farewell {
            let buffer = self.mailbox.buffer(arrival.bytes);
            return Peer::Begun(arrival.receive(buffer));
        }
        let mut farewell = arrival.receive(Vec::new());
        // It is empty and has been matched, so one or two polls complete it.
        while !farewell.is_done() {}
        // The order matters: sends to the rank stop before callers that wait for it are told.
        self.hand_over.left(from);
        self.mailbox.sender_left(from);
        Peer::Gone
    }

    /// Reads the envelope of a message; a long payload follows it.
    fn open(&mut self, from: usize, mut message: Vec<u8>) -> Peer {
        let Some(Envelope { tag, payload_bytes }) = Envelope::at_end_of(&message) else {
            refuse(from, "a message without an envelope")
        };
        message.truncate(message.len() - ENVELOPE_BYTES);
        match usize::try_from(payload_bytes) {
            Ok(bytes) if bytes == message.len() => Peer::Waiting(tag, message),
            Ok(bytes) if message.is_empty() && bytes <= self.max_message_bytes => {
                let buffer = self.mailbox.buffer(bytes);
                Peer::InPieces(tag, self.library.receive_pieces(from, bytes, buffer))
            }
            _ => refuse(from, "a message of another length than its envelope says, or over the limit"),
        }
    }

    /// Puts a message into the inbox; drops it if no call will ask for it any more.
    fn deliver(&self, from: usize, tag: Tag, payload: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.hand_over.is_leaving() {
            return Ok(());
        }
        self.mailbox.offer(Rank(from as u32), tag, payload)
    }

    /// Sums the lent slice. Blocks inside the library, which moves messages in flight meanwhile.
    fn reduce(&mut self) -> bool {
        let Some(loan) = self.hand_over.lent() else { return false };
        // First sends the messages that the caller posted before it lent the slice. Without them a peer may
        // never reach its own call.
        self.send();
        self.library.sum(&loan);
        self.hand_over.give_back();
        true
    }
}

/// All ranks run the same program, so this is a bug in it, from which the job cannot recover.
fn refuse(from: usize, what: &str) -> ! {
    abort(PANIC_EXIT_CODE, &format!("rank {from} sent {what}"))
}
