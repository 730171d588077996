//! What depends on time and on calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::record::Sent;
use super::{Engine, Path, TICK};
use crate::zmq::event::Event;
use crate::zmq::roster::Roster;
use crate::zmq::state::{Order, Peer, Standing, State};

/// The time after which a socket whose queue was full is tried again.
const RETRY: Duration = Duration::from_millis(2);
/// How long an end that refused another end, and therefore stops, waits until that end has received the
/// reason.
const UNTIL_TOLD: Duration = Duration::from_secs(10);

impl Engine {
    /// Does everything that depends on time or on calls. Returns whether the thread must end.
    pub(super) fn tend(&mut self, now: Instant, pause: &mut Duration) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        state.is_woken = false;
        self.obey(&mut state);
        let mut is_blocked = false;
        for at in 0..self.records.len() {
            self.settle(&mut state, at, now);
            self.watch(&mut state, at, now);
            self.miss(&mut state, at, now);
            self.greet(&mut state, at, now);
            self.say_what_is_waited_for(&mut state, at, now);
            is_blocked |= self.flush(&mut state, at, now) == Sent::Full;
        }
        let is_parting = (0..self.records.len()).any(|at| self.is_parting(&state, at, now));
        *pause = if is_blocked || is_parting { RETRY } else { TICK.min(self.options.timing.heartbeat / 3) };
        shared.notify();
        let is_settled = !is_parting && state.peers.iter().all(Peer::is_settled);
        let waits = |(_, since)| now.saturating_duration_since(since) < UNTIL_TOLD;
        let is_told = !state.peers.iter().any(|peer| peer.untold.is_some_and(waits));
        state.closing.is_some_and(|deadline| is_told && (is_settled || deadline.has_passed()))
    }

    /// Whether this end must wait for that peer to hang up.
    fn is_parting(&self, state: &State, at: usize, now: Instant) -> bool {
        self.records[at].is_parting(state, self.silence(&state.peers[at], now), now)
    }

    /// Does what the caller ordered.
    fn obey(&mut self, state: &mut State) {
        for order in std::mem::take(&mut state.orders) {
            match order {
                Order::Readmit(roster) => self.readmit(state, roster),
                // libzmq does not try again after a refusal, so the old socket may be of no use.
                Order::Redial => (0..self.records.len()).for_each(|at| self.redial(state, at)),
                Order::ShutOut { rank, why } => {
                    if let Some(at) = self.records.iter().position(|record| record.rank == rank) {
                        state.peers[at].is_banned = true;
                        self.end_session(state, at, &why);
                    }
                }
            }
        }
    }

    /// Applies another list of peers.
    fn readmit(&mut self, state: &mut State, roster: Roster) {
        for at in 0..self.records.len() {
            let rank = self.records[at].rank;
            let [old, new] =
                [&self.options.roster, &roster].map(|list| list.get(rank).map(|entry| entry.key));
            let what = match (old, new) {
                (old, new) if old == new => continue,
                (_, None) => "was taken off the list",
                (None, Some(_)) => "is on the list again",
                (Some(_), Some(_)) => "has another key on the list",
            };
            self.events.push(Event::Listed { rank, what });
            let peer = &mut state.peers[at];
            (peer.is_listed, peer.is_banned) = (new.is_some(), false);
            if peer.link.is_some() {
                self.end_session(state, at, &format!("it {what}"));
            }
        }
        let own = self.options.roster.get(self.options.rank).cloned().unwrap_or_default();
        self.options.roster = roster.with(self.options.rank, own);
    }

    /// Delivers messages that waited for room, and records peers that said their last word.
    fn settle(&mut self, state: &mut State, at: usize, now: Instant) {
        let State { arrivals, peers, .. } = state;
        let peer = &mut peers[at];
        let Some(link) = &mut peer.link else { return };
        if link.incoming.is_held_back()
            && let Err(violation) = link.settle(peer.rank, arrivals)
        {
            return self.break_link(state, at, violation);
        }
        if link.incoming.is_over() && peer.standing != Standing::Gone {
            self.events.push(Event::Gone { rank: peer.rank, why: "it left".to_owned() });
            peer.standing = Standing::Gone;
            self.records[at].left = Some(now);
        }
    }

    /// Reports a silent peer, and gives it up after a longer silence. A connection that this end made is made
    /// anew.
    fn watch(&mut self, state: &mut State, at: usize, now: Instant) {
        let quiet = now.saturating_duration_since(self.records[at].heard);
        let timing = self.options.timing;
        let peer = &mut state.peers[at];
        let late = peer.lateness(now);
        // Until the welcome is answered, nothing is measured.
        let is_measured = self.records[at].welcomed.is_none();
        let is_silent = quiet > timing.silence_at(late) && (is_measured || quiet > timing.handshake);
        let give_up = timing.give_up_at(late);
        match peer.standing {
            Standing::Here if is_silent => {
                peer.standing = Standing::Silent;
                self.events.push(Event::Silent { rank: peer.rank });
            }
            Standing::Silent if quiet > give_up => {
                let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
                self.end_session(state, at, &why);
            }
            _ => {}
        }
        let limit = timing.handshake;
        if let Path::Connects(dial) = &mut self.records[at].path
            && (dial.is_greeted() && is_silent || dial.is_stuck(limit, now) || dial.is_of_other_version(now))
        {
            self.redial(state, at);
        }
    }

    /// Notes since when a peer that connects to this end has no connection.
    fn miss(&mut self, state: &mut State, at: usize, now: Instant) {
        let (record, peer) = (&mut self.records[at], &mut state.peers[at]);
        let was_here = matches!(peer.standing, Standing::Here | Standing::Silent);
        let is_broken = was_here && matches!(record.path, Path::Accepts { route: None });
        record.broke = is_broken.then(|| record.broke.unwrap_or(now));
        let back = self.options.timing.back_at(peer.lateness(now));
        peer.is_cut_off = record.broke.is_some_and(|broke| now.saturating_duration_since(broke) > back);
    }

    /// Says, at growing intervals, which peer or which of its messages is waited for.
    fn say_what_is_waited_for(&mut self, state: &mut State, at: usize, now: Instant) {
        let record = &mut self.records[at];
        let peer = &mut state.peers[at];
        let quiet = now.saturating_duration_since(record.heard);
        let told = match &mut record.path {
            Path::Connects(dial) if !dial.is_greeted() => {
                peer.absence = dial.absence(now);
                let missed = dial.is_missed(now).filter(|_| peer.open_link().is_some());
                missed.map(|waited| (peer.absence.clone(), waited))
            }
            _ => peer.is_awaited(quiet, now),
        };
        if let Some((known, waited)) = told {
            self.events.push(Event::Waiting { rank: peer.rank, seconds: waited.as_secs(), known });
        }
    }

    /// Sends what may be sent to a peer.
    fn flush(&mut self, state: &mut State, at: usize, now: Instant) -> Sent {
        let is_parting = self.is_parting(state, at, now);
        let peer = &mut state.peers[at];
        let router = self.router.as_ref().map(|(socket, _)| socket);
        let path = &mut self.records[at].path;
        let Some(link) = &mut peer.link else { return Sent::Yes };
        // A packet that finds no connection shows that the peer has hung up.
        let heartbeat = if is_parting { RETRY } else { self.options.timing.heartbeat };
        if let Some(ack) = link.ack(heartbeat, now) {
            match path.send(router, ack) {
                Sent::Yes => link.acked(now),
                stopped => return stopped,
            }
        }
        if peer.standing == Standing::Gone {
            return Sent::Yes;
        }
        while let Some(packet) = link.outgoing.packet(link.session, now) {
            match path.send(router, packet) {
                Sent::Yes => link.outgoing.sent(now),
                stopped => return stopped,
            }
        }
        Sent::Yes
    }
}
