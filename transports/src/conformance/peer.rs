//! A check, and the rank that runs it.

use std::time::Duration;

use crate::rank::Rank;
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// A function that every rank of a world runs at the same time. It panics if the transport breaks the
/// contract.
#[derive(Clone, Copy)]
pub struct Check {
    /// The clause of the contract, as a sentence.
    pub name: &'static str,
    /// The part of each rank.
    pub run: fn(&mut Peer<'_>),
}

/// How long a check waits for a message that must come.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a check waits for a message that must not come.
pub(super) const BRIEFLY: Duration = Duration::from_millis(40);
/// How late a call may notice its deadline on a busy machine.
pub(super) const SLACK: Duration = Duration::from_secs(5);

/// A rank in a check: its transport and tags that no other check uses.
pub struct Peer<'a> {
    /// The end of the transport under test.
    pub transport: &'a mut dyn Transport,
    first_step: u64,
}

/// Steps that belong to one check.
pub(super) const STEPS: u64 = 1000;

impl<'a> Peer<'a> {
    /// A rank in the check with number `check` in this world.
    pub fn new(transport: &'a mut dyn Transport, check: u64) -> Self {
        Self { transport, first_step: 1 + check * STEPS }
    }

    pub(super) fn tag(&self, step: u64) -> Tag {
        assert!(step < STEPS, "a check has {STEPS} steps");
        Tag::new(self.transport.membership().epoch, self.first_step + step)
    }

    pub(super) fn rank(&self) -> Rank {
        self.transport.rank()
    }

    pub(super) fn ranks(&self) -> Vec<Rank> {
        self.transport.membership().ranks.as_slice().to_vec()
    }

    pub(super) fn world(&self) -> usize {
        self.transport.membership().world()
    }

    pub(super) fn position(&self) -> usize {
        self.transport.membership().ranks.position(self.rank()).expect("a rank is in its own membership")
    }

    pub(super) fn others(&self) -> Vec<Rank> {
        self.ranks().into_iter().filter(|rank| *rank != self.rank()).collect()
    }

    pub(super) fn send(&mut self, to: Rank, tag: Tag, payload: &[u8]) {
        self.transport.send(to, tag, payload, patience()).unwrap();
    }

    pub(super) fn recv(&mut self, from: Rank, tag: Tag) -> Vec<u8> {
        let mut payload = vec![0xa5; 3];
        self.transport.recv(from, tag, &mut payload, patience()).unwrap();
        payload
    }
}

pub(super) fn patience() -> Deadline {
    Deadline::after(PATIENCE)
}

pub(super) fn briefly() -> Deadline {
    Deadline::after(BRIEFLY)
}
