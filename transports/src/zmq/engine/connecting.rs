//! Sockets that this end connects: greetings, and what refuses them.

use std::sync::Arc;
use std::time::Instant;

use zmq::Message;

use super::{BURST, Engine, Path, PeerRecord, discard_rest};
use crate::rank::Rank;
use crate::terms::Difference;
use crate::zmq::dial::Told;
use crate::zmq::error::ZmqError;
use crate::zmq::packet::{Greeting, Malformed, Packet, VERSION};
use crate::zmq::refusal::Refusal;
use crate::zmq::state::{Standing, State};

impl Engine {
    pub(super) fn read_dealer(&mut self, at: usize) {
        let handshake = self.options.timing.handshake;
        let PeerRecord { path: Path::Connects(dial), rank, .. } = &mut self.records[at] else { return };
        let (rank, told) = (*rank, dial.read_monitor(handshake, Instant::now()));
        let mut bodies = Vec::new();
        let mut body = Message::new();
        while bodies.len() < BURST && dial.socket.recv(&mut body, zmq::DONTWAIT).is_ok() {
            if !discard_rest(&dial.socket, &mut body) {
                bodies.push(std::mem::replace(&mut body, Message::new()));
            }
        }
        for told in told {
            match told {
                Told::Denied => self.fail_with(self.denied(rank)),
                Told::Failed(why) => self.strangers.refused(rank.to_string(), why),
            }
        }
        bodies.iter().for_each(|body| self.arrived_at_dealer(at, body));
    }

    fn arrived_at_dealer(&mut self, at: usize, body: &[u8]) {
        let Path::Connects(dial) = &self.records[at].path else { return };
        let is_greeted = dial.is_greeted();
        match Packet::parse(body) {
            Ok(Packet::Welcome(greeting)) => self.on_welcome(at, &greeting, body.len()),
            Ok(Packet::Refusal { session, refusal }) => self.on_refusal(at, session, refusal),
            Ok(
                packet @ (Packet::Data(_) | Packet::Skip { .. } | Packet::Bye { .. } | Packet::Ack { .. }),
            ) => {
                if is_greeted {
                    self.on_packet(at, &packet);
                }
            }
            Err(Malformed::Version { theirs, .. }) => {
                let (own, theirs) = (VERSION.to_string(), theirs.to_string());
                let difference = Difference { name: "protocol version".to_owned(), own, theirs };
                let differences = vec![difference];
                self.fail_with(ZmqError::Differs { peer: self.records[at].rank, differences });
            }
            Ok(Packet::Hello(_)) | Err(Malformed::Garbage) => {
                let who = self.records[at].rank.to_string();
                self.strangers.garbage(who, format!("{} bytes that are no packet", body.len()));
            }
        }
    }

    fn on_welcome(&mut self, at: usize, greeting: &Greeting, bytes: usize) {
        let differences = self.terms.differences(&greeting.terms);
        if !differences.is_empty() {
            return self.fail_with(ZmqError::Differs { peer: self.records[at].rank, differences });
        }
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let Some(link) = state.peers[at].link.as_mut().filter(|link| link.session == greeting.session) else {
            return;
        };
        let record = &mut self.records[at];
        record.heard = now;
        let Path::Connects(dial) = &mut record.path else { return };
        let is_new = !dial.is_greeted();
        let greeted = link.on_greeting(greeting.ack, is_new, now);
        if let Some((bytes, took)) = dial.greeted(bytes, now) {
            link.outgoing.pace.on_greeting(bytes, took, now);
        }
        if let Err(violation) = greeted {
            return self.break_link(&mut state, at, violation);
        }
        self.is_here(&mut state, at);
        shared.notify();
    }

    fn on_refusal(&mut self, at: usize, session: u64, refusal: Refusal) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let peer = &state.peers[at];
        if peer.standing == Standing::Gone || peer.link.as_ref().is_none_or(|link| link.session != session) {
            return;
        }
        let (peer, has_begun) = (peer.rank, state.has_begun);
        let refusal = match refusal {
            // Tried again, until the deadline of the waiting caller.
            Refusal::Taken => {
                if let Path::Connects(dial) = &mut self.records[at].path {
                    dial.taken(Instant::now());
                }
                return;
            }
            Refusal::Differs(all) => Refusal::Differs(all.into_iter().map(Difference::reversed).collect()),
            other => other,
        };
        let why = refusal.to_string();
        let error = match refusal {
            Refusal::Differs(differences) => ZmqError::Differs { peer, differences },
            _ => ZmqError::Refused { peer, why: why.clone() },
        };
        if let Path::Connects(dial) = &self.records[at].path {
            let _ = dial.socket.send(Packet::bye(session, 0), zmq::DONTWAIT);
        }
        if has_begun {
            self.end_session(&mut state, at, &why);
        } else {
            // Callers that wait for the beginning get the error, so no event repeats it.
            state.failure.get_or_insert(error);
            self.drop_session(&mut state, at);
        }
        shared.notify();
    }

    fn denied(&self, peer: Rank) -> ZmqError {
        let entry = self.options.roster.get(peer);
        let endpoint = entry.and_then(|entry| entry.endpoint.clone()).unwrap_or_default();
        ZmqError::Denied { peer, endpoint }
    }

    fn fail_with(&self, error: ZmqError) {
        let mut state = self.shared.lock();
        if !state.has_begun {
            state.failure.get_or_insert(error);
        }
        self.shared.notify();
    }

    /// Makes another connection to a peer that listens.
    pub(super) fn redial(&mut self, state: &mut State, at: usize) {
        let record = &mut self.records[at];
        let Path::Connects(dial) = &mut record.path else { return };
        dial.lost(Instant::now());
        record.dials += 1;
        if let Err(error) = dial.again(&self.context, &self.options, (record.rank, record.dials)) {
            self.end_session(state, at, &error.to_string());
        }
    }

    /// Greets a peer that this end connects to, until it answers.
    pub(super) fn greet(&mut self, state: &mut State, at: usize, now: Instant) {
        let PeerRecord { path: Path::Connects(dial), rank, .. } = &mut self.records[at] else { return };
        let Some(link) = state.peers[at].open_link().filter(|_| dial.is_to_greet(now)) else { return };
        let (session, resumes, ack) = (link.session, link.is_open, link.incoming.ack());
        let greeting =
            Greeting { session, resumes, from: self.options.rank, to: *rank, ack, terms: self.terms.clone() };
        dial.greet(Packet::greeting(&greeting, false), now);
    }
}
