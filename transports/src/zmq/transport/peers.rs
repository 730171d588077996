//! Which peers a caller waits for, lets in and shuts out, and with whom it goes on.

use std::sync::MutexGuard;

use super::ZmqTransport;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::Deadline;
use crate::zmq::error::ZmqError;
use crate::zmq::options::ZmqLimits;
use crate::zmq::roster::Roster;
use crate::zmq::state::{Order, Peer, Shared, Standing, State};

/// The parts that do not change.
#[derive(Debug)]
pub(in crate::zmq) struct Me {
    pub(in crate::zmq) rank: Rank,
    pub(in crate::zmq) limits: ZmqLimits,
    pub(in crate::zmq) is_secure: bool,
    pub(in crate::zmq) listens: bool,
    pub(in crate::zmq) roster: RankSet,
    /// Whether this end waits for all its peers at the start.
    pub(in crate::zmq) is_patient: bool,
}

impl Me {
    fn waits_for(&self, peer: &Peer) -> bool {
        self.is_patient && peer.standing == Standing::Expected
    }

    /// Waits until all required peers are there.
    pub(in crate::zmq) fn wait_for_all<'a>(
        &self,
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<(), ZmqError> {
        loop {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            let mut missing = state.peers.iter().filter(|peer| self.waits_for(peer)).peekable();
            if missing.peek().is_none() {
                state.has_begun = true;
                return Ok(());
            }
            if deadline.has_passed() || state.is_stopped {
                let missing = missing.map(|peer| (peer.rank, peer.absence.clone())).collect();
                return Err(ZmqError::NotAllThere { missing });
            }
            state = shared.wait(state, deadline);
        }
    }
}

impl ZmqTransport {
    /// Continues with other ranks in a later epoch. Every member must adopt the same membership. From then
    /// on, a member that begins another session is `Disconnected` until the next call.
    ///
    /// # Errors
    /// `NotAPeer` when this rank is not in it, or when it names a rank that is not in the roster. Nothing has
    /// changed then.
    ///
    /// # Panics
    /// If the epoch is not larger than the present one.
    pub fn adopt(&mut self, members: Membership) -> Result<(), TransportError> {
        assert!(members.epoch > self.members.epoch, "an epoch must be larger than the one before");
        if !members.ranks.contains(self.me.rank) {
            return Err(TransportError::NotAPeer { rank: self.me.rank });
        }
        if let Some(rank) = members.ranks.iter().find(|rank| !self.me.roster.contains(*rank)) {
            return Err(TransportError::NotAPeer { rank });
        }
        let mut state = self.shared.lock();
        // No session has number 0, but for one in 2^64.
        state
            .peers
            .iter_mut()
            .for_each(|peer| peer.bound = Some(peer.link.as_ref().map_or(0, |link| link.session)));
        drop(state);
        self.members = members;
        Ok(())
    }

    /// Sets the session to which a member's messages belong. The member may have begun another one since.
    pub(in crate::zmq) fn bind(&mut self, rank: Rank, session: u64) {
        let mut state = self.shared.lock();
        let peer = state.peers.iter_mut().find(|peer| peer.rank == rank);
        peer.into_iter().for_each(|peer| peer.bound = Some(session));
    }

    /// Ends the session of `rank`, and does not admit its key again. An end that listens calls this for a
    /// peer whose packets are valid but whose messages are not. Returns when it is done.
    pub fn shut_out(&mut self, rank: Rank, why: &str) {
        self.order(Order::ShutOut { rank, why: why.to_owned() });
    }

    /// Applies another list of peers. A rank that is no longer on the list, or has another key there, is
    /// disconnected. A rank with a new key, or one that is listed again, may join even if it was shut out.
    /// This end's own entry stays. Returns when it is done.
    ///
    /// # Errors
    /// `Options` where the list has a rank that it did not have at the start, or one without a key; without
    /// CURVE; and at an end that does not listen. Nothing has changed then.
    pub fn readmit(&mut self, roster: Roster) -> Result<(), ZmqError> {
        let refused = |what: String| Err(ZmqError::Options { what });
        if !(self.me.is_secure && self.me.listens) {
            return refused("only an end that listens, with keys, has a list of who may come in".to_owned());
        }
        for rank in roster.ranks().iter().filter(|&rank| rank != self.me.rank) {
            if !self.me.roster.contains(rank) {
                return refused(format!("{rank} was not in the list of peers at the start"));
            }
            if roster.get(rank).is_none_or(|entry| entry.key.is_none()) {
                return refused(format!("the list of peers has no key for {rank}"));
            }
        }
        self.order(Order::Readmit(roster));
        Ok(())
    }

    /// Gives the thread an order, and waits until it is carried out.
    fn order(&mut self, order: Order) {
        let mut state = self.shared.lock();
        state.orders.push(order);
        self.bell.ring(&mut state);
        while !(state.orders.is_empty() || state.is_stopped) {
            state = self.shared.wait(state, Deadline::NEVER);
        }
    }

    /// Peers that are connected or may connect: on the list, and not shut out.
    pub fn admitted(&self) -> usize {
        let state = self.shared.lock();
        state.peers.iter().filter(|peer| peer.is_listed && !peer.is_banned).count()
    }

    /// Begins a new session with every peer, after all sessions have ended. Messages of earlier sessions are
    /// dropped, and the membership is again that of the roster, in epoch 0. For ends that only connect, such
    /// as a worker whose server was restarted.
    ///
    /// # Errors
    /// As [`Bound::join`](crate::zmq::Bound::join); it may then be tried again. `Options` while a session is
    /// open, or at an end that listens.
    pub fn rejoin(&mut self, deadline: Deadline) -> Result<(), ZmqError> {
        let refused = |what: &str| Err(ZmqError::Options { what: what.to_owned() });
        let mut state = self.shared.lock();
        if self.me.listens {
            return refused("an end that listens waits for others to come back");
        }
        if state.peers.iter().any(|peer| matches!(peer.standing, Standing::Here | Standing::Silent)) {
            return refused("a session is still open");
        }
        state.begin_again(&self.me.limits);
        self.members = Membership { epoch: 0, ranks: self.me.roster.clone() };
        self.bell.ring(&mut state);
        self.me.wait_for_all(&self.shared, state, deadline)
    }

    /// Goes on waiting for the peers that were not there in time when this end joined again.
    ///
    /// # Errors
    /// As [`Bound::join`](crate::zmq::Bound::join).
    pub fn wait_for_peers(&mut self, deadline: Deadline) -> Result<(), ZmqError> {
        self.me.wait_for_all(&self.shared, self.shared.lock(), deadline)
    }
}
